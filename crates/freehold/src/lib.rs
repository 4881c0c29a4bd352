//! Address spaces with the behaviour of Linux, built so that little is ever waited for.
//!
//! An [`AddressSpace`](space::AddressSpace) is what a kernel keeps for each process: the set of its mapped areas (VMAs), its page
//! tables, and the rules by which calls and page faults change both. The engine knows nothing of the kernel
//! around it: everything it needs comes in through [`platform::Platform`].
//!
//! Reading order: [`space`] (the address space and who guards each field), `space/munmap.rs` (the model of
//! a change), [`fault`] (the model of a fault), then whatever you came for.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod access;
pub mod counted;
pub mod engine;
pub mod error;
pub mod fault;
pub mod frame;
pub mod object;
pub mod platform;
pub mod space;
pub mod vma;

pub use freehold_pagetable::{PAGE_SHIFT, PAGE_SIZE, Pfn, VirtAddr};
