//! Threads of the kernel, and the CPUs on which they run. `process` adds the data of a program's threads.
//!
//! | file | what |
//! | --- | --- |
//! | [`thread`] | a thread: its stack, its registers, whether it sleeps, its pending work |
//! | [`scheduler`] | per-CPU queues, switches, idling |
//! | [`wait`] | sleeping until a wake-up on a word of the kernel or a program |
//! | [`mutex`] | a lock whose waiters sleep |
//! | [`checkpoint`](mod@checkpoint) | the step of a loop whose length a program chooses |
//! | [`charge`] | kernel memory that processes cause, and whether a call may allocate more |
//! | [`timers`] | the tick, sleepers with a deadline, and other timers |
//!
//! # Sleeping
//!
//! A sleeping thread is *parked*. Other threads wake it by *unparking* it, before or after it parks, any
//! number of times. A park after an unpark returns at once. Every wait is therefore a loop that checks its
//! condition again, and a signal only has to set [`Thread::work`](thread::Thread::work) and unpark the
//! thread.
//!
//! Other layers sleep with [`wait`] or [`mutex`], and never park a thread themselves. State that the
//! scheduler needs is a field of [`Thread`]; state of the program is a field of `PosixThread`
//! (`process/thread.rs`). The programs `threads.c` and `jobs.c` of the tests check this folder. `--times N`
//! runs them with random delays.

pub mod charge;
pub mod checkpoint;
mod key;
pub mod mutex;
pub mod scheduler;
pub mod thread;
pub mod timers;
pub mod wait;

pub use checkpoint::checkpoint;
pub use thread::{Thread, current, work};
