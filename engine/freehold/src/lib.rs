//! Address spaces with the behaviour of Linux, built so that little is ever waited for.
//!
//! An [`AddressSpace`](space::AddressSpace) is what a kernel keeps for each process: the set of its mapped
//! areas (VMAs), its page tables, and the rules by which calls and page faults change both. The engine knows
//! nothing of the kernel around it: frames, the direct map, TLBs, processors, waiting and grace periods come
//! in through one trait, [`platform::Platform`].
//!
//! # An embedding
//!
//! A kernel makes one [`Engine`](engine::Engine) when it boots and one address space per process, passes on
//! system calls and page faults, and turns errors into numbers and signals:
//!
//! ```
//! use freehold::counted::Counted;
//! use freehold::engine::{Config, Engine};
//! use freehold::fault::{Access, FaultError, Resolved};
//! use freehold::platform::Platform;
//! use freehold::space::{AddressSpace, MapFlags, Prot, SpaceConfig};
//!
//! type Space<P> = Counted<AddressSpace<P>>;
//!
//! fn sys_mmap<P: Platform>(space: &Space<P>, at: u64, len: u64, prot: u64, flags: u64) -> i64 {
//!     let (prot, flags) = (Prot::from_bits_retain(prot), MapFlags::from_bits_retain(flags));
//!     match space.mmap(at, len, prot, flags, None, 0) {
//!         Ok(at) => at as i64,
//!         Err(error) => -i64::from(error.errno().0),
//!     }
//! }
//!
//! fn page_fault<P: Platform>(space: &Space<P>, at: u64, access: Access) -> Result<Resolved, &'static str> {
//!     space.handle_fault(at, access).map_err(|error| match error {
//!         FaultError::Segv { .. } => "SIGSEGV",
//!         FaultError::Bus { .. } => "SIGBUS",
//!         _ => "SIGKILL",
//!     })
//! }
//!
//! fn boot<P: Platform>(platform: P) -> Result<(), Box<dyn std::error::Error>> {
//!     let engine = Engine::new(platform, Config::default())?;
//!     let init: Space<P> = AddressSpace::new(&engine, &SpaceConfig::default())?;
//!     let at = sys_mmap(&init, 0, 1 << 20, 3, 0x22) as u64; // readable, writable; private, anonymous
//!     page_fault(&init, at, Access::WRITE)?;
//!     let child = init.fork()?;
//!     init.munmap(at, 1 << 20)?;
//!     assert_eq!(page_fault(&init, at, Access::READ), Err("SIGSEGV"));
//!     assert_eq!((init.rss().anon, child.rss().anon), (0, 1));
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
//! The platform here is any; `examples/embedding` of the repository has one of 300 lines, and the crate
//! `freehold-machine` one whose TLBs remember what was not flushed, for tests.
//!
//! # Where is what
//!
//! Reading order: [`space`] (the address space and what guards each field), `space/change/unmap.rs` (the
//! model of a change), [`fault`] (the model of a fault), then whatever you came for.
//!
//! | module | what it has |
//! | --- | --- |
//! | [`platform`] | what the embedding kernel supplies |
//! | [`engine`] | what all address spaces share, and the system-wide settings |
//! | [`space`] | the address space: its fields, the protocol of its locks, what changes of it share |
//! | [`call`] | system calls, one a file or folder |
//! | [`report`] | what /proc and queries tell of an address space |
//! | [`vma`] | one mapped area: fields, flags, what may merge, and the slab it comes from |
//! | [`fault`] | page faults: the ladder of locks, then anonymous memory, files, copying on write |
//! | [`mod@file`] | what an area maps: anonymous memory, a file with its page cache and pager, frames of somebody else |
//! | [`rmap`] | the way back: from a frame to every entry that maps its page |
//! | [`uprobe`] | breakpoints in the pages of files |
//! | [`hugetlb`] | huge pages from pools, reservations of them, and the tables that processes share for them |
//! | [`uffd`] | userfaultfd: page faults that a program of the embedder serves |
//! | [`nommu`] | address spaces without an MMU, where an address is a frame |
//! | [`remote`] | a process's memory, read and written on its behalf |
//! | [`error`] | one error per verb, and its errno |
//! | [`counted`] | a shared pointer whose allocation may fail |
//!
//! What the hardware sees of an address space, frames, tables, TLBs, is the crate [`freehold_vmspace`];
//! [`platform`] is its seam.
//!
//! Nothing here aborts when memory runs out: every allocation may fail, and the call that needed it says so.
//! Which locks there are and what may be changed under which: `docs/locking.md`, and the documents that it
//! names.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod call;
mod committed;
pub mod engine;
pub mod error;
pub mod fault;
pub mod file;
pub mod hugetlb;
pub mod nommu;
pub mod remote;
pub mod report;
pub mod rmap;
pub mod space;
pub mod uffd;
pub mod uprobe;
pub mod vma;
mod wait;

pub use freehold_pagetable::{PAGE_SHIFT, PAGE_SIZE, Pfn, VirtAddr};
pub use freehold_sync::counted;
pub use freehold_vmspace::{PageCount, PageIndex, PageRange, UserRange, platform};
