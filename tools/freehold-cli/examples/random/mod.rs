//! Makes random system calls on the running kernel, and ignores their results: a program to record.
//! `tests/random.rs` records and replays this program; a difference is a defect of the recorder, the plan or
//! the engine.
//!
//! ```text
//! cargo build --package freehold-cli --example random
//! freehold record -o NAME -- target/debug/examples/random --seed 1 --calls 100000
//! freehold replay NAME.trace.zst
//! ```
//!
//! Options:
//! - `--seed N`: seed of the random calls
//! - `--calls N`: number of calls
//! - `--per-run N`: number of calls after which a new process starts
//! - `--mix model` (the default): the calls of the generator of `freehold-model`, in processes whose memory
//!   is entirely mapped except for one range, the arena
//! - `--mix outsider`: calls and arguments that are chosen independently of that generator, in ordinary
//!   processes (`outsider.rs`)
//! - `--no-mseal`: leaves out mseal, which old versions of strace do not know
//!
//! A new option needs a field of `Plan` and an arm in `plan`. A new call belongs in
//! `freehold-model/src/generate.rs` (mix `model`) or in `outsider.rs` (mix `outsider`).

mod outsider;
mod raw;

use freehold_model::generate::Generator;
use freehold_model::linux::{Linux, Options};
use freehold_model::op::{Call, Op, Outcome};
use freehold_model::{Subject, World};

/// The options of a run.
struct Plan {
    /// Seed of the random calls.
    seed: u64,
    /// Number of calls.
    calls: u64,
    /// Number of calls after which a new process starts.
    per_run: u64,
    /// True for `--mix outsider`.
    outsider: bool,
    /// False if mseal is left out.
    mseal: bool,
}

/// Returns the options of the command line.
fn plan() -> Plan {
    let mut plan = Plan { seed: 1, calls: 10_000, per_run: 256, outsider: false, mseal: true };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|n| n.parse::<u64>().ok()).expect("a number must follow the option");
        match arg.as_str() {
            "--seed" => plan.seed = number(),
            "--calls" => plan.calls = number(),
            "--per-run" => plan.per_run = number().max(1),
            "--no-mseal" => plan.mseal = false,
            "--mix" => match args.next().as_deref() {
                Some("model") => plan.outsider = false,
                Some("outsider") => plan.outsider = true,
                _ => panic!("expected --mix model or --mix outsider"),
            },
            other => panic!("unknown option {other}"),
        }
    }
    plan
}

/// Makes the calls of the generator of `freehold-model`.
fn of_the_model(plan: &Plan) {
    let mut linux = Linux::new(Options::default()).expect("cannot run the model on this kernel");
    let world = World { seals: plan.mseal && linux.world().seals, ..linux.world() };
    let mut left = plan.calls;
    let mut run = plan.seed;
    while left > 0 {
        linux.reset();
        // Unmap the arena. From then on the recording shows the arena as empty.
        let (addr, len) = (world.start, world.end - world.start);
        linux.apply(&Op { proc: 0, call: Call::Munmap { addr, len } });
        let mut generator = Generator::new(world.clone(), run);
        let ops: Vec<Op> = (0..plan.per_run.min(left)).map(|_| generator.next_op()).collect();
        let outcomes = linux.apply_all(&ops);
        let seals = |op: &&Op| matches!(op.call, Call::Mseal { .. });
        assert!(plan.mseal || !ops.iter().any(|op| seals(&op)), "the world has no seals");
        assert!(outcomes.iter().all(|outcome| *outcome != Outcome::Dead), "run {run}: a process died");
        left -= ops.len() as u64;
        run += 1;
    }
}

/// Runs the program.
pub fn main() {
    let plan = plan();
    match plan.outsider {
        true => outsider::run(plan.seed, plan.calls, plan.per_run, plan.mseal),
        false => of_the_model(&plan),
    }
}
