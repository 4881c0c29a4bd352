//! Instructions per operation of the range map and of a `BTreeMap`, counted by Valgrind.
//!
//! `cargo bench --bench range_instructions`. The program runs itself twice under callgrind with different
//! numbers of operations, [`FEW`] and [`MANY`]. The difference of the two counts excludes the setup; the
//! program prints this difference per operation. The operations are those of `common.rs`, so a new operation
//! is added there. The row `nothing` is the cost of picking a random place; every other row includes this
//! cost. If Valgrind is missing, the program prints an error and ends.

mod common;

use std::process::{Command, Stdio};

use common::{Freehold, SIZES, Std, Subject, Workload, operations};

/// Number of operations in the shorter of the two runs.
const FEW: u64 = 1_000;
/// Number of operations in the longer run.
const MANY: u64 = 11_000;

/// The range map with the node size of the engine.
type Ours = Freehold<{ freehold_range::FANOUT }>;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, child, subject, operation, size, times] = &arguments[..]
        && child == "child"
    {
        let (size, times) = (size.parse().unwrap(), times.parse().unwrap());
        return if subject == Ours::NAME {
            run::<Ours>(operation, size, times)
        } else {
            run::<Std>(operation, size, times)
        };
    }
    for (operation, _) in
        [("nothing", Workload::<Ours>::nothing as common::Step<Ours>)].into_iter().chain(operations())
    {
        for subject in [Ours::NAME, Std::NAME] {
            if operation.ends_with("far") && subject == Std::NAME {
                continue;
            }
            for size in SIZES {
                match (count(subject, operation, size, FEW), count(subject, operation, size, MANY)) {
                    (Some(few), Some(many)) => {
                        let each = (many - few) as f64 / (MANY - FEW) as f64;
                        println!("{operation:14} {subject:10} {size:6} entries: {each:7.1} instructions");
                    }
                    _ => return println!("cannot count instructions: valgrind failed or is not installed"),
                }
            }
        }
    }
}

/// Repeats an operation in the child that Valgrind runs.
fn run<S: Subject>(operation: &str, size: u64, times: u64) {
    let mut workload = Workload::<S>::new(size);
    let step = operations::<S>().into_iter().find(|(name, _)| *name == operation);
    let step = step.map_or(Workload::nothing as common::Step<S>, |(_, step)| step);
    for _ in 0..times {
        step(&mut workload);
    }
}

/// Returns the number of instructions of a whole run.
fn count(subject: &str, operation: &str, size: u64, times: u64) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().ok()?)
        .args(["child", subject, operation, &size.to_string(), &times.to_string()])
        .stdout(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}
