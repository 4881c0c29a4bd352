//! Finds the next event of a thread: [`next_step`] runs the thread's code from the start, and each access
//! returns the value that the graph has for this access. The first access that is not in the graph yet is the
//! next event; the run then ends by unwinding.
//!
//! `explore` in `mod.rs` calls [`next_step`] for every graph and thread. The atomics in `atomics.rs` and the
//! fields of type [`Plain`] call [`perform`]. The code of a thread must depend on nothing but the values that
//! it reads: a run repeats all earlier accesses in the same order.

use super::graph::{Action, Graph, Op};
use crate::atomic::Ordering;
use core::cell::{Cell, RefCell};
use std::boxed::Box;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::vec::Vec;

/// The next step of a thread.
pub(super) enum Step {
    Next(Op),
    Finished,
}

/// One run of a thread.
struct Run {
    thread: usize,
    /// The values that the thread's earlier events have read.
    reads: Vec<u64>,
    /// Number of accesses of this run so far.
    at: usize,
    /// The access that is not yet in the graph. Once this field is set, the thread unwinds. Guards that are
    /// dropped during the unwinding access the words as this thread has left them. No other thread sees these
    /// accesses.
    next: Option<Op>,
    /// The values of the words as this thread has last seen or written them.
    words: HashMap<usize, u64>,
}

/// Panic payload that ends a thread's run.
struct Stop;

std::thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

/// Returns the number of the running thread, or 0 outside of a run.
pub(super) fn thread() -> usize {
    RUN.with_borrow(|run| run.as_ref().map_or(0, |run| run.thread))
}

/// Returns the next step of the thread after its events in `graph`.
pub(super) fn next_step(graph: &Graph, thread: usize, code: &dyn Fn()) -> Step {
    let events = graph.events.iter().filter(|event| event.thread == Some(thread));
    let reads = events.map(|event| event.read).collect();
    RUN.set(Some(Run { thread, reads, at: 0, next: None, words: HashMap::new() }));
    let ended = catch_unwind(AssertUnwindSafe(code));
    let run = RUN.take().expect("set above");
    match (ended, run.next) {
        (_, Some(next)) => Step::Next(next),
        (Ok(()), None) => Step::Finished,
        (Err(panic), None) => resume_unwind(panic),
    }
}

/// Performs `op` for the running thread and returns the value that it reads. Returns `None` if no thread
/// runs.
pub(super) fn perform(op: Op) -> Option<u64> {
    let (read, stop) = RUN.with_borrow_mut(|run| {
        let run = run.as_mut()?;
        let word = run.words.get(&op.word).copied().unwrap_or(op.initial);
        let going = run.next.is_none();
        let read = match run.reads.get(run.at) {
            Some(&read) if going => read,
            _ => word,
        };
        run.words.insert(op.word, after(op.action, read));
        let stop = going && run.at == run.reads.len();
        run.at += 1;
        if stop {
            run.next = Some(op);
        }
        Some((read, stop))
    })?;
    if stop {
        resume_unwind(Box::new(Stop));
    }
    Some(read)
}

/// Returns the value of a word after `action` has read `read` from it.
fn after(action: Action, read: u64) -> u64 {
    match action {
        Action::Fence | Action::Load | Action::LoadNot(_) => read,
        Action::Store(value) | Action::Swap(value) => value,
        Action::Add(by, mask) => read.wrapping_add(by) & mask,
        Action::And(bits) => read & bits,
        Action::Or(bits) => read | bits,
        Action::Exchange { from, to, .. } => {
            if read == from {
                to
            } else {
                read
            }
        }
    }
}

/// A field that is not atomic. If two threads access it and one of them writes, the accesses must be ordered.
#[derive(Debug, Default)]
pub(super) struct Plain(Cell<u64>);

impl Plain {
    pub fn new(value: u64) -> Self {
        Plain(Cell::new(value))
    }

    fn access(&self, action: Action) -> u64 {
        let word = core::ptr::from_ref(self).addr();
        let op = Op { word, initial: self.0.get(), action, order: Ordering::Relaxed, plain: true };
        perform(op).expect("plain fields are accessed by threads only")
    }

    pub fn get(&self) -> u64 {
        self.access(Action::Load)
    }

    pub fn set(&self, value: u64) {
        self.access(Action::Store(value));
    }
}
