//! Compares the model with the running kernel on random calls.
//!
//! `cargo run -p freehold-model --release --example differential -- --calls 1000000 --seed 1`
//! Options: `--calls N`, `--seed N`, `--per-run N`, `--maps-every N`, `--may-lock` (no lock limit), `--stats` (what came of which call),
//! `--room N` (only N mappings below `max_map_count`; slow to set up, so with a large `--per-run`).

use std::process::ExitCode;
use std::time::Instant;

use freehold_model::compare::{self, Plan};
use freehold_model::linux::{Linux, Options};
use freehold_model::op::ERRNOS;
use freehold_model::{Model, Subject, text};

fn main() -> ExitCode {
    let mut plan = Plan { seed: 1, calls: 1_000_000, per_run: 256, between_maps: 32 };
    let mut stats = false;
    let mut options = Options::default();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|n| n.parse::<u64>().ok()).expect("a number after the option");
        match arg.as_str() {
            "--calls" => plan.calls = number(),
            "--seed" => plan.seed = number(),
            "--per-run" => plan.per_run = number() as usize,
            "--maps-every" => plan.between_maps = number() as usize,
            "--may-lock" => options.may_lock = true,
            "--stats" => stats = true,
            "--room" => options.room = Some(number()),
            other => panic!("unknown option {other}"),
        }
    }
    let mut linux = match Linux::new(options) {
        Ok(linux) => linux,
        Err(why) => {
            eprintln!("cannot drive the kernel here: {why}");
            return ExitCode::from(2);
        }
    };
    let world = linux.world();
    let mut model = Model::new(world.clone());
    let began = Instant::now();
    let report = compare::run(&mut model, &mut linux, &plan);
    let took = began.elapsed().as_secs_f64();
    println!(
        "seed {}: {} calls ({} succeeded, {} failed, {} signals), {} maps, {} pages compared in {took:.1} s: {:.0} calls/s",
        plan.seed,
        report.calls,
        report.succeeded,
        report.failed,
        report.signals,
        report.maps,
        report.pages,
        report.calls as f64 / took,
    );
    if stats {
        for ((name, end), count) in &report.ends {
            let end = match ERRNOS.iter().find(|(e, _)| e == end) {
                Some((_, name)) => name,
                None if *end == 0 => "ok",
                None => "signal",
            };
            println!("{count:>9} {name} {end}");
        }
    }
    let Some(d) = report.difference else { return ExitCode::SUCCESS };
    println!("model (left) and kernel (right) differ in run {}:", d.seed);
    for op in &d.ops {
        println!("{}", text::op(&world, op));
    }
    println!("=> {}", d.what);
    ExitCode::FAILURE
}
