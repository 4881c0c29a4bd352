#![no_std]
#![deny(unsafe_code)]
//! The locks of an address space, and the interface to atomics and to the embedding kernel.
//!
//! The crate does not depend on memory management. It provides lock words, an order in which to take the
//! locks, and the only access to atomics and to the embedding kernel.
//!
//! | item | purpose | how a task waits |
//! | --- | --- | --- |
//! | [`MmapLock`] | lock of an address space: readers, one writer, downgrade, a sequence number | sleeps |
//! | [`VmaLock`] | lock of one VMA, made of two words of the VMA; taken for reading without any other lock, and for writing under the mmap lock | readers never wait; writers sleep |
//! | [`RwSem`] | reader/writer lock on which [`MmapLock`] is built; also for files and reverse mappings | sleeps |
//! | [`RawSpin`], [`SpinLock`] | a spin lock word, and a spin lock word with the value that it guards | spins |
//! | [`Mutex`] | a lock that one task holds at a time | sleeps |
//! | [`WordLock`] | one word, for objects of which there are many | sleeps |
//! | [`PerCpu`], [`Counter`], [`ReaderSlots`] | a value per CPU | does not wait |
//! | [`publish`] | words that make earlier accesses visible to tasks without a lock | does not wait |
//! | [`Rank`] | place of each lock in the lock order, checked with debug assertions | |
//! | [`stats::LockStats`] | how often and how long tasks wait for a lock and hold it | |
//! | [`Host`] | services of the embedding kernel: waiting, CPU numbers, time, grace periods | |
//! | [`atomic`] | the atomics; all shared data of the engine uses them | |
//! | [`counted`], [`error`] | a shared pointer with fallible allocation; a macro for error enums | |
//!
//! The head of each module describes its protocol: what the lock guarantees, the states of every word and
//! which task may change each state, and which release pairs with which acquire. loom checks the protocols
//! (`tests/loom_*.rs`) under every order that the memory model allows, not only under the orders of the CPU
//! that runs the tests. `cargo xtask loom` runs these tests.
//!
//! A new lock gets a module here, a row in the table above, a table of the states of its word, and tests in
//! `tests/loom_small.rs` or in a file of its own in `tests`. The lock reaches the kernel only through
//! [`Host`], and reports each wait, acquisition and release to [`rank`].
//!
//! # Three locks on the path of a fault
//!
//! ```
//! use freehold_sync::testing::StdHost;
//! use freehold_sync::{MmapLock, ReadFail, VmaCount, VmaLock, VmaSeq};
//!
//! let lock = MmapLock::<StdHost>::new();
//! let (count, seq) = (VmaCount::new(), VmaSeq::new());
//! let vma = VmaLock { count: &count, seq: &seq };
//!
//! // A new VMA is set up, write-locked, attached; then unlocked.
//! let guard = lock.write();
//! vma.init_detached();
//! vma.write(&guard);
//! vma.attach(&guard);
//! assert_eq!(vma.try_read(&lock, || true).err(), Some(ReadFail::Locked));
//! vma.unlock_write();
//! let guard = guard.downgrade();
//!
//! // A fault needs no other lock, even though the writer still holds the mmap lock as a reader.
//! let place = vma.try_read(&lock, || true)?;
//! vma.unlock_read::<StdHost>(place);
//! drop(guard);
//! # Ok::<(), ReadFail>(())
//! ```
//!
//! # Testing code that uses this crate
//!
//! With the feature `std-host`, and under `cfg(loom)`, the module `testing` provides hosts for the tests of
//! this crate and of the crates above it. The head of that module explains how to use them.

#[cfg(any(test, loom, feature = "std-host"))]
extern crate std;

pub mod atomic;
#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod axioms;
pub mod counted;
pub mod error;
mod host;
pub mod mmap_lock;
pub mod mutex;
mod percpu;
pub mod publish;
pub mod rank;
pub mod reader_slots;
pub mod rwsem;
pub mod spin;
pub mod stats;
#[cfg(any(loom, feature = "std-host"))]
pub mod testing;
pub mod vma_lock;
pub mod word_lock;

pub use allocator_api2::alloc::AllocError;
pub use host::{Host, Interrupted, Killed, RcuHead, check_killed};
pub use mmap_lock::{
    FaultLock, MmapLock, MmapRangeWriteGuard, MmapReadGuard, MmapWriteGuard, MmapWriteProof, Speculation,
};
pub use mutex::{Mutex, MutexGuard};
pub use percpu::{Counter, PerCpu};
pub use rank::{LockContext, Rank};
pub use reader_slots::ReaderSlots;
pub use rwsem::{RwSem, RwSemReadGuard, RwSemWriteGuard};
pub use spin::{RawSpin, RawSpinGuard, SpinGuard, SpinLock};
pub use vma_lock::{ReadFail, ReaderPlace, VmaCount, VmaLock, VmaSeq};
pub use word_lock::{Sleepers, WordGuard, WordLock};
