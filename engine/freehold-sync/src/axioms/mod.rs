//! A checker of what ships: runs the shipped code, at its shipped orderings, in every execution that the C11
//! memory model allows.
//!
//! loom takes `SeqCst` accesses for `AcqRel` ones and knows a total order by fences alone. The way into a
//! reader slot rests on the total order of four `SeqCst` accesses, which under loom are helped by fences that
//! do not ship (`atomic::store_buffering_fence`). So those four, and the code around them, are checked here:
//! in unit tests, where the facade of atomics is [`atomics`] and there are no fences.
//!
//! The model is RC11 (Lahav, Vafeiadis, Kang, Hur, Dreyer: Repairing sequential consistency in C/C++11, PLDI
//! 2017), with the release sequences of C++20; C++20's own repair of `SeqCst` is the same for accesses
//! without fences. It forbids cycles of program order and reads-from, so that every execution can be built
//! event by event, each thread in its order, each read from a write that is there. [`explore`] builds them
//! all: a thread's next event is found by running its code from the start, with the values that
//! its reads have got so far. Programs are small: two or three threads, [`graph::MAX_EVENTS`] events.
//!
//! A word that one thread alone accesses is accessed at once, whatever the others do.
//!
//! Not modelled: spurious failures of weak exchanges, wake-ups. A wait ends when the word differs, and orders
//! nothing.

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

/// A thread of a program: does the same whenever its reads return the same.
type Thread<'a> = &'a dyn Fn();

/// How many executions a program has, and how many beginnings of them were looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Explored {
    complete: usize,
    begun: usize,
}

/// Which words only one thread has been seen to access, and which more than one.
#[derive(Debug, Default)]
struct Words {
    owners: HashMap<usize, usize>,
    shared: HashSet<usize>,
}

impl Words {
    /// Whether the thread alone accesses what `op` does: then it makes no difference when. Not if it may have
    /// to wait.
    fn are_private(&self, op: &Op) -> bool {
        !self.shared.contains(&op.word) && !matches!(op.action, Action::LoadNot(_))
    }

    /// Notes an access. False: it was taken for impossible so far.
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
/// What is wrong with the first bad one: a data race, a thread that waits for ever. A failed assertion of a
/// thread panics.
fn explore(threads: &[Thread<'_>]) -> Result<Explored, String> {
    let mut words = Words::default();
    // Again, as long as a word turns out to be shared that was not known to be.
    loop {
        if let Some(explored) = explore_with(threads, &mut words)? {
            return Ok(explored);
        }
    }
}

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
            return Err(std::format!("a thread waits for ever:\n{graph:?}"));
        }
        explored.complete += usize::from(!waits);
    }
    Ok(Some(explored))
}

/// As [`explore`], of a program that is right.
///
/// # Panics
///
/// It is not.
fn check(threads: &[Thread<'_>]) {
    match explore(threads) {
        Ok(explored) => assert!(explored.complete > 0, "no execution ends"),
        Err(wrong) => panic!("{wrong}"),
    }
}

/// A host whose tasks are threads of a program; each is a CPU of its own.
#[derive(Clone, Copy, Debug)]
struct Model;

// SAFETY: no grace periods are asked for, and threads run one at a time.
#[expect(unsafe_code, reason = "an implementation of `Host`")]
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
        unreachable!("nothing here is freed after a grace period");
    }
    fn rcu_barrier() {}
}
