//! The processor, its timers and interrupt controllers, and the serial port. No file of this folder depends
//! on how threads, processes or files work; traps call those layers through [`handlers`]. Interrupts are off
//! here, except for a moment in [`preempt`]. Rules 1, 2, 3, 5 and 6 of `kernel/README.md` apply to this
//! folder.
//!
//! A new call of an upper layer becomes a field of `Handlers`; `kernel/xtask/tests/layers.rs` rejects a
//! direct call. `cargo xtask kernel-tests registers canonical keys end-` runs the tests closest to this
//! folder.
//!
//! | file | what |
//! | --- | --- |
//! | `entry.s`, [`trap`] | ways into the kernel; exceptions and interrupts |
//! | [`cpu`] | per-CPU data, found by the GS base |
//! | [`descriptors`] | segments, the task state segment, gates |
//! | [`apic`] | interrupts to other CPUs, and the timer |
//! | [`clock`] | nanoseconds since the start |
//! | [`frame`] | a program's registers, and addresses that go into them |
//! | [`entry_work`] | the reasons for which system calls take a slower path |
//! | [`handlers`] | how traps call the kernel's upper layers: a table that boot installs |
//! | [`layout`] | the direct map, and the format of page tables |
//! | `ucopy.s` | copies from and to a program's memory |
//! | `mem.s` | `memcpy` and the other functions that compilers call |
//! | [`preempt`] | the points where a long call lets in interrupts and other threads |
//! | [`irq_off`] | how long interrupts were off |
//! | [`jitter`] | random delays, for tests |
//! | [`features`] | the processor features that are turned on |
//! | [`lock`] | a spin lock whose waiters answer flushes |
//! | [`random`] | pseudorandom numbers |
//! | [`serial`] | the console |
//! | [`report`], [`halt`] | the kernel's own messages, and the end of the machine |

pub mod apic;
pub mod clock;
pub mod cpu;
pub mod descriptors;
pub mod entry_work;
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
