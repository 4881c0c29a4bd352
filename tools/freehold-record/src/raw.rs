//! What the kernel reports, before calls are put together from their beginnings and ends.

use freehold_trace::{CallName, Limits};
use std::ops::Range;

/// Something the kernel reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// On which processor, where that is known.
    pub cpu: Option<u16>,
    /// Of which thread, by the kernel's number.
    pub thread: i32,
    /// What.
    pub what: RawKind,
}

impl Raw {
    /// `count` reports found no room, somewhere in `span`: what is known before it is not known behind it,
    /// and of a program that begins within it nothing is known either. Spans may overlap.
    pub fn losses(count: u64, span: Range<u64>) -> [Raw; 2] {
        [(span.start, count), (span.end, 0)].map(|(time, count)| Raw {
            time,
            cpu: None,
            thread: 0,
            what: RawKind::Lost(count),
        })
    }
}

/// Kinds of report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawKind {
    /// A page fault begins.
    Fault {
        /// The address touched.
        address: u64,
        /// What the processor said.
        code: u64,
    },
    /// A page fault was resolved.
    Resolved {
        /// The address touched.
        address: u64,
        /// It had to wait for storage.
        major: bool,
    },
    /// A system call begins.
    Enter(CallName, [u64; 6]),
    /// The process_madvise is about these ranges: addresses and lengths. Reported before the call comes back,
    /// and after whatever the thread called before.
    Ranges(Vec<(u64, u64)>),
    /// A system call begins that points to what could not be read.
    Unread(CallName),
    /// A call has changed the thread's credentials: the lower half of the set of capabilities that it has
    /// now.
    Effective(u64),
    /// A system call comes back.
    Leave(CallName, i64),
    /// Something about an mmap lock.
    Lock {
        /// What.
        step: LockStep,
        /// Whose: the address of the kernel's `mm_struct`, good for comparing.
        space: u64,
        /// For writing.
        write: bool,
    },
    /// A thread comes into being.
    NewTask {
        /// Its number.
        thread: i32,
        /// As of clone(2).
        flags: u64,
    },
    /// The program of the process is another now.
    Exec {
        /// The thread's number now: that of the process.
        thread: i32,
        /// The number it had when it called execve.
        before: i32,
    },
    /// The thread exits.
    Exit {
        /// It was the last of its process; unknown to older kernels.
        last: Option<bool>,
    },
    /// An address space is torn down.
    TornDown,
    /// A SIGSEGV or SIGBUS.
    Signal {
        /// Which.
        signal: i32,
        /// Its `si_code`.
        code: i32,
    },
    /// Another processor was interrupted for a TLB flush.
    Interrupt,
    /// A mapping was made.
    Mapped(Box<Mapped>),
    /// This snapshot was taken.
    Snapshot(usize),
    /// The thread has these resource limits.
    Limits(Box<Limits>),
    /// So many reports found no room, from now on; which threads' they were, nobody knows. 0: those of a
    /// span came before.
    Lost(u64),
}

/// What was done to an mmap lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockStep {
    /// It is wanted.
    Wanted,
    /// It was taken, or a try was in vain.
    Taken(bool),
    /// It was let go.
    Released,
}

/// A mapping of a file, as it is after it was merged with its neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Major and minor number of the device, and the inode on it.
    pub inode: (u32, u32, u64),
    /// The file's path.
    pub path: String,
}
