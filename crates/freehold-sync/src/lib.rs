#![no_std]
#![deny(unsafe_code)]
//! Who may touch what, and who waits: the lock words of an address space.

#[cfg(any(loom, feature = "std-host"))]
extern crate std;

pub mod atomic;
mod host;
mod percpu;
pub mod rank;
mod spin;

pub use allocator_api2::alloc::AllocError;
pub use host::{Host, Killed, RcuHead};
pub use percpu::{Counter, PerCpu};
pub use rank::{LockContext, Rank};
pub use spin::{RawSpin, RawSpinGuard, SpinGuard, SpinLock};
