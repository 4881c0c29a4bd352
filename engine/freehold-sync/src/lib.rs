#![no_std]
#![deny(unsafe_code)]
//! The lock words of an address space: which task may touch what, and which one waits.
//!
//! The crate knows nothing of memory. It gives the layers above it words to lock with, an order to lock in,
//! and the one door through which they see atomics and the embedding kernel.
//!
//! | what | is | waits by |
//! | --- | --- | --- |
//! | [`MmapLock`] | the lock of an address space: readers, one writer, downgrade, a sequence number | sleeping |
//! | [`VmaLock`] | the lock of one VMA, made of two words of the VMA: read without any other lock, written under the mmap lock | readers never; writers sleeping |
//! | [`RwSem`] | the reader/writer lock below, for files and reverse mappings | sleeping |
//! | [`RawSpin`], [`SpinLock`] | a word, and a word with what it guards | spinning |
//! | [`WordLock`] | a word, for each of many objects | sleeping |
//! | [`PerCpu`], [`Counter`], [`ReaderSlots`] | a value per CPU | not at all |
//! | [`Rank`] | each lock's place in the order, checked with debug assertions | |
//! | [`stats::LockStats`] | what a lock's users cost each other | |
//! | [`Host`] | what the embedding kernel supplies: waiting, CPU numbers, time, grace periods | |
//! | [`atomic`] | the atomics; everything that is shared goes through them | |
//!
//! Each module begins with its protocol: what is promised, the states of every word and the tasks that may
//! leave them, and which release pairs with which acquire. They are checked by loom (`tests/loom_*.rs`) under
//! the orders that the memory model allows, not only those of the processor at hand.
//!
//! # Three locks on a fault's way
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
//! // A fault needs no other lock, though the writer is still there as a reader.
//! let place = vma.try_read(&lock, || true)?;
//! vma.unlock_read::<StdHost>(place);
//! drop(guard);
//! # Ok::<(), ReadFail>(())
//! ```
//!
//! # Testing what is built on it
//!
//! With the feature `std-host`, and under `cfg(loom)`, the module `testing` has hosts for the tests of this
//! crate and of those above it; it says how to use them.

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
