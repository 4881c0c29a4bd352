//! Runs of small programs whose times can be calculated.
//!
//! Each test runs a few tasks on a machine with known costs ([`bare`]) and compares the virtual time or the
//! counts in the report with a calculation. Covered: transfers of lines, waiting and waking, time slices,
//! bandwidth, interrupts, and the files of machines. `names.rs` has the tests of names.
//!
//! The expected times are sums of figures in `machines/e5-2690v4.toml`, so a changed figure changes them. If
//! a rule of `line.rs` or `world.rs` changes, calculate the new time here; do not only copy the new number.

mod names;

use freehold_sim::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use freehold_sim::machine::MACHINES;
use freehold_sim::{Machine, Report, run, task};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A word that is alone on its cache line.
#[repr(align(64))]
#[derive(Default)]
struct Apart<T>(T);

/// Returns the machine of most tests: two sockets, 56 processors.
fn machine() -> Machine {
    Machine::named("e5-2690v4").expect("a machine")
}

/// Returns a machine on which work between accesses takes no time and no processor holds a line, so that
/// times can be added up.
fn bare() -> Machine {
    let text = MACHINES.iter().find(|(name, _)| *name == "e5-2690v4").expect("a machine").1;
    let text = text.lines().map(|line| match line.split_once(" = ") {
        Some(("work", _)) => "work = 0",
        Some(("hold", _)) => "hold = 0",
        _ => line,
    });
    Machine::parse(&text.collect::<Vec<_>>().join("\n")).expect("a machine")
}

/// Runs tasks that all increment one word. Returns the report and the final count.
fn counters(machine: &Machine, cpus: usize, seed: u64) -> (Report, u64) {
    let word = Apart(AtomicU64::new(0));
    let count = || {
        for _ in 0..1000 {
            word.0.fetch_add(1, Ordering::Relaxed);
        }
    };
    let report = run(machine, cpus, seed, (0..cpus).map(|_| count));
    (report, word.0.into_inner())
}

#[test]
fn runs_with_the_same_seed_are_identical() {
    let once = |seed| {
        let (report, _) = counters(&machine(), 56, seed);
        (report.elapsed_ns, report.transfers, report.turns, report.busy_ns, report.lines[0].lost_ns)
    };
    assert_eq!(once(7), once(7));
    assert_ne!(once(7), once(8), "the seed makes a difference");
}

#[test]
fn word_of_one_processor_costs_one_memory_read_and_hits() {
    let (report, sum) = counters(&bare(), 1, 1);
    assert_eq!(sum, 1000);
    // The time of one transfer from memory, plus the time of 1000 hits with a locked instruction each.
    assert_eq!(report.elapsed_ns, 96 + 6800);
    assert_eq!((report.transfers, report.lines.len()), (0, 0));
}

#[test]
fn transfers_of_one_line_do_not_overlap() {
    for cpus in [2, 14, 56] {
        let (report, sum) = counters(&bare(), cpus, 1);
        assert_eq!(sum, 1000 * cpus as u64);
        // Transfers of one line do not overlap, for any number of processors.
        let line = &report.lines[0];
        assert!(line.transfers >= 900 * cpus as u64, "{line}");
        assert!(report.elapsed_ns >= line.transfers, "{} ns for {line}", report.elapsed_ns);
        assert!(line.places[0].0.file().ends_with("tests/main.rs"), "{line}");
    }
    let (near, _) = counters(&bare(), 14, 1);
    let per_transfer = near.elapsed_ns / near.lines[0].transfers;
    assert!((44..60).contains(&per_transfer), "{per_transfer} ns");
}

/// A processor whose exchange failed tries again before other processors get the line.
#[test]
fn failed_exchange_succeeds_at_the_next_try() {
    let word = Apart(AtomicU64::new(0));
    let tries = RefCell::new(0);
    let count = || {
        for _ in 0..100 {
            let mut now = word.0.load(Ordering::Relaxed);
            loop {
                *tries.borrow_mut() += 1;
                match word.0.compare_exchange(now, now + 1, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(other) => now = other,
                }
            }
        }
    };
    run(&machine(), 28, 1, (0..28).map(|_| count));
    assert_eq!(word.0.into_inner(), 2800);
    assert!(*tries.borrow() <= 2 * 2800 + 28, "{} tries", tries.borrow());
}

#[test]
fn words_on_separate_lines_are_not_transferred() {
    let words: Vec<Apart<AtomicU64>> = (0..56).map(|_| Apart::default()).collect();
    let of = |count: usize| {
        let tasks = words[..count].iter().map(|word| {
            || {
                (0..1000).for_each(|_| {
                    word.0.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        run(&bare(), count, 1, tasks)
    };
    let (one, many) = (of(1), of(28));
    assert_eq!(many.transfers, 0);
    // Processors of the second socket also read their first line from their own memory.
    assert_eq!(many.elapsed_ns, one.elapsed_ns);
}

#[test]
fn spinning_tasks_are_parked_until_the_lock_is_free() {
    let (lock, inside) = (Apart(AtomicU32::new(0)), RefCell::new(0u64));
    let long = 50_000_000;
    let tasks = (0..8).map(|_| {
        || {
            while lock.0.swap(1, Ordering::Acquire) == 1 {
                while lock.0.load(Ordering::Relaxed) == 1 {
                    task::relax();
                }
            }
            let mut held = inside.try_borrow_mut().expect("one at a time");
            *held += 1;
            task::work(long);
            drop(held);
            lock.0.store(0, Ordering::Release);
        }
    });
    let report = run(&machine(), 8, 1, tasks);
    assert_eq!(*inside.borrow(), 8);
    assert!(report.elapsed_ns >= 8 * long && report.elapsed_ns < 8 * long + 100_000, "{}", report.elapsed_ns);
    assert!(report.turns < 200_000, "{} turns for waits that change nothing", report.turns);
}

#[test]
fn sleeping_tasks_continue_after_wake() {
    let (word, seen) = (Apart(AtomicU32::new(0)), RefCell::new(Vec::new()));
    let sleeper = |number: usize| {
        // The tasks go to sleep in the order of their numbers.
        task::work(1000 * number as u64);
        while word.0.load(Ordering::Acquire) == 0 {
            task::sleep(&word.0, 0);
        }
        seen.borrow_mut().push((number, task::now_ns().expect("a run") >= 1_000_000));
    };
    let waker = || {
        task::work(1_000_000);
        word.0.store(1, Ordering::Release);
        task::wake(&word.0, 1);
        task::wake(&word.0, usize::MAX);
    };
    let all = (0..4).map(|number| -> Box<dyn FnOnce()> {
        if number < 3 { Box::new(move || sleeper(number)) } else { Box::new(waker) }
    });
    let report = run(&machine(), 4, 1, all);
    assert_eq!(*seen.borrow(), [(0, true), (1, true), (2, true)]);
    assert_eq!(report.sleeps, 3);
}

#[test]
fn tasks_share_processors_by_time_slices() {
    let ends = RefCell::new(Vec::new());
    let tasks = (0..6).map(|_| {
        || {
            // The time of ten slices, in steps.
            (0..300).for_each(|_| task::work(100_000));
            ends.borrow_mut().push(task::now_ns().expect("a run"));
        }
    });
    let report = run(&machine(), 2, 1, tasks);
    let first = ends.borrow()[0];
    assert!(report.elapsed_ns >= 3 * 30_000_000);
    assert!(first > 2 * 30_000_000, "the tasks did not share processors: the first ended after {first} ns");
}

#[test]
fn sleep_until_ends_at_the_given_time() {
    let report = run(&machine(), 1, 1, [|| task::sleep_until(5_000_000)]);
    assert_eq!(report.elapsed_ns, 5_002_500, "the time and the wake-up latency");
}

/// Two processors need a line that is only in memory. The second processor gets the line from the first
/// processor.
#[test]
fn second_processor_gets_the_line_from_the_first() {
    let of = |kind: fn(&AtomicU64)| {
        let word = Apart(AtomicU64::new(0));
        run(&bare(), 2, 1, [0, 1].map(|_| || kind(&word.0))).elapsed_ns
    };
    let loads = of(|word| {
        word.load(Ordering::Relaxed);
    });
    assert_eq!(loads, 96 + 18 + 1, "copied from the first processor");
    let stores = of(|word| word.store(1, Ordering::Relaxed));
    assert_eq!(stores, 96 + 44 + 1, "transferred from the first processor");
}

/// A processor with an early clock becomes idle, and finds a task that another processor woke at a later
/// virtual time.
#[test]
fn woken_task_does_not_run_before_its_wake_up() {
    let text = MACHINES[0].1.replace("sleep = 1200", "sleep = 0");
    let machine = Machine::parse(&text).expect("a machine");
    for until in (98_000..102_000).step_by(50) {
        let (word, ran, woken) = (Apart(AtomicU32::new(0)), Cell::new(0), Cell::new(0));
        let now = || task::now_ns().expect("a run");
        let tasks: [Box<dyn FnOnce()>; 4] = [
            Box::new(|| {
                task::work(100_000);
                word.0.store(1, Ordering::Release);
                task::wake(&word.0, 1);
                woken.set(now());
                task::work(100_000);
            }),
            Box::new(|| {
                task::sleep(&word.0, 0);
                ran.set(now());
            }),
            Box::new(|| {}),
            Box::new(|| task::work(until)),
        ];
        run(&machine, 2, 1, tasks);
        assert!(ran.get() >= woken.get(), "{until}: {} before {}", ran.get(), woken.get());
    }
}

#[test]
fn transfer_within_a_cluster_is_cheaper_than_within_the_socket() {
    let machine = Machine::named("epyc-9654").expect("a machine");
    assert_eq!([0, 7, 8, 95, 96, 192, 200].map(|cpu| machine.cluster_of(cpu)), [0, 0, 1, 11, 12, 0, 1]);
    // The first processor changes a line that another processor has changed.
    let of = |other: usize| {
        let word = Apart(AtomicU64::new(0));
        let tasks = (0..=other).map(|number| {
            let word = &word.0;
            move || {
                if number == other {
                    word.store(1, Ordering::Relaxed);
                } else if number == 0 {
                    task::work(10_000);
                    word.store(2, Ordering::Relaxed);
                }
            }
        });
        run(&machine, 384, 1, tasks).lines[0].lost_ns
    };
    // The line comes from memory to the other processor, and from there to the first processor.
    assert_eq!([1, 8, 96, 192].map(of), [118 + 19, 118 + 105, 118 + 205, 118 + 1]);
}

#[test]
fn processors_of_a_socket_share_its_memory_bandwidth() {
    let page = || (0..1000).for_each(|_| task::zeroes(4096));
    let of = |cpus: usize| run(&bare(), cpus, 1, (0..cpus).map(|_| page)).elapsed_ns;
    let (one, few, many) = (of(1), of(3), of(14));
    assert_eq!(one, 431_158, "9.5 bytes per nanosecond");
    assert!(few < one * 101 / 100, "{few} of {one}");
    let bytes_a_ns = 14.0 * 4096.0 * 1000.0 / many as f64;
    assert!((33.5..34.01).contains(&bytes_a_ns), "{bytes_a_ns}");
}

#[test]
fn interrupt_delays_the_interrupted_processor() {
    let word = Apart(AtomicU32::new(0));
    let worker = || {
        (0..100).for_each(|_| task::work(10_000));
        word.0.store(1, Ordering::Relaxed);
    };
    let alone = run(&bare(), 1, 1, [worker]).elapsed_ns;
    let flusher = || task::interrupt(0..2);
    let both = run(&bare(), 2, 1, [Box::new(worker) as Box<dyn FnOnce()>, Box::new(flusher)]);
    assert_eq!(both.interrupts, 1);
    assert_eq!(both.elapsed_ns, alone + 700);
}

#[test]
fn operations_outside_a_run_take_no_virtual_time() {
    let word = AtomicU32::new(5);
    assert_eq!(word.fetch_add(1, Ordering::SeqCst), 5);
    fence(Ordering::SeqCst);
    task::sleep(&word, 6);
    task::relax();
    assert_eq!((task::current(), task::cpu(), task::now_ns()), (None, None, None));
    assert_eq!(size_of::<AtomicU32>(), 4);
}

#[test]
fn run_after_a_panic_starts_clean() {
    let word = Apart(AtomicU32::new(0));
    let waits: Box<dyn FnOnce()> = Box::new(|| task::sleep(&word.0, 0));
    let fails: Box<dyn FnOnce()> = Box::new(|| panic!("expected panic"));
    let failed = catch_unwind(AssertUnwindSafe(|| run(&machine(), 2, 1, [waits, fails])));
    assert!(failed.is_err());
    assert_eq!(counters(&machine(), 2, 1).1, 2000);
}

#[test]
fn run_panics_if_no_task_can_run() {
    let word = Apart(AtomicU32::new(0));
    let stuck = catch_unwind(AssertUnwindSafe(|| run(&machine(), 1, 1, [|| task::sleep(&word.0, 0)])));
    let why = *stuck.expect_err("no task wakes it").downcast::<String>().expect("a message");
    assert_eq!(why, "no task can run: 1 left, 1 asleep, 0 spinning");
}

#[test]
fn machine_files_parse_and_errors_name_the_field() {
    let cpus = MACHINES.iter().map(|(name, text)| {
        let machine = Machine::parse(text).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(Machine::named(name).as_ref(), Ok(&machine));
        (*name, machine.cpus())
    });
    let known = [
        ("e5-2690v4", 56),
        ("e7-4890v2", 120),
        ("e5-2680", 32),
        ("vm-48", 48),
        ("epyc-9654", 384),
        ("zen5-vm-2", 2),
    ];
    assert!(cpus.eq(known));
    let why = |text: &str| Machine::parse(text).expect_err("bad").to_string();
    let good = MACHINES[0].1;
    assert!(why("title = 1").contains("title"));
    assert!(why(&good.replace("hit = 1.3", "hit = -1")).contains("-1 ns is not between 0 and 1000 s"));
    assert!(why(&good.replace("sockets = 2", "sockets = 200")).contains("5600 processors"));
    assert!(why(&good.replace("smt = 1.6", "smt = 0.5")).contains("a factor between 1 and 100"));
    assert!(
        why(&good.replace("threads = 2", "threads = 2\nclusters = 3")).contains("14 cores in 3 clusters")
    );
    let unknown = Machine::named("none").expect_err("none").to_string();
    assert!(MACHINES.iter().all(|(name, _)| unknown.contains(name)), "{unknown}");
}

#[test]
fn changed_replaces_figures_of_a_machine() {
    let changed = |changes: &[&str]| {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        Machine::changed("e5-2690v4", &changes)
    };
    assert_eq!(changed(&[]), Machine::named("e5-2690v4"));
    let text = MACHINES[0].1.replace("smt = 1.6", "smt = 1").replace("socket = 34", "socket = 500.5");
    let title = "2 x Xeon E5-2690 v4, 56 processors";
    let text = text.replace(title, &format!("{title}, with cost.smt=1, memory.socket=500.5"));
    assert_eq!(changed(&["cost.smt=1", "memory.socket=500.5"]), Machine::parse(&text));
    let why = |change| changed(&[change]).expect_err("bad").to_string();
    assert!(why("smt=1").contains("SECTION.KEY=VALUE"));
    assert!(why("cost.smt").contains("SECTION.KEY=VALUE"));
    assert!(why("cost.smt=fast").contains("SECTION.KEY=VALUE"));
    assert!(why("costs.smt=1").contains("no section costs"));
    assert!(why("cost.threads=1").contains("threads"));
    assert!(why("cost.smt=0").contains("a factor between"));
}

#[test]
fn some_cpus_accepts_only_processors_of_the_machine() {
    assert_eq!(machine().some_cpus("1,56"), Ok(vec![1, 56]));
    for (list, why) in
        [("0", "1 to 56"), ("1,57", "57"), ("", "not a number"), ("1,x", "\"x\" is not a number")]
    {
        let error = machine().some_cpus(list).expect_err("bad").to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn first_processors_of_all_cores_are_numbered_first() {
    let machine = machine();
    assert_eq!(machine.cpus(), 56);
    assert_eq!([0, 13, 14, 27, 28, 41, 42, 55].map(|cpu| machine.socket_of(cpu)), [0, 0, 1, 1, 0, 0, 1, 1]);
    assert_eq!(machine.core_of(28), 0);
}
