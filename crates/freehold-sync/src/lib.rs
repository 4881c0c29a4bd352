#![no_std]
#![deny(unsafe_code)]
//! Who may touch what, and who waits: the lock words of an address space.

#[cfg(any(loom, feature = "std-host"))]
extern crate std;

pub mod atomic;
mod host;
pub mod mmap_lock;
mod percpu;
pub mod rank;
pub mod rwsem;
pub mod spin;
pub mod stats;
#[cfg(any(loom, feature = "std-host"))]
pub mod testing;
pub mod vma_lock;

pub use allocator_api2::alloc::AllocError;
pub use host::{Host, Killed, RcuHead};
pub use mmap_lock::{MmapLock, MmapReadGuard, MmapWriteGuard, Speculation};
pub use percpu::{Counter, PerCpu};
pub use rank::{LockContext, Rank};
pub use rwsem::{RwSem, RwSemReadGuard, RwSemWriteGuard};
pub use spin::{RawSpin, RawSpinGuard, SpinGuard, SpinLock};
pub use vma_lock::{ReadFail, VmaCount, VmaLock, VmaSeq};
