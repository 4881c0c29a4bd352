//! Address spaces with the behaviour of Linux. By default munmap holds no lock of the address space while it
//! removes pages, and a fault locks only one VMA and one page table.
//!
//! A kernel keeps one [`AddressSpace`](space::AddressSpace) per process: the mapped areas (VMAs), the page
//! tables, and the rules by which system calls and page faults change both. The engine does not depend on a
//! particular kernel. The trait [`platform::Platform`], with its supertraits, supplies frames, the direct
//! map, TLBs, processors, waiting and grace periods.
//!
//! # An embedding
//!
//! A kernel creates one [`Engine`](engine::Engine) at boot and one address space per process. The kernel
//! forwards system calls and page faults to the address space, and converts errors to errno numbers and
//! signals:
//!
//! ```
//! use freehold::prelude::*;
//!
//! fn boot<P: Platform>(platform: P) -> Result<(), Box<dyn std::error::Error>> {
//!     let engine = Engine::new(platform, Config::new())?;
//!     let init = AddressSpace::new(&engine, &SpaceConfig::new())?;
//!     // System calls. An error has the number that Linux returns: `error.errno().number()`.
//!     let (prot, flags) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
//!     let at = init.mmap(0, 1 << 20, prot, flags, None, 0)?;
//!     let child = init.fork()?;
//!     // A page fault of user code. An error has the signal for the program: `error.signal()`.
//!     child.handle_fault(at, Access::WRITE)?;
//!     child.munmap(at, 1 << 20)?;
//!     assert!(child.handle_fault(at, Access::READ).is_err());
//!     assert!(init.handle_fault(at, Access::READ).is_ok());
//!     Ok(())
//! }
//!
//! # use freehold_machine::{Machine, MachineConfig};
//! # let machine: Machine = Machine::new(MachineConfig::backed(16 << 20))?;
//! # boot(machine.clone())?;
//! # machine.accounting().assert_clean();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This example works with any platform. The folder `examples/embedding` of this package has a platform of
//! 300 lines, and a small program that runs on it. The repository has another platform: the crate
//! `freehold-machine` for tests, whose TLBs keep every translation that is not flushed. The examples of this
//! documentation use that crate; the lines that create a machine, an engine and an address space are hidden.
//!
//! # Map of the modules
//!
//! Paths such as `docs/guide/locking.md` are paths in the repository.
//!
//! Reading order: [`space`] (the address space and what guards each field), `space/change/unmap.rs` (the
//! model of a change), [`fault`] (the model of a fault). Every other module can be read on its own. Comments
//! name source files by their paths below `engine/freehold/src`. Paths that begin with `tests/` are below
//! `engine/freehold`, and paths that begin with `shuttle_engine/` are below `lab/freehold-machine/tests`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`platform`] | what the embedding kernel supplies |
//! | [`engine`] | the state that all address spaces share, and the system-wide settings |
//! | [`space`] | the address space: its fields, its locking protocol, the steps that several calls share |
//! | [`call`] | system calls, one per file or folder |
//! | [`report`] | the data of /proc files and of queries about an address space |
//! | [`vma`] | one mapped area: fields, flags, merge rules, and the slab that VMAs are allocated from |
//! | [`fault`] | page faults: the ladder of locks, then anonymous memory, files, copy-on-write |
//! | [`mod@file`] | the objects that an area maps: anonymous memory, a file with its page cache and pager, frames that the engine does not own |
//! | [`rmap`] | the reverse map: from a frame to every entry that maps its page |
//! | [`reclaim`] | memory reclaim: which pages go when memory is short, and how |
//! | [`swap`] | the devices that pages are swapped to, and the pages that are on them |
//! | [`uprobe`] | breakpoints in the pages of files |
//! | [`hugetlb`] | huge pages from pools, their reservations, and the page tables that processes share |
//! | [`uffd`] | userfaultfd: page faults that a program of the embedder serves |
//! | [`nommu`] | address spaces without an MMU, where an address is a physical address |
//! | [`remote`] | reads and writes of a process's memory by another process; pins |
//! | [`error`] | one error type per verb, and its errno |
//! | [`counted`] | a shared pointer whose allocation may fail |
//! | [`prelude`] | the names that most users of this crate need |
//!
//! The crate [`freehold_vmspace`] has the part of an address space that the hardware sees: frames, page
//! tables and TLBs. That crate also defines [`platform`].
//!
//! Every allocation is fallible. A call that runs out of memory returns an error instead of aborting.
//! `docs/guide/locking.md`, and the documents that it links to, list the locks and what may be changed under
//! each of them.
//!
//! # Addresses
//!
//! Functions of this crate take an address of a program as a `u64`, because it is often a register or an
//! argument of a system call. Nothing has to be checked before the call: any number is allowed, and an
//! address outside user space gives an error, or `None`. Functions return addresses as `u64` too.
//!
//! The types [`VirtAddr`], [`PhysAddr`] and [`Pfn`] appear where a kernel handles page tables and frames: in
//! [`platform`], in [`rmap`] and in [`freehold_vmspace`]. [`PageIndex`] and [`PageCount`] count pages of
//! files. All of these types convert from and to `u64`.
//!
//! # Features
//!
//! Each feature in this table is on by default. A kernel that turns a feature off gets less code; the table
//! of code sizes is in `docs/performance.md`.
//!
//! | feature | adds |
//! | --- | --- |
//! | `hugetlb` | huge pages from pools, with page tables that processes share ([`hugetlb`]) |
//! | `inline` | no functions; inlines the short paths of calls: fewer instructions, more code |
//! | `nommu` | address spaces without an MMU ([`nommu`]) |
//! | `range_writers` | concurrent changes of disjoint ranges of one address space ([`space::locking`]) |
//! | `stats` | statistics of the locks ([`Config::lock_stats`](engine::Config::lock_stats)) |
//! | `uffd` | userfaultfd ([`uffd`]) |
//! | `uprobe` | breakpoints in the pages of files ([`uprobe`]) |
//!
//! These features are off by default:
//!
//! | feature | adds |
//! | --- | --- |
//! | `log` | messages through the crate `log`: `debug` for a page fault that fails, `warn` if memory runs out or a grace period takes longer than a second |
//! | `x86_64`, `memory_addr` | conversions of addresses to and from the types of the crates with these names |
//!
//! The engine may hold locks when it sends a message. The embedder's logger must not wait, fault or call the
//! engine.
#![no_std]
#![deny(unsafe_code)]
// If a feature is off, the functions that serve only its public calls are unused.
#![cfg_attr(
    not(all(
        feature = "hugetlb",
        feature = "nommu",
        feature = "range_writers",
        feature = "uffd",
        feature = "uprobe"
    )),
    allow(dead_code, unused_imports)
)]

extern crate alloc;

#[macro_use]
mod settings;
mod shortage;

pub mod call;
mod committed;
pub mod engine;
pub mod error;
pub mod fault;
mod features;
pub mod file;
#[cfg(feature = "hugetlb")]
pub mod hugetlb;
#[cfg(not(feature = "hugetlb"))]
mod hugetlb;
#[cfg(feature = "nommu")]
pub mod nommu;
#[cfg(not(feature = "nommu"))]
mod nommu;
pub mod prelude;
pub mod reclaim;
pub mod remote;
pub mod report;
pub mod rmap;
pub mod space;
pub mod swap;
#[cfg(feature = "uffd")]
pub mod uffd;
#[cfg(not(feature = "uffd"))]
mod uffd;
#[cfg(feature = "uprobe")]
pub mod uprobe;
#[cfg(not(feature = "uprobe"))]
mod uprobe;
pub mod vma;
mod wait;

pub use freehold_pagetable::{PAGE_SHIFT, PAGE_SIZE, Pfn, PhysAddr, VirtAddr};
pub use freehold_sync::counted;
pub use freehold_vmspace::{PageCount, PageIndex, PageRange, UserRange, platform};
