//! Instructions per operation of one thread, counted by Valgrind, which no noise of the machine disturbs.
//!
//! `cargo bench --bench instructions`. The program runs itself twice under callgrind, once with more operations than the
//! other time, and prints the difference; where Valgrind is missing it says so and does nothing.

use freehold::fault::Access;
use freehold::space::Locking;
use freehold_bench::{LockedTree, PAGE, SIZES, Space, Subject, area};
use std::hint::black_box;
use std::process::{Command, Stdio};

const FEW: u64 = 1_000;
const MANY: u64 = 5_000;
const OPERATIONS: [&str; 3] = ["lookup", "mmap+munmap", "split+merge"];
const ENGINE: [&str; 3] = ["fault", "fault+zap", "populate+fork"];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, child, subject, operation, areas, times] = &arguments[..]
        && child == "child"
    {
        let (areas, times) = (areas.parse().expect("a number"), times.parse().expect("a number"));
        match subject.as_str() {
            Space::NAME => run::<Space>(operation, areas, times),
            _ => run::<LockedTree>(operation, areas, times),
        }
        return;
    }
    for operation in OPERATIONS {
        for subject in [Space::NAME, LockedTree::NAME] {
            for areas in SIZES {
                report(subject, operation, areas);
            }
        }
    }
    for operation in ENGINE {
        report(Space::NAME, operation, 10);
    }
}

fn run<S: Subject>(operation: &str, areas: u64, times: u64) {
    match operation {
        "fault" | "fault+zap" | "populate+fork" => return engine_only(operation, times),
        _ => {}
    }
    let subject = S::with_areas(areas);
    for n in 0..times {
        match operation {
            "lookup" => drop(black_box(subject.lookup(area(n, areas) + PAGE))),
            "mmap+munmap" => subject.map_unmap(0),
            _ => subject.split_merge(area(n, areas)),
        }
    }
}

fn engine_only(operation: &str, pages: u64) {
    let space = Space::new(1 << 30, Locking::default());
    let at = space.map(MANY * PAGE);
    for n in 0..pages {
        space.process().space().handle_fault(at + n * PAGE, Access::WRITE).expect("room");
    }
    match operation {
        "fault+zap" => space.process().munmap(at, MANY * PAGE).expect("mapped"),
        // Not dropped: the end of the child is not part of it.
        "populate+fork" => std::mem::forget(space.process().fork().expect("memory")),
        _ => {}
    }
    std::mem::forget(space);
}

fn report(subject: &str, operation: &str, areas: u64) {
    match (count(subject, operation, areas, FEW), count(subject, operation, areas, MANY)) {
        (Some(few), Some(many)) => {
            let each = many.saturating_sub(few) as f64 / (MANY - FEW) as f64;
            println!("{operation:14} {subject:20} {areas:6} areas: {each:8.1} instructions");
        }
        _ => println!("{operation:14} {subject:20} {areas:6} areas: no count, valgrind does not run here"),
    }
}

/// The number of instructions of a whole run.
fn count(subject: &str, operation: &str, areas: u64, times: u64) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().ok()?)
        .args(["child", subject, operation, &areas.to_string(), &times.to_string()])
        .stdout(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("Collected"))?;
    line.rsplit(' ').next()?.trim().parse().ok()
}
