//! Makes random calls and compares the results of the model, the engine and the running kernel.
//!
//! `cargo run -p freehold-model --release --example differential -- --calls 1000000 --seed 1`
//!
//! Two subjects at a time make the same calls; then the results, the VMAs and the pages are compared
//! (`freehold_model::compare`). At the first difference the program prints the shortest calls that show the
//! difference, and ends the comparison. The exit status is 0 if all results are equal, 1 after a difference,
//! and 2 if the program cannot make calls to the running kernel. Calls to the kernel run in child processes.
//! The tests `differential` and `engine` run the same comparisons with fewer calls.
//!
//! | option | default | meaning |
//! | --- | --- | --- |
//! | `--subjects A,B` | `model,linux` | the subjects to compare: any pair of `model`, `engine`, `linux`, or all three. With all three, the model is compared with the engine first, and then the engine with the kernel |
//! | `--calls N` | 1000000 | number of calls per comparison |
//! | `--seed N` | 1 | seed of the random calls |
//! | `--per-run N` | 256 | number of calls per run; each run begins with a new address space |
//! | `--maps-every N` | 32 | number of calls between two comparisons of all VMAs |
//! | `--locking N` | all designs | the lock design of the engine, an index of `Locking::ALL`. Each design gets `--calls` calls and its own seeds |
//! | `--may-lock` | off | no limit of locked memory |
//! | `--room N` | not set | leave room for only N more mappings below `max_map_count` (slow to set up on the kernel, so use a large `--per-run`) |
//! | `--stats` | off | print the number of results of each call |

use std::process::ExitCode;
use std::time::Instant;

use freehold::space::Locking;
use freehold_model::compare::{self, Plan, Report};
use freehold_model::linux::{self, Linux};
use freehold_model::op::ERRNOS;
use freehold_model::world::Quirks;
use freehold_model::{Engine, Model, Subject, World, text};

/// The options of the command line.
struct Options {
    /// Number of calls, their seed, and the length of a run.
    plan: Plan,
    /// Names of the subjects: `model`, `engine`, `linux`.
    subjects: Vec<String>,
    /// The lock designs of the engine to compare.
    lockings: Vec<Locking>,
    /// True if the results of each call are counted and printed.
    stats: bool,
    /// The setup of the processes of the running kernel, and of the world of the other subjects.
    linux: linux::Options,
}

/// Parses the command line. Panics if it has an unknown option or a bad number.
fn options() -> Options {
    let mut options = Options {
        plan: Plan { seed: 1, calls: 1_000_000, per_run: 256, between_maps: 32 },
        subjects: vec!["model".into(), "linux".into()],
        lockings: Locking::ALL.to_vec(),
        stats: false,
        linux: linux::Options::default(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--subjects" {
            let names = args.next().expect("names after --subjects");
            options.subjects = names.split(',').map(String::from).collect();
            continue;
        }
        let mut number =
            || args.next().and_then(|n| n.parse::<u64>().ok()).expect("a number after the option");
        let plan = &mut options.plan;
        match arg.as_str() {
            "--calls" => plan.calls = number(),
            "--seed" => plan.seed = number(),
            "--per-run" => plan.per_run = number() as usize,
            "--maps-every" => plan.between_maps = number() as usize,
            "--locking" => options.lockings = vec![Locking::ALL[number() as usize]],
            "--may-lock" => options.linux.may_lock = true,
            "--stats" => options.stats = true,
            "--room" => options.linux.room = Some(number()),
            other => panic!("unknown option {other}"),
        }
    }
    options
}

/// Compares two subjects, and prints the counts and the first difference. Returns true if the subjects agree.
/// `turn` is the number of designs that ran before; it selects the seeds.
fn compare<A: Subject, B: Subject>(what: &str, a: &mut A, b: &mut B, options: &Options, turn: usize) -> bool {
    let began = Instant::now();
    let plan = Plan { seed: options.plan.seed + ((turn as u64) << 32), ..options.plan };
    let report = compare::run(a, b, &plan);
    let took = began.elapsed().as_secs_f64();
    println!(
        "{what}, seed {}: {} calls ({} succeeded, {} failed, {} signals), {} maps, {} pages compared in {took:.1} s: {:.0} calls/s",
        plan.seed,
        report.calls,
        report.succeeded,
        report.failed,
        report.signals,
        report.maps,
        report.pages,
        report.calls as f64 / took,
    );
    if options.stats {
        print_ends(&report);
    }
    let Some(d) = report.difference else { return true };
    println!("left and right differ in run {}:", d.seed);
    for op in &d.ops {
        println!("{}", text::op(&a.world(), op));
    }
    println!("=> {}", d.what);
    false
}

/// Prints the number of occurrences of each result of each call.
fn print_ends(report: &Report) {
    for ((name, end), count) in &report.ends {
        let end = match ERRNOS.iter().find(|(e, _)| e == end) {
            Some((_, name)) => name,
            None if *end == 0 => "ok",
            None => "signal",
        };
        println!("{count:>9} {name} {end}");
    }
}

/// Returns the world in which the model and the engine are compared.
fn engine_world(options: &Options) -> World {
    match options.linux.room {
        Some(room) => Engine::world_with_room(room),
        None => Engine::world_for(options.linux.may_lock),
    }
}

fn main() -> ExitCode {
    let options = options();
    let has = |name: &str| options.subjects.iter().any(|subject| subject == name);
    let mut agree = true;
    if has("model") && has("engine") {
        for (turn, locking) in options.lockings.iter().enumerate() {
            let world = engine_world(&options);
            let mut model = Model::new(world.clone());
            let mut engine = Engine::new(world, *locking);
            let what = format!("model and engine {locking:?}");
            agree &= compare(&what, &mut model, &mut engine, &options, turn);
        }
    }
    if has("linux") {
        let mut linux = match Linux::new(options.linux) {
            Ok(linux) => linux,
            Err(why) => {
                eprintln!("cannot drive the kernel here: {why}");
                return ExitCode::from(2);
            }
        };
        if has("engine") {
            linux.treat_quirks(Quirks::Avoided);
            for (turn, locking) in options.lockings.iter().enumerate() {
                let mut engine = Engine::new(linux.world(), *locking).with_file_pages_resident();
                let what = format!("engine {locking:?} and kernel");
                agree &= compare(&what, &mut engine, &mut linux, &options, turn);
            }
        } else {
            let mut model = Model::new(linux.world());
            agree &= compare("model and kernel", &mut model, &mut linux, &options, 0);
        }
    }
    if agree { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
