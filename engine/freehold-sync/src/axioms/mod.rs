//! A checker of the shipped code: it runs the code, with its shipped orderings, in every execution that the
//! C11 memory model allows.
//!
//! loom treats `SeqCst` accesses as `AcqRel` and knows a total order of fences only. Entering a reader slot
//! relies on the total order of four `SeqCst` accesses. Under loom, fences that are not shipped replace that
//! order (`atomic::store_buffering_fence`). So this module checks the four accesses, and the code around
//! them, in unit tests. In these tests the facade of atomics is [`atomics`], and the fences that are not
//! shipped do not exist.
//!
//! The model is RC11 (Lahav, Vafeiadis, Kang, Hur, Dreyer: Repairing sequential consistency in C/C++11, PLDI
//! 2017), with the release sequences of C++20. For programs without fences, the definition of `SeqCst` in
//! C++20 allows the same executions as RC11. RC11 forbids cycles of program order and reads-from. So every
//! execution can be built event by event: the events of each thread are added in program order, and each read
//! takes its value from a write that already exists. [`explore`] builds all executions. To find the next
//! event of a thread, [`explore`] runs the thread's code from the start, with the values that the thread's
//! earlier reads returned. Programs are small: two or three threads, [`graph::MAX_EVENTS`] events.
//!
//! An access to a word that only one thread uses is performed at once, without interleaving.
//!
//! The model has no spurious failures of weak exchanges and no wake-ups. A wait ends when the word differs
//! from the given value, and orders nothing.
//!
//! `graph.rs` has executions and axioms, `run.rs` runs the code of threads, and `atomics.rs` has the facade.
//! `litmus.rs` tests the checker, and `slots.rs` tests the VMA lock. A test must have few threads and few
//! events, because the number of executions grows exponentially with both.
//! `cargo test --package freehold-sync` runs these tests.

pub(crate) mod atomics;
mod graph;
mod litmus;
mod run;
mod slots;

use crate::atomic::AtomicU32;
use crate::host::{Host, Killed, RcuHead};
use crate::rank::LockContext;
use core::ptr::NonNull;
use graph::{Action, Graph, Op};
use run::{Plain, Step};
use std::collections::{HashMap, HashSet};
use std::string::String;
use std::vec::Vec;

/// A thread of a program. The thread must act the same whenever its reads return the same values.
type Thread<'a> = &'a dyn Fn();

/// The result of exploring a program.
#[derive(Clone, Copy, Debug, Default)]
struct Explored {
    /// Number of executions in which all threads finish.
    complete: usize,
    /// Number of executions, including those that were not completed.
    begun: usize,
}

/// The words that only one thread has accessed so far, and the words that several threads have accessed.
#[derive(Debug, Default)]
struct Words {
    /// The first thread that accessed each word, by the address of the word.
    owners: HashMap<usize, usize>,
    /// The addresses of the words that several threads have accessed.
    shared: HashSet<usize>,
}

impl Words {
    /// Returns true if only this thread accesses the word of `op`, so that the time of the access makes no
    /// difference. Returns false if `op` may have to wait.
    fn are_private(&self, op: &Op) -> bool {
        !self.shared.contains(&op.word) && !matches!(op.action, Action::LoadNot(_))
    }

    /// Records an access. Returns false if the word was treated as private until now.
    fn note(&mut self, thread: usize, op: &Op) -> bool {
        op.word == 0
            || *self.owners.entry(op.word).or_insert(thread) == thread
            || !self.shared.insert(op.word)
    }
}

/// Runs the threads in every execution.
///
/// # Errors
///
/// Describes the first execution that has a data race, or in which a thread waits forever. A failed assertion
/// of a thread panics.
fn explore(threads: &[Thread<'_>]) -> Result<Explored, String> {
    let mut words = Words::default();
    // Starts again whenever a word that was treated as private is found to be shared.
    loop {
        if let Some(explored) = explore_with(threads, &mut words)? {
            return Ok(explored);
        }
    }
}

/// Explores the program, and treats a word as private unless `words` says that it is shared. Returns `None`
/// if threads share a word that was treated as private.
fn explore_with(threads: &[Thread<'_>], words: &mut Words) -> Result<Option<Explored>, String> {
    let mut explored = Explored::default();
    let mut seen = HashSet::new();
    let mut open = Vec::from([Graph::default()]);
    while let Some(graph) = open.pop() {
        explored.begun += 1;
        let mut steps = Vec::new();
        for (number, thread) in threads.iter().enumerate() {
            if let Step::Next(op) = run::next_step(&graph, number, thread) {
                if !words.note(number, &op) {
                    return Ok(None);
                }
                steps.push((number, op));
            }
        }
        if let Some(alone) = steps.iter().position(|(_, op)| words.are_private(op)) {
            steps = Vec::from([steps.swap_remove(alone)]);
        }
        let waits = !steps.is_empty();
        let mut grew = false;
        for (number, op) in &steps {
            for next in graph.extend(*number, op) {
                grew = true;
                if !seen.insert(next.key()) {
                    continue;
                }
                let Some(order) = next.order() else { continue };
                if let Some(race) = next.race(&order) {
                    return Err(race);
                }
                open.push(next);
            }
        }
        if waits && !grew {
            return Err(std::format!("a thread waits forever:\n{graph:?}"));
        }
        explored.complete += usize::from(!waits);
    }
    Ok(Some(explored))
}

/// Runs [`explore`] on a program that must be correct.
///
/// # Panics
///
/// Panics if the program is not correct.
fn check(threads: &[Thread<'_>]) {
    match explore(threads) {
        Ok(explored) => assert!(explored.complete > 0, "no execution completes"),
        Err(wrong) => panic!("{wrong}"),
    }
}

/// A host whose tasks are the threads of a program. Each thread is a CPU.
#[derive(Clone, Copy, Debug)]
struct Model;

// SAFETY: threads run one at a time with different numbers, and no function is deferred.
#[expect(unsafe_code, reason = "implements `Host`")]
unsafe impl Host for Model {
    const MAX_CPUS: usize = 3;
    fn wait(word: &AtomicU32, expected: u32) {
        word.wait_until_not(expected);
    }
    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        Self::wait(word, expected);
        Ok(())
    }
    fn wake_one(_: &AtomicU32) {}
    fn wake_all(_: &AtomicU32) {}
    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        f(run::thread())
    }
    fn now_ns() -> u64 {
        0
    }
    fn relax() {}
    fn lock_context<R>(_: impl FnOnce(&LockContext) -> R) -> Option<R> {
        None
    }
    type RcuGuard = ();
    fn rcu_read() {}
    unsafe fn rcu_defer(_: NonNull<RcuHead>, _: unsafe fn(NonNull<RcuHead>)) {
        unreachable!("the model has no grace periods");
    }
    fn rcu_barrier() {}
}
