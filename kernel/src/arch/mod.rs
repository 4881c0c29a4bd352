//! The processor and what stands next to it: nothing here knows of threads' lives, processes or files.
//!
//! | file | what |
//! | --- | --- |
//! | `entry.s`, [`trap`] | ways into the kernel; exceptions and interrupts |
//! | [`cpu`] | what each processor has for itself, found by its GS base |
//! | [`descriptors`] | segments, the task state segment, gates |
//! | [`apic`] | interrupts to other processors, and the timer |
//! | [`clock`] | nanoseconds since the start |
//! | [`frame`] | a program's registers, and addresses that go into them |
//! | [`handlers`] | what the kernel above does about traps: a table that boot installs |
//! | [`layout`] | where memory is visible, and the format of page tables |
//! | `ucopy.s` | copies from and to a program's memory |
//! | [`preempt`] | where a long call lets interrupts and other threads in |
//! | [`irq_off`] | how long interrupts were off |
//! | [`jitter`] | delays at random, for tests |
//! | [`features`] | what of this processor is turned on |
//! | [`lock`] | a spin lock whose waiters answer flushes |
//! | [`random`] | numbers that look random |
//! | [`serial`] | the console |
//! | [`report`], [`halt`] | what the kernel itself says, and the end |

pub mod apic;
pub mod clock;
pub mod cpu;
pub mod descriptors;
pub mod features;
pub mod frame;
pub mod halt;
pub mod handlers;
pub mod irq_off;
pub mod jitter;
pub mod layout;
pub mod lock;
pub mod preempt;
pub mod random;
pub mod report;
pub mod serial;
pub mod trap;

use core::arch::global_asm;

global_asm!(include_str!("mem.s"), options(att_syntax));
global_asm!(include_str!("entry.s"), options(att_syntax));
global_asm!(include_str!("ucopy.s"), options(att_syntax));
