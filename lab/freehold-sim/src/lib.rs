//! Many processors in virtual time: runs a program with shared memory on more processors than the host has.
//!
//! The program's tasks run one at a time on one thread, each on its own stack. Each virtual processor has a
//! clock. The next task to run is the task on the processor with the lowest clock, so accesses to shared
//! words happen in the order of virtual time. Runs with the same seed give exactly the same results. The time
//! of an access depends on the state of its cache line: which processor wrote the line last, which processors
//! have copies, how far away these processors are, and how many processors already wait for the line.
//! [`Machine`] has the costs. A line that several processors need passes from one processor to the next. The
//! queue for the line is the contention.
//!
//! | part | module | contents |
//! | --- | --- | --- |
//! | costs | [`machine`] | one file for each machine, with the source of every figure |
//! | cache lines | `line` | states, transfers, queues |
//! | processors, tasks, time | `world` | run queues, time slices, sleeping, spinning |
//! | the run | [`run`] | switches between tasks |
//! | the program's interface | [`atomic`], [`task`] | atomics; waiting, traps, interrupts, zeroing |
//! | marks for a memory trace | [`trace`] | for comparing the accesses that the simulation saw with the accesses that a program made |
//! | names of records | [`names`] | the record and field at an address |
//! | results | [`report`] | clocks, transfers, the hottest lines |
//! | addresses | `apart` | the allocator [`Apart`] and [`same_addresses`], which make results equal in every process |
//!
//! Outside a run, the atomics are those of the host's processor, and the functions of [`task`] do nothing.
//! The same build therefore prepares the data for a run without using virtual time.
//!
//! # Example
//!
//! ```
//! use freehold_sim::atomic::{AtomicU64, Ordering};
//! use freehold_sim::{Machine, run};
//!
//! // Sixteen processors count, either in one word or each in its own line.
//! fn took(lines: usize) -> u64 {
//!     #[repr(align(64))]
//!     struct Apart(AtomicU64);
//!     let words: Vec<Apart> = (0..lines).map(|_| Apart(AtomicU64::new(0))).collect();
//!     let count = |task: usize| {
//!         let word = &words[task % lines].0;
//!         (0..1000).for_each(|_| drop(word.fetch_add(1, Ordering::Relaxed)));
//!     };
//!     run(&Machine::named("e5-2690v4").unwrap(), 16, 1, (0..16).map(|task| move || count(task))).elapsed_ns
//! }
//!
//! assert!(took(1) > 10 * took(16));
//! ```
//!
//! # Limits
//!
//! Only accesses through [`atomic`] and [`task`] take time. Plain fields of records that a lock guards also
//! move between caches; the simulation sees them only if they are [cells](atomic::PlainCell). The
//! instructions between two accesses have the same cost everywhere, except for a small random variation. A
//! processor waits for each access, including a store, before it begins the next access. Caches are never
//! full. Only the tasks of the run use the processors.
#![deny(unsafe_code)]

mod apart;
pub mod atomic;
mod line;
pub mod machine;
pub mod names;
pub mod report;
mod run;
pub mod task;
pub mod trace;
mod world;

pub use apart::{Apart, same_addresses};
pub use machine::Machine;
pub use report::{HotField, HotLine, Report};
pub use run::run;
