//! The processor and what stands next to it: nothing here knows of threads' lives, processes or files.
//!
//! | file | what |
//! | --- | --- |
//! | `entry.s`, [`trap`] | ways into the kernel; exceptions and interrupts |
//! | [`cpu`] | what each processor has for itself, found by its GS base |
//! | [`descriptors`] | segments, the task state segment, gates |
//! | [`apic`] | interrupts to other processors, and the timer |
//! | [`clock`] | nanoseconds since the start |
//! | `ucopy.s`, [`user`] | a program's memory, as the kernel reads and writes it |
//! | [`preempt`] | where a long call lets interrupts and other threads in |
//! | [`stretch`] | how long interrupts were off |
//! | [`jitter`] | delays at random, for tests |
//! | [`features`] | what of this processor is turned on |
//! | [`lock`] | a spin lock whose waiters answer flushes |
//! | [`serial`] | the console |
//! | [`report`], [`halt`] | what the kernel itself says, and the end |

pub mod apic;
pub mod clock;
pub mod cpu;
pub mod descriptors;
pub mod features;
pub mod halt;
pub mod jitter;
pub mod lock;
pub mod preempt;
pub mod report;
pub mod serial;
pub mod stretch;
pub mod trap;
pub mod user;

use core::arch::global_asm;

global_asm!(include_str!("mem.s"), options(att_syntax));
global_asm!(include_str!("entry.s"), options(att_syntax));
global_asm!(include_str!("ucopy.s"), options(att_syntax));
