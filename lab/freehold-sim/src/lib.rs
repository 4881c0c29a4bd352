//! Many processors in virtual time: what a program with shared memory does on more processors than there are.
//!
//! The program's tasks run one at a time, on one thread, each on a stack of its own. Each virtual processor
//! has a clock in nanoseconds. The task that goes on is the one on the processor whose clock is lowest, so
//! accesses to shared words happen in the order of virtual time, and a run is the same to the digit whenever
//! it is repeated with the same seed. What an access takes depends on the cache line ([`Machine`] has the
//! costs): the processor that wrote it last, those with copies, how far away they are, and those that wait
//! for it already. A line that several processors want is passed on from one to the next, and that queue is
//! the contention.
//!
//! | part | module | what to know |
//! | --- | --- | --- |
//! | costs | [`machine`] | one file for each machine, with the source of every figure |
//! | cache lines | `line` | states, transfers, queues |
//! | processors, tasks, time | `world` | run queues, time slices, sleeping, spinning |
//! | the run | [`run`] | switches between tasks |
//! | what a program calls | [`atomic`], [`task`] | atomics; waiting, traps, interrupts, zeroing |
//! | marks for a memory trace | [`trace`] | what the simulation saw, against what a program touched |
//! | names of records | [`names`] | which record and field an address is |
//! | what came out | [`report`] | clocks, transfers, the hottest lines |
//!
//! Outside of a run the atomics are the processor's own, and the calls of [`task`] do nothing. So the same
//! build prepares what a run works on, at no cost in virtual time.
//!
//! # Example
//!
//! ```
//! use freehold_sim::atomic::{AtomicU64, Ordering};
//! use freehold_sim::{Machine, run};
//!
//! /// Sixteen processors count: together in one word, or each in a line of its own.
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
//! # What it does not see
//!
//! Only what goes through [`atomic`] and [`task`] takes time. Plain fields of records that a lock guards move
//! from cache to cache as well, and are seen where they are [cells](atomic::PlainCell); instructions are one
//! cost for each access; a processor waits for each access, a store as well, before it begins the next;
//! caches are never full; nothing runs beside the tasks.
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
