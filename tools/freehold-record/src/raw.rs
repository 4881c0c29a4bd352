//! Reports of the kernel, before the recorder assembles calls from their starts and ends.
//!
//! `ring.rs` (with `format.rs`), `perf.rs` and `pointed.rs` decode the kernel's data into [`Raw`];
//! `collect.rs` sorts the reports of all sources by time; `assemble.rs` turns them into events of a
//! recording. A report states one fact at one time, for example the entry of a call; its return is another
//! report. This file has only the data types. A report may come from any thread of the machine; `assemble.rs`
//! ignores reports of threads that are not recorded. A new kind of report needs an arm in the decoder of its
//! source and an arm in `Assembler::report`.

use freehold_trace::{CallName, Limits};
use std::ops::Range;

/// A report of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    /// The time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// The processor, if known.
    pub cpu: Option<u16>,
    /// The kernel's number of the thread.
    pub thread: i32,
    /// The reported fact.
    pub what: RawKind,
}

impl Raw {
    /// Creates the two reports of a loss: `count` reports were lost during `span`, in nanoseconds. After the
    /// span, the state of all programs is unknown, including programs that start within the span. Spans may
    /// overlap.
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
    /// A page fault began.
    Fault {
        /// The faulting address.
        address: u64,
        /// The error code of the processor.
        code: u64,
    },
    /// A page fault was resolved.
    Resolved {
        /// The faulting address.
        address: u64,
        /// True if the fault waited for storage.
        major: bool,
    },
    /// A system call began.
    Enter(CallName, [u64; 6]),
    /// The ranges of a process_madvise: addresses and lengths. The time is after the end of the thread's
    /// previous call, and before the end of the process_madvise.
    Ranges(Vec<(u64, u64)>),
    /// A system call began, and the structure to which its argument points could not be read.
    Unread(CallName),
    /// A call may have changed the thread's credentials. The value is the lower half of its effective
    /// capability set.
    Effective(u64),
    /// A system call returned.
    Leave(CallName, i64),
    /// A step with an mmap lock.
    Lock {
        /// The step.
        step: LockStep,
        /// The address space of the lock: the address of the kernel's `mm_struct`, which is only useful for
        /// comparison.
        space: u64,
        /// True if the lock is for writing.
        write: bool,
    },
    /// A thread was created.
    NewTask {
        /// The number of the new thread.
        thread: i32,
        /// The flags, as in clone(2).
        flags: u64,
    },
    /// The process executes a new program.
    Exec {
        /// The thread's new number, which is the number of the process.
        thread: i32,
        /// The number of the thread when it called execve.
        before: i32,
    },
    /// The thread exited.
    Exit {
        /// True if the thread was the last of its process. Older kernels do not report this.
        last: Option<bool>,
    },
    /// An address space was torn down.
    TornDown,
    /// A SIGSEGV or SIGBUS was sent.
    Signal {
        /// The number of the signal.
        signal: i32,
        /// The `si_code` of the signal.
        code: i32,
    },
    /// Another processor was interrupted for a TLB flush.
    Interrupt,
    /// A mapping was created.
    Mapped(Box<Mapped>),
    /// The snapshot with this index was taken.
    Snapshot(usize),
    /// The resource limits of the thread's process.
    Limits(Box<Limits>),
    /// A loss of reports began: the value is the number of lost reports, whose threads are unknown. The value
    /// 0 marks the end of a loss.
    Lost(u64),
}

/// A step with an mmap lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockStep {
    /// A task requested the lock.
    Wanted,
    /// The request ended: true if the lock was acquired, false if it was not.
    Taken(bool),
    /// The lock was released.
    Released,
}

/// A mapping of a file, as the kernel reports it: after the mapping was merged with its neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Major and minor number of the device, and the inode number.
    pub inode: (u32, u32, u64),
    /// The file's path.
    pub path: String,
}
