//! Instructions per operation of one thread, counted by Valgrind, so that noise of the machine has no effect.
//!
//! ```text
//! cargo bench --bench instructions                  prints the table
//! cargo bench --bench instructions -- fork zap      prints these rows
//! cargo bench --bench instructions -- --check       compares with `instructions.txt`; fails if a count grew by more than 3 %
//! cargo bench --bench instructions -- --save        prints the table and writes `instructions.txt`
//! ```
//!
//! The program runs itself under callgrind once per figure. Callgrind counts only the instructions inside
//! [`measured`]. If Valgrind is missing, the program prints an error and fails.
//!
//! A change of the engine that makes an operation longer fails `--check`. If the growth is intended, `--save`
//! accepts it. A new operation needs a name in one of the lists below and an arm in [`shared`], [`sized`] or
//! [`by_page`].

use freehold::counted::Counted;
use freehold::fault::Access;
use freehold::platform::Host;
use freehold::space::{AddressSpace, Locking, Prot};
use freehold_bench::{LockedTree, PAGE, SIZES, STACK, Space, Subject, area};
use freehold_machine::{Machine, Process};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::Range;
use std::process::{Command, ExitCode, Stdio};

/// Number of counted operations. A figure is the mean of these operations.
const TIMES: u64 = 2_000;
/// Number of operations before the counted operations.
const WARM: u64 = 200;
/// Number of pages for figures per page.
const PAGES: u64 = 1 << 14;
/// Maximum growth that `--check` accepts, in percent.
const GROWTH: f64 = 3.0;
/// The counts of the last accepted run.
const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");

/// Operations of every subject, measured at every number of areas.
const SHARED: [&str; 3] = ["lookup", "mmap+munmap", "split+merge"];
/// Operations measured only on the engine, at every number of areas.
const SIZED: [&str; 6] =
    ["mmap", "munmap", "mmap+touch+munmap", "munmap-touched", "fault", "split+merge-touched"];
/// Changes of the engine that are measured once with an exclusive writer and once with a range writer. The
/// number of areas is [`CLAIMED_AREAS`].
const CLAIMED: [&str; 4] = ["mmap+munmap", "mmap+munmap-placed", "split+merge", "growth"];
/// Number of areas of the rows of [`CLAIMED`].
const CLAIMED_AREAS: u64 = 1_000;
/// The name of the engine in rows whose changes are made by range writers.
const CLAIMING: &str = "freehold, claiming";
/// Operations measured only on the engine, with the smallest number of areas. Such a process has few page
/// tables, and each table has few entries.
const SMALL: [&str; 1] = ["exit"];
/// Operations of the host. A lookup enters a read section. In a kernel, a read section costs almost nothing;
/// this row shows its cost on the host of these benches.
const HOST: [&str; 1] = ["read-section"];
/// Operations measured only on the engine, per page of one large area.
const BY_PAGE: [&str; 6] = [
    "fault-per-page",
    "fault-among-walks",
    "aging-per-page",
    "zap-per-page",
    "fork-per-page",
    "mprotect-per-page",
];
/// The rows of [`BY_PAGE`] with walks that age pages.
const AGING: [&str; 2] = ["fault-among-walks", "aging-per-page"];
/// Number of faults between two walks of the row `fault-among-walks`.
const AGED: u64 = 256;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [child, subject, operation, areas] = &arguments[..]
        && child == "child"
    {
        run(subject, operation, areas.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    let (options, names): (Vec<_>, Vec<_>) =
        arguments.iter().map(String::as_str).partition(|argument| argument.starts_with("--"));
    if let Some(unknown) = options.iter().find(|option| !["--check", "--save"].contains(option)) {
        eprintln!("unknown option {unknown}, expected --check or --save");
        return ExitCode::FAILURE;
    }
    let Some(counts) = table(&names) else {
        eprintln!("cannot count instructions: valgrind failed or is not installed");
        return ExitCode::FAILURE;
    };
    if options.contains(&"--save") {
        let old = if names.is_empty() { Counts::new() } else { baseline() };
        let text: String =
            old.into_iter().chain(counts.clone()).collect::<Counts>().iter().map(line).collect();
        std::fs::write(BASELINE, text).expect("the baseline can be written");
    }
    match options.contains(&"--check") {
        true => check(&counts),
        false => ExitCode::SUCCESS,
    }
}

/// Instructions by name: "operation, subject, areas".
type Counts = BTreeMap<String, f64>;

/// Returns a line of the baseline.
fn line((name, count): (&String, &f64)) -> String {
    format!("{name} = {count:.1}\n")
}

/// The counts of the last accepted run.
fn baseline() -> Counts {
    let text = std::fs::read_to_string(BASELINE).unwrap_or_default();
    let parsed = text.lines().filter_map(|line| line.split_once(" = "));
    parsed.map(|(name, count)| (name.to_owned(), count.parse().expect("a number"))).collect()
}

/// Prints the changes since the baseline. Fails if the instructions of an operation have grown by more than
/// [`GROWTH`] percent.
fn check(counts: &Counts) -> ExitCode {
    let accepted = baseline();
    let mut grown = 0;
    for (name, count) in counts {
        let Some(before) = accepted.get(name) else {
            println!("{name}: no baseline");
            continue;
        };
        let percent = (count / before - 1.0) * 100.0;
        if percent > GROWTH {
            grown += 1;
        }
        if percent.abs() > GROWTH {
            println!("{name}: {before:.1} before, {count:.1} now ({percent:+.1} %)");
        }
    }
    match grown {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Counts the instructions of the operations that `names` selects, or of all operations, and prints a row for
/// each.
fn table(names: &[&str]) -> Option<Counts> {
    let wanted = |operation: &&&str| names.is_empty() || names.iter().any(|name| operation.starts_with(name));
    let mut counts = Counts::new();
    let heading = SIZES.map(|areas| format!("{areas:>9}")).concat();
    println!("{:19} {:20}{heading} areas", "instructions", "");
    for operation in SHARED.iter().filter(wanted) {
        for subject in [Space::NAME, LockedTree::NAME] {
            row(&mut counts, operation, subject, &SIZES)?;
        }
    }
    for operation in SIZED.iter().filter(wanted) {
        row(&mut counts, operation, Space::NAME, &SIZES)?;
    }
    for operation in CLAIMED.iter().filter(wanted) {
        for subject in [Space::NAME, CLAIMING].into_iter().skip(usize::from(SHARED.contains(operation))) {
            row(&mut counts, operation, subject, &[CLAIMED_AREAS])?;
        }
    }
    for operation in HOST.iter().chain(&SMALL).chain(&BY_PAGE).filter(wanted) {
        row(&mut counts, operation, Space::NAME, &SIZES[..1])?;
    }
    Some(counts)
}

/// Counts and prints the instructions of an operation at each number of areas. Returns `None` if Valgrind
/// fails.
fn row(counts: &mut Counts, operation: &str, subject: &str, sizes: &[u64]) -> Option<()> {
    print!("{operation:19} {subject:20}");
    let before = SIZES.iter().take_while(|areas| **areas < sizes[0]).count();
    print!("{:1$}", "", 9 * before);
    for &areas in sizes {
        let each = count(subject, operation, areas)?;
        print!("{each:9.1}");
        counts.insert(format!("{operation}, {subject}, {areas}"), each);
    }
    println!();
    Some(())
}

/// Returns the instructions of one operation, or of one page.
fn count(subject: &str, operation: &str, areas: u64) -> Option<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*measured*"])
        .arg(std::env::current_exe().ok()?)
        .args(["child", subject, operation, &areas.to_string()])
        .stdout(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("Collected"))?;
    let total: u64 = line.rsplit(' ').next()?.trim().parse().ok()?;
    let times = if BY_PAGE.contains(&operation) { PAGES } else { TIMES };
    Some(total as f64 / times as f64)
}

/// Runs the operation. Only this function is counted.
#[inline(never)]
fn measured(operation: &mut dyn FnMut()) {
    operation();
}

/// Repeats an operation. Calls `before` and `after` around each operation; they are not counted.
fn repeat<T>(mut before: impl FnMut(u64) -> T, mut operation: impl FnMut(&T), mut after: impl FnMut(T)) {
    for n in 0..WARM + TIMES {
        let given = before(n);
        match n < WARM {
            true => operation(&given),
            false => measured(&mut || operation(&given)),
        }
        after(given);
    }
}

/// Performs an operation in the child that Valgrind runs.
fn run(subject: &str, operation: &str, areas: u64) {
    match subject {
        _ if AGING.contains(&operation) => aging(operation),
        _ if BY_PAGE.contains(&operation) => by_page(operation),
        _ if HOST.contains(&operation) => repeat(drop, |()| _ = black_box(<Machine>::rcu_read()), drop),
        _ if SMALL.contains(&operation) => exit(areas),
        _ if SIZED.contains(&operation) => sized(operation, areas),
        CLAIMING if SHARED.contains(&operation) => shared(Space::claiming(areas), operation, areas),
        CLAIMING => placed(&Space::claiming(areas), operation, areas),
        Space::NAME if SHARED.contains(&operation) => shared(Space::with_areas(areas), operation, areas),
        Space::NAME => placed(&Space::with_areas(areas), operation, areas),
        _ => shared(LockedTree::with_areas(areas), operation, areas),
    }
}

/// Performs an operation of [`SHARED`].
fn shared<S: Subject>(subject: S, operation: &str, areas: u64) {
    let place = |n| area(n, areas);
    match operation {
        "lookup" => repeat(place, |at| _ = black_box(subject.lookup(at + PAGE)), drop),
        "mmap+munmap" => repeat(drop, |()| subject.map_unmap(0), drop),
        _ => repeat(place, |at| subject.split_merge(*at), drop),
    }
    std::mem::forget(subject);
}

/// Performs an operation of [`CLAIMED`] that is not one of [`SHARED`].
fn placed(space: &Space, operation: &str, areas: u64) {
    let place = |n| area(n, areas);
    match operation {
        "growth" => repeat(place, |at| space.grow_shrink(*at), drop),
        _ => repeat(place, |at| space.map_unmap_between(*at), drop),
    }
}

/// Performs an operation of [`SIZED`].
fn sized(operation: &str, areas: u64) {
    let space = Space::with_areas(areas);
    let map = |_| space.map(PAGE);
    let unmap = |at| space.process().munmap(at, PAGE).expect("mapped");
    let touch = |at| {
        space.process().space().handle_fault(at, Access::WRITE).expect("room");
    };
    let touched = |n| {
        let at = map(n);
        touch(at);
        at
    };
    match operation {
        "mmap" => {
            let mapped = Cell::new(0);
            repeat(drop, |()| mapped.set(map(0)), |()| unmap(mapped.get()));
        }
        "munmap" => repeat(map, |at| unmap(*at), drop),
        "munmap-touched" => repeat(touched, |at| unmap(*at), drop),
        "fault" => repeat(map, |at| touch(*at), unmap),
        "split+merge-touched" => {
            let place = |n| {
                let at = area(n, areas);
                touch(at + 2 * PAGE);
                at
            };
            repeat(place, |at| space.split_merge(*at), drop);
        }
        _ => repeat(drop, |()| unmap(touched(0)), drop),
    }
    std::mem::forget(space);
}

/// Forks a process. This is one function for all rows, so that the compiler generates the same code for any
/// number of rows.
#[inline(never)]
fn fork(process: &Process) -> Counted<AddressSpace<Machine>> {
    process.fork().expect("memory")
}

/// Measures the end of a child that has its own page of text, of heap and of stack.
fn exit(areas: u64) {
    let space = Space::with_areas(areas);
    let process = space.process();
    let child = |_| {
        let child = fork(process);
        for at in [area(0, areas), area(1, areas), STACK] {
            child.handle_fault(at, Access::WRITE).expect("room");
        }
        Cell::new(Some(child))
    };
    repeat(child, |child| drop(child.take()), drop);
    std::mem::forget(space);
}

/// Touches pages of an area.
fn touch(process: &Process, at: u64, pages: Range<u64>) {
    for n in pages {
        process.space().handle_fault(at + n * PAGE, Access::WRITE).expect("room");
    }
}

/// Maps an area of [`PAGES`] pages after a warm-up, so that every frame and table has been used once.
fn warm_area(space: &Space) -> u64 {
    let map = || space.map(PAGES * PAGE);
    let warm = map();
    touch(space.process(), warm, 0..PAGES);
    space.process().munmap(warm, PAGES * PAGE).expect("mapped");
    map()
}

/// Performs an operation of [`BY_PAGE`].
fn by_page(operation: &str) {
    let space = Space::new(1 << 30, Locking::default());
    let (process, at) = (space.process(), warm_area(&space));
    if operation != "fault-per-page" {
        touch(process, at, 0..PAGES);
    }
    match operation {
        "fault-per-page" => measured(&mut || touch(process, at, 0..PAGES)),
        "zap-per-page" => measured(&mut || process.munmap(at, PAGES * PAGE).expect("mapped")),
        // The child is not dropped, because its end must not be counted.
        "fork-per-page" => measured(&mut || std::mem::forget(fork(process))),
        _ => measured(&mut || process.mprotect(at, PAGES * PAGE, Prot::READ).expect("mapped")),
    }
    std::mem::forget(space);
}

/// Measures faults between walks that age all pages of the space, or the last of the walks.
fn aging(operation: &str) {
    let space = Space::aging(1 << 30);
    let (process, at) = (space.process(), warm_area(&space));
    process.note_ran();
    for first in (0..PAGES).step_by(AGED as usize) {
        let mut faults = || touch(process, at, first..first + AGED);
        match operation {
            "fault-among-walks" => measured(&mut faults),
            _ => faults(),
        }
        process.age_pages(0, u64::MAX);
        process.note_ran();
    }
    if operation == "aging-per-page" {
        touch(process, at, 0..PAGES);
        measured(&mut || _ = process.age_pages(0, u64::MAX));
    }
    std::mem::forget(space);
}
