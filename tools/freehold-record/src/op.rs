//! An event of a recording while the recorder assembles it.
//!
//! `assemble.rs` creates an [`Op`] at the first report of a call or fault, and completes it with the locks,
//! interrupts and the end from later reports. `write.rs` sorts the `Op`s by the time at which they took
//! effect, and converts each with [`Op::event`]. All times here are nanoseconds of `CLOCK_MONOTONIC`; an
//! event has times relative to the start of the recording. The rules for locks ([`Op::lock`]) distinguish a
//! downgrade from a second acquisition; `assemble_tests.rs` tests them.

use super::raw::LockStep;
use freehold_trace::{Cost, Event, Kind};

/// An event, and the data that later reports add to it.
#[derive(Debug)]
pub struct Op {
    /// The time at which the operation took effect. Until this time is known, the field holds the time at
    /// which the operation began.
    pub time: u64,
    /// The time at which the operation began.
    pub begun: u64,
    /// The time at which the operation ended. For a fault, the time at which it was resolved.
    pub ended: Option<u64>,
    /// The processor.
    pub cpu: Option<u16>,
    /// The task, by its number in the recording.
    pub task: u32,
    /// The kind of the event. `None` if the event is left out of the recording.
    pub kind: Option<Kind>,
    /// The operation's acquisitions of mmap locks.
    pub locks: Vec<LockAcquisition>,
    /// Number of interrupts that the operation sent for TLB flushes.
    pub interrupts: u32,
    /// True if the operation waited for storage.
    pub major: bool,
}

/// One acquisition of an mmap lock.
#[derive(Debug)]
pub struct LockAcquisition {
    /// The address of the `mm_struct` in the kernel, which identifies the address space.
    space: u64,
    /// True for an acquisition for writing.
    write: bool,
    /// Time of the request.
    wanted: u64,
    /// Time of the acquisition.
    taken: Option<u64>,
    /// Time of the downgrade from writing to reading, if any.
    downgraded: Option<u64>,
    /// Time of the release.
    released: Option<u64>,
}

impl Op {
    /// Creates an operation that began at `time` and has not ended.
    pub fn new(time: u64, cpu: Option<u16>, task: u32, kind: Option<Kind>) -> Op {
        let (begun, ended, locks) = (time, None, Vec::new());
        Op { time, begun, ended, cpu, task, kind, locks, interrupts: 0, major: false }
    }

    /// Adds a step that the operation made with the mmap lock of `space` at `time`.
    pub fn lock(&mut self, step: LockStep, space: u64, write: bool, time: u64) {
        let mut open =
            self.locks.iter_mut().rev().filter(|held| held.space == space && held.released.is_none());
        match step {
            LockStep::Wanted => {}
            LockStep::Taken(success) => match open.next() {
                Some(held) if held.taken.is_none() && held.write == write => {
                    held.taken = success.then_some(time);
                    return;
                }
                Some(held) if held.write && !write => {
                    held.downgraded = Some(time);
                    return;
                }
                Some(_) => return,
                None => {}
            },
            LockStep::Released => {
                if let Some(held) = open.find(|held| held.write == write || held.downgraded.is_some()) {
                    held.released = Some(time);
                }
                return;
            }
        }
        let taken = (step == LockStep::Taken(true)).then_some(time);
        // Most operations acquire only one lock, so the list grows by one entry at a time.
        self.locks.reserve_exact(1);
        self.locks.push(LockAcquisition {
            space,
            write,
            wanted: time,
            taken,
            downgraded: None,
            released: None,
        });
    }

    /// Returns the time at which the operation first acquired an mmap lock for writing, if it did. A call
    /// that changes VMAs takes effect at that time.
    pub fn first_write(&self) -> Option<u64> {
        self.locks.iter().filter(|held| held.write).find_map(|held| held.taken)
    }

    /// Converts the operation to an event with a time relative to `start`. Returns `None` if the event is
    /// left out of the recording.
    pub fn event(self, start: u64) -> Option<Event> {
        let cost = self.cost();
        let Op { time, cpu, task, kind, .. } = self;
        Some(Event { line: 0, time: time.saturating_sub(start), cpu, task, kind: kind?, cost })
    }

    /// Returns the durations of the operation and of its locks.
    fn cost(&self) -> Cost {
        let fault = match self.kind {
            Some(Kind::Fault { .. }) => true,
            Some(Kind::Call(_) | Kind::Clone { .. } | Kind::Exec { .. }) => false,
            _ => return Cost::default(),
        };
        let mut cost = Cost {
            before: Some(self.time.saturating_sub(self.begun)).filter(|before| *before != 0 && !fault),
            after: self.ended.map(|ended| ended.saturating_sub(self.time)),
            interrupts: self.interrupts,
            major: self.major,
            ..Cost::default()
        };
        let mut taken = self.locks.iter().filter_map(|held| Some((held, held.taken?)));
        if let Some((held, at)) = taken.next() {
            let wait = Some(at.saturating_sub(held.wanted));
            if held.write {
                cost.write_wait = wait
            } else {
                cost.read_wait = wait
            }
            cost.held = held.downgraded.or(held.released).map(|end| end.saturating_sub(at));
            cost.downgraded = held.downgraded.zip(held.released).map(|(from, to)| to.saturating_sub(from));
        }
        cost.more_locks = taken.count() as u32;
        cost
    }
}
