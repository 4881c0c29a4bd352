//! A machine in a process: physical memory, virtual CPUs on real threads, and TLBs that keep stale
//! translations until they are flushed. The tests, replays and benches of the engine run on this platform;
//! `freehold-model` and the crates of `tools/` use it.
//!
//! # Parts
//!
//! | part | module | properties |
//! | --- | --- | --- |
//! | physical memory | [`Memory`], `pool`, `contents` | backed (frames have contents) or phantom (only numbers and records exist); the lowest free frames are handed out first, so the numbers of a batch ascend |
//! | page tables | `inner` | always have contents; table numbers are separate from frame numbers |
//! | virtual CPUs | [`Cpu`], `tlb` | an access looks in the leaf cache, then the walk cache, then the tables; a fault calls the caller's handler |
//! | address spaces | [`Mmu`] | records which CPUs may hold translations; a flush visits these CPUs and waits for accesses in progress |
//! | hardware variants | [`SoftwareBits`] | selects hardware that does not set accessed and dirty bits, so that software sets them |
//! | threads, waiting, grace periods | `host_std`, `host_shuttle`, `host_sim` | futexes, fatal signals ([`Task`]) and the epochs of crossbeam; under a checker or in a simulation, implementations on its threads |
//! | oracles | `oracle` | panic with the address, the frame and the CPU when they find a stale translation |
//! | contexts | `context` | panics if the table of [`freehold::platform`] forbids a call in its context; the message names the call and the context |
//! | failure injection | `inject` | makes allocations of frames and tables fail, per thread; [`FailingAllocator`] does the same for the heap |
//! | kernel's half | `kernel` | entries of the root tables that all address spaces share |
//! | programs | [`Process`] | passes the faults of a CPU to the engine |
//! | devices | [`Shadow`] | keeps translations of an address space, which no flush reaches, as a listener |
//! | swap devices | [`MemorySwap`] | keeps pages in memory; completes requests late and fails them as tests choose |
//! | reports | [`Accounting`], [`MachineStats`], `lock_log` | what is in use; counts of events; waits and holds of mmap locks |
//! | helpers of tests | `compiled`, `effort`, `example`, `exempt`, `nodes` | compile the engine once; choose the number of cases; set up the engine of an example; leave allocations out of failure injection; choose the width of tree nodes |
//!
//! The engine calls the machine in `machine.rs`, so a new service of the platform begins there. A new check
//! is a function of `oracle.rs` or a list of `context.rs`, and a new use of threads is a function of all
//! three hosts. The tests are in the folder `tests`, which is the package `freehold-machine-tests`.
//!
//! The host is chosen when the crate is compiled: `host_std` without a checker, `host_shuttle` with
//! `cfg(shuttle)`, `host_sim` with `cfg(sim)`. The machine's own words (records of pools, masks of CPUs,
//! contents) use the processor's atomics with every host, and its TLBs and free lists are behind short locks
//! of the host. The engine's words, page-table entries included, use `freehold_sync::atomic`.
//!
//! # Example
//!
//! ```
//! use freehold::platform::{FramePurpose, FrameRequest, Platform};
//! use freehold_machine::{Machine, MachineConfig};
//! use freehold_pagetable::{Level, PageTable, Pfn, PteFlags, Pte, VirtAddr, X86_4};
//!
//! let machine: Machine = Machine::new(MachineConfig::backed(1 << 20))?;
//! let tables = PageTable::<X86_4, Machine>::new(&machine)?;
//! let space = machine.space_created(tables.root()).ok_or("no room for a space")?;
//! let mut cpu = machine.cpu(0);
//!
//! // The handler is the kernel's page-fault entry: here it maps a fresh frame wherever a program touches.
//! let mut frame = [Pfn::new(0)];
//! cpu.store(&space, 0x7000, 42u64, |address, _access| {
//!     if machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frame) == 0 {
//!         return Err("out of memory");
//!     }
//!     machine.zero_frame(frame[0]);
//!     let flags = PteFlags::USER | PteFlags::WRITE;
//!     let table = tables.pte_table_alloc(&machine, address).map_err(|_| "no table")?;
//!     table.lock().set(address, Pte::page(frame[0], flags));
//!     Ok(())
//! })?;
//! assert_eq!(cpu.load::<u64, &str>(&space, 0x7000, |_, _| Err("a fault"))?, 42);
//! assert_eq!(machine.accounting().frames, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod bitmap;
mod blank;
mod charges;
#[cfg(debug_assertions)]
mod compiled;
mod config;
mod contents;
mod context;
mod cpu;
mod cpu_shared;
mod default_format;
mod effort;
mod example;
mod exempt;
#[cfg_attr(shuttle, path = "host_shuttle/mod.rs")]
#[cfg_attr(sim, path = "host_sim/mod.rs")]
#[cfg_attr(not(any(shuttle, sim)), path = "host_std/mod.rs")]
mod host;
mod inject;
mod inner;
mod inside;
mod kernel;
mod local;
mod lock_log;
mod machine;
mod memory_swap;
mod mmu;
mod nodes;
mod oracle;
mod pool;
mod process;
mod report;
mod shadow;
mod software_bits;
mod space_slot;
mod tlb;

pub use charges::{ChargeLimit, Owner};
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use compiled::compiled;
pub use config::{MachineConfig, Memory};
pub use contents::Word;
pub use context::{RcuGuard, deepest_call, unchecked};
pub use cpu::{Cpu, Entered};
pub use default_format::DefaultFormat;
// For the tests of this repository.
#[doc(hidden)]
pub use effort::Effort;
pub use example::example_engine;
pub use exempt::exempt;
pub use host::Task;
pub use inject::{
    FailingAllocator, fail_heap_from, fail_heap_once, fail_memory_from, fail_memory_once, stop_failing_heap,
    stop_failing_memory,
};
pub use lock_log::{log_locks, take_lock_log};
pub use machine::{Machine, MemoryShort};
pub use memory_swap::{MemorySwap, MemorySwapStats};
pub use mmu::Mmu;
#[doc(hidden)]
pub use nodes::nodes_for;
pub use pool::PoolCounts;
pub use process::Process;
pub use report::{Accounting, MachineStats};
pub use shadow::Shadow;
pub use software_bits::SoftwareBits;
