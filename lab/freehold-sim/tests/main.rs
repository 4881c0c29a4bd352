//! Runs of small programs whose times can be told beforehand.

mod names;

use freehold_sim::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use freehold_sim::machine::MACHINES;
use freehold_sim::{Machine, Report, run, task};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[repr(align(64))]
#[derive(Default)]
struct Apart<T>(T);

fn machine() -> Machine {
    Machine::named("e5-2690v4").expect("a machine")
}

/// Without work between accesses and without a moment for the one that has a line, so that sums come out even.
fn bare() -> Machine {
    let text = MACHINES.iter().find(|(name, _)| *name == "e5-2690v4").expect("a machine").1;
    let text = text.lines().map(|line| match line.split_once(" = ") {
        Some(("work", _)) => "work = 0",
        Some(("hold", _)) => "hold = 0",
        _ => line,
    });
    Machine::parse(&text.collect::<Vec<_>>().join("\n")).expect("a machine")
}

/// So many tasks count in one word.
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
fn a_run_is_the_same_to_the_digit() {
    let once = |seed| {
        let (report, _) = counters(&machine(), 56, seed);
        (report.elapsed_ns, report.transfers, report.turns, report.busy_ns, report.lines[0].lost_ns)
    };
    assert_eq!(once(7), once(7));
    assert_ne!(once(7), once(8), "the seed makes a difference");
}

#[test]
fn a_word_of_one_processor_costs_what_the_processor_says() {
    let (report, sum) = counters(&bare(), 1, 1);
    assert_eq!(sum, 1000);
    // One line from memory, then 1000 times a hit and a locked instruction.
    assert_eq!(report.elapsed_ns, 96 + 6800);
    assert_eq!((report.transfers, report.lines.len()), (0, 0));
}

#[test]
fn a_line_is_in_one_place_at_a_time() {
    for cpus in [2, 14, 56] {
        let (report, sum) = counters(&bare(), cpus, 1);
        assert_eq!(sum, 1000 * cpus as u64);
        // However many want it, passing it on takes what it takes: the line is never in two hands.
        let line = &report.lines[0];
        assert!(line.transfers >= 900 * cpus as u64, "{line}");
        assert!(report.elapsed_ns >= line.transfers, "{} ns for {line}", report.elapsed_ns);
        assert!(line.places[0].0.file().ends_with("tests/main.rs"), "{line}");
    }
    let (near, _) = counters(&bare(), 14, 1);
    let per_transfer = near.elapsed_ns / near.lines[0].transfers;
    assert!((44..60).contains(&per_transfer), "{per_transfer} ns");
}

/// A processor whose exchange failed tries again before others get the line.
#[test]
fn exchanges_that_fail_do_not_starve_each_other() {
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
fn lines_of_their_own_do_not_meet() {
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
    // Those of the second socket have their first line from there as well.
    assert_eq!(many.elapsed_ns, one.elapsed_ns);
}

#[test]
fn a_spin_lock_is_exclusive_and_a_long_wait_costs_the_host_nothing() {
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
fn tasks_sleep_until_they_are_woken() {
    let (word, seen) = (Apart(AtomicU32::new(0)), RefCell::new(Vec::new()));
    let sleeper = |number: usize| {
        // In the order of their numbers.
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
            // Ten slices' time, in steps.
            (0..300).for_each(|_| task::work(100_000));
            ends.borrow_mut().push(task::now_ns().expect("a run"));
        }
    });
    let report = run(&machine(), 2, 1, tasks);
    let first = ends.borrow()[0];
    assert!(report.elapsed_ns >= 3 * 30_000_000);
    assert!(first > 2 * 30_000_000, "they take turns: the first ends after {first} ns");
}

#[test]
fn sleeping_until_a_time_takes_that_time() {
    let report = run(&machine(), 1, 1, [|| task::sleep_until(5_000_000)]);
    assert_eq!(report.elapsed_ns, 5_002_500, "and being woken");
}

/// Two want a line that nobody has: the second has it from the first.
#[test]
fn a_line_from_memory_comes_to_one_after_the_other() {
    let of = |kind: fn(&AtomicU64)| {
        let word = Apart(AtomicU64::new(0));
        run(&bare(), 2, 1, [0, 1].map(|_| || kind(&word.0))).elapsed_ns
    };
    let loads = of(|word| {
        word.load(Ordering::Relaxed);
    });
    assert_eq!(loads, 96 + 18 + 1, "a copy of the first one's");
    let stores = of(|word| word.store(1, Ordering::Relaxed));
    assert_eq!(stores, 96 + 44 + 1, "taken from it");
}

/// A processor whose clock is behind falls idle, and finds a task that was woken later.
#[test]
fn no_task_runs_before_it_was_woken() {
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
fn a_cluster_is_nearer_than_its_socket() {
    let machine = Machine::named("epyc-9654").expect("a machine");
    assert_eq!([0, 7, 8, 95, 96, 192, 200].map(|cpu| machine.cluster_of(cpu)), [0, 0, 1, 11, 12, 0, 1]);
    // The first processor changes a line that another one has changed.
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
    // From memory to that one, and on to the first.
    assert_eq!([1, 8, 96, 192].map(of), [118 + 19, 118 + 105, 118 + 205, 118 + 1]);
}

#[test]
fn memory_of_a_socket_is_shared_by_its_processors() {
    let page = || (0..1000).for_each(|_| task::zeroes(4096));
    let of = |cpus: usize| run(&bare(), cpus, 1, (0..cpus).map(|_| page)).elapsed_ns;
    let (one, few, many) = (of(1), of(3), of(14));
    assert_eq!(one, 431_158, "9.5 bytes a nanosecond");
    assert!(few < one * 101 / 100, "{few} of {one}");
    let bytes_a_ns = 14.0 * 4096.0 * 1000.0 / many as f64;
    assert!((33.5..34.01).contains(&bytes_a_ns), "{bytes_a_ns}");
}

#[test]
fn an_interrupt_costs_both_sides() {
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
fn outside_of_a_run_nothing_takes_time() {
    let word = AtomicU32::new(5);
    assert_eq!(word.fetch_add(1, Ordering::SeqCst), 5);
    fence(Ordering::SeqCst);
    task::sleep(&word, 6);
    task::relax();
    assert_eq!((task::current(), task::cpu(), task::now_ns()), (None, None, None));
    assert_eq!(size_of::<AtomicU32>(), 4);
}

#[test]
fn a_panic_ends_the_run_and_the_next_one_is_as_new() {
    let word = Apart(AtomicU32::new(0));
    let waits: Box<dyn FnOnce()> = Box::new(|| task::sleep(&word.0, 0));
    let fails: Box<dyn FnOnce()> = Box::new(|| panic!("as it must"));
    let failed = catch_unwind(AssertUnwindSafe(|| run(&machine(), 2, 1, [waits, fails])));
    assert!(failed.is_err());
    assert_eq!(counters(&machine(), 2, 1).1, 2000);
}

#[test]
fn tasks_that_wait_for_nobody_are_an_error() {
    let word = Apart(AtomicU32::new(0));
    let stuck = catch_unwind(AssertUnwindSafe(|| run(&machine(), 1, 1, [|| task::sleep(&word.0, 0)])));
    let why = *stuck.expect_err("nobody wakes it").downcast::<String>().expect("a message");
    assert_eq!(why, "no task can go on: 1 are left, of which 1 sleep and 0 spin");
}

#[test]
fn machines_are_read_and_mistakes_named() {
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
    assert!(why(&good.replace("hit = 1.3", "hit = -1")).contains("-1 ns: between 0 and 1000 s"));
    assert!(why(&good.replace("sockets = 2", "sockets = 200")).contains("5600 processors"));
    assert!(why(&good.replace("smt = 1.6", "smt = 0.5")).contains("a factor between 1 and 100"));
    assert!(
        why(&good.replace("threads = 2", "threads = 2\nclusters = 3")).contains("14 cores in 3 clusters")
    );
    let unknown = Machine::named("none").expect_err("none").to_string();
    assert!(MACHINES.iter().all(|(name, _)| unknown.contains(name)), "{unknown}");
}

#[test]
fn figures_of_a_machine_can_be_changed() {
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
    assert!(why("costs.smt=1").contains("no costs"));
    assert!(why("cost.threads=1").contains("threads"));
    assert!(why("cost.smt=0").contains("a factor between"));
}

#[test]
fn numbers_of_processors_are_of_the_machine() {
    assert_eq!(machine().some_cpus("1,56"), Ok(vec![1, 56]));
    for (list, why) in [("0", "1 to 56"), ("1,57", "57"), ("", "no number"), ("1,x", "\"x\" is no number")] {
        let error = machine().some_cpus(list).expect_err("bad").to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn processors_are_numbered_core_by_core() {
    let machine = machine();
    assert_eq!(machine.cpus(), 56);
    assert_eq!([0, 13, 14, 27, 28, 41, 42, 55].map(|cpu| machine.socket_of(cpu)), [0, 0, 1, 1, 0, 0, 1, 1]);
    assert_eq!(machine.core_of(28), 0);
}
