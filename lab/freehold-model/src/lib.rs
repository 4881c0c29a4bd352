//! Oracles for the engine: a naive sequential model of Linux's address-space semantics, the running kernel
//! itself, and the machinery that compares any two executors of the same calls.
//!
//! - [`op`]: the calls ([`Op`]), their results ([`Outcome`]) and what can execute them ([`Subject`]).
//! - [`model`]: the model, written for clarity.
//! - [`linux`]: the running kernel as a subject, inside child processes.
//! - [`engine`]: the engine as a subject, with any design of its locks, on a machine in this process.
//! - [`generate`]: random calls, biased towards collisions and edges.
//! - [`draw`]: what random calls are drawn with.
//! - [`script`]: calls from bytes, for fuzzers and property tests.
//! - [`compare`]: runs two subjects side by side; shrinks what differs.
//! - [`history`]: what several threads did at the same time, and whether one after another could have.
//! - [`cases`]: calls with their expected results as text files, for every subject.
//! - [`pools`]: huge pages of pools with a userfaultfd, with a model of their own.
//! - [`wild`]: every public call of the engine with arguments that no sane program would pass.
//!
//! The model follows the kernel, not the manual. Where the two were found to differ, or where a rule is
//! easily missed, there is a case file; the main ones:
//!
//! - `mmap` with a fixed address in the last page (above -4096) fails with that address taken for an errno.
//! - A stack keeps its gap free only if the gap below it is itself long enough: right above another mapping
//!   it keeps nothing free below that one; and once it counts, it lowers the limit of the whole search.
//! - `madvise`, `msync`, `mlock2` and `mlockall` see 32 bits of their last argument.
//! - Guards mark their VMA with a sticky flag that does not hinder merging. Only private anonymous memory
//!   gets an anon_vma with it, which shows after a fork.
//! - `MREMAP_DONTUNMAP` of a locked VMA leaves the source's pages in `locked_vm` for good, and takes the lock
//!   off the whole source VMA even if a part of it moved. `mlockall` counts the pages of one VMA in an int.
//!   These are the kernel's, not promises; what the engine does instead is said at [`world::Quirks`].
//! - A `mmap` that fails at `RLIMIT_AS` or `RLIMIT_DATA` may leave VMAs split at the edges of its range.
//! - Growing a VMA with `mremap` merges it with its neighbour also in a fork's child, where nothing else
//!   would.
//!
//! # What is not covered
//!
//! Known differences between model and kernel: none in the calls that the generator draws, apart from what
//! [`compare`] lists as free; between engine and kernel, what [`world::Quirks`] lists. Not drawn, and not
//! modelled: overcommit, transparent huge pages (switched off), huge pages, swap,
//! `MADV_COLLAPSE` and the memory-failure advice, protection keys, userfaultfd (but see [`pools`]),
//! instruction fetches, faults by the kernel on a process's behalf, and files whose page cache drops pages
//! (only memory files are used).
#![deny(unsafe_code)]

pub mod cases;
pub mod compare;
pub mod draw;
pub mod engine;
pub mod escape;
pub mod generate;
pub mod history;
pub mod linux;
pub mod model;
pub mod op;
pub mod pools;
pub mod script;
pub mod text;
pub mod wild;
pub mod world;

pub use engine::{Engine, EngineOn};
pub use model::Model;
pub use op::{
    Call, Counters, FileId, Limit, MapFile, MapLine, Op, Outcome, PAGE, Signal, SignalKind, Subject,
};
pub use world::World;
