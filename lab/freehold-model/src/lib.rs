//! Oracles for the engine: a naive sequential model of Linux's address-space semantics, the running kernel,
//! and code that compares any two executors of the same calls.
//!
//! - [`op`]: the calls ([`Op`]), their results ([`Outcome`]) and the trait of their executors ([`Subject`]).
//! - [`model`]: the model, written for clarity.
//! - [`linux`]: the running kernel as a subject, inside child processes.
//! - [`engine`]: the engine as a subject, with any lock design, on a machine in this process.
//! - [`generate`]: random calls, biased towards collisions and edges.
//! - [`draw`]: random numbers and choices.
//! - [`script`]: calls from bytes, for fuzzers and property tests.
//! - [`compare`]: runs the same calls on two subjects, and shrinks the calls that show a difference.
//! - [`history`]: checks whether a sequential order explains concurrent calls of several threads.
//! - [`cases`]: calls with their expected results as text files, for every subject.
//! - [`pools`]: huge pages of pools with a userfaultfd, with a model of their own.
//! - [`wild`]: every public call of the engine with arguments that no sane program would pass.
//! - [`world`]: the addresses, files and limits that two subjects must share; [`text`]: calls as lines;
//!   [`escape`]: calls that must not run on the kernel.
//!
//! A new call begins in [`op`], whose head lists the files that need code for the call. The model follows the
//! kernel, not the manual. A case file exists for each rule where the kernel and the manual differ, and for
//! rules that are easy to miss. The main rules:
//!
//! - `mmap` with a fixed address in the last page (above -4096) fails, because the kernel reads that address
//!   as an errno.
//! - A stack keeps its stack gap free only if the hole below the stack is itself long enough for the new
//!   mapping. A stack directly above another mapping keeps nothing free below that mapping. A stack that
//!   keeps its gap free also lowers the limit of the rest of the search.
//! - `madvise`, `msync`, `mlock2` and `mlockall` use only 32 bits of their last argument.
//! - Guards mark their VMA with a sticky flag that does not prevent merging. Private anonymous memory also
//!   gets an anon_vma, which has a visible effect after a fork.
//! - `MREMAP_DONTUNMAP` of a locked VMA leaves the source's pages in `locked_vm` permanently, and unlocks the
//!   whole source VMA even if only a part of it moved. `mlockall` counts the pages of one VMA in an int.
//!   These rules are quirks of the kernel and not promises. [`world::Quirks`] describes the behaviour of the
//!   engine.
//! - A `mmap` that fails at `RLIMIT_AS` or `RLIMIT_DATA` may leave VMAs split at the edges of its range.
//! - When `mremap` grows a VMA, the VMA may merge with its neighbour. This happens even in a fork's child,
//!   where no other call merges the two VMAs.
//!
//! # What is not covered
//!
//! No difference between model and kernel is known in the calls that the generator draws, apart from results
//! that [`compare`] does not compare. [`world::Quirks`] lists the differences between engine and kernel.
//!
//! The generator does not draw, and the model does not contain, the following:
//!
//! - overcommit and swap;
//! - transparent huge pages (switched off) and huge pages;
//! - `MADV_COLLAPSE` and the memory-failure advice;
//! - protection keys;
//! - userfaultfd (but see [`pools`]);
//! - instruction fetches, and faults by the kernel on a process's behalf;
//! - files whose page cache drops pages (only memory files are used).
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
