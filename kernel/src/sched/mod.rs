//! Threads of the kernel, and which of them runs where. `process` adds the data of a program's threads.
//!
//! | file | what |
//! | --- | --- |
//! | [`thread`] | a thread: its stack, its registers, whether it sleeps, what it has to do |
//! | [`scheduler`] | queues of processors, switches, idling |
//! | [`wait`] | sleeping until somebody wakes, for a word of the kernel's or a program's |
//! | [`mutex`] | a lock that threads sleep for |
//! | [`timers`] | the tick, sleepers with a deadline, and what else expires |
//!
//! # Sleeping
//!
//! A thread that sleeps is *parked*; others wake it by *unparking* it, before or after, as often as they like:
//! a park that finds an unpark before it returns at once. So every wait is a loop that looks at its condition
//! again, and a signal needs no more than to set [`Thread::work`](thread::Thread::work) and unpark.

pub mod mutex;
pub mod scheduler;
pub mod thread;
pub mod timers;
pub mod wait;

pub use thread::{Thread, current, work};
