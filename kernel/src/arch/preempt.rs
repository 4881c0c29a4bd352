//! The points where a long call of the kernel lets in interrupts and other threads.
//!
//! Interrupts are off in the kernel, so per-CPU data needs no lock. A long call lets interrupts in at
//! [`preempt_point`], where no operation is half done. The engine reaches such a point whenever it releases
//! its last spin lock ([`release_and_look`]) or waits for another CPU. The kernel's own long loops call
//! [`preempt_point`] themselves. If [`EVERY_NS`] have passed since interrupts were last let in, the point
//! enables interrupts for a moment, and a thread whose time slice is used up yields.
//!
//! [`hold`] forbids preemption. Code calls [`hold`] at the start of a spin lock section, a read section, a
//! lockless walk, a use of the CPU's number, and an interrupt. `Cpu::held` counts the holds of a CPU. If a
//! thread sleeps with a hold, the scheduler stops the machine. `PROTOCOL.md`, "Long calls", lists the states
//! in which code forbids preemption, and why.
//!
//! | end of a hold | preemption point | used by |
//! | --- | --- | --- |
//! | [`release`] | no | the kernel's spin locks, read sections, lockless walks, uses of the CPU's number, interrupts |
//! | [`release_and_look`] | yes, if it was the last hold | spin locks of the engine |
//!
//! After a preemption point the thread may be on another CPU, so the caller keeps no reference from [`cpu`]
//! and no CPU number over the point. Sleeping locks may be held over a preemption point.
//!
//! Option `giveway` makes every point switch threads, and `irqoff` measures the longest time that interrupts
//! were off. `cargo xtask kernel-tests --option giveway` runs the tests with switches at every point.

use super::handlers::handlers;
use crate::arch::cpu::{Cpu, cpu};
use crate::arch::{clock, irq_off};
use crate::options;
use core::arch::asm;
use core::arch::x86_64::_rdtsc;
use core::mem::offset_of;
use core::ptr;

/// Time after which a long call lets interrupts in again.
const EVERY_NS: u64 = 20_000;

/// Keeps the thread on its CPU, and interrupts off, until the matching [`release`].
#[inline(always)]
pub fn hold() {
    // SAFETY: changes a field of the calling CPU's `Cpu`, in one instruction.
    unsafe { asm!("inc dword ptr gs:[{}]", const offset_of!(Cpu, held), options(nostack)) };
}

/// Ends a [`hold`] without a preemption point.
#[inline(always)]
pub fn release() {
    // SAFETY: as in `hold`.
    unsafe { asm!("dec dword ptr gs:[{}]", const offset_of!(Cpu, held), options(nostack)) };
}

/// Ends a [`hold`]. If it was the last hold of the CPU, the call is a preemption point: the thread may
/// continue on another CPU.
#[inline(always)]
pub fn release_and_look() {
    // SAFETY: as in `hold`.
    unsafe {
        asm!(
            "dec dword ptr gs:[{}]",
            "jz {}",
            const offset_of!(Cpu, held),
            label { look_at_time() },
            options(nostack),
        );
    }
}

/// Lets in interrupts and other threads, if [`EVERY_NS`] have passed. The caller holds no spin lock and keeps
/// no reference from [`cpu`].
#[inline]
pub fn preempt_point() {
    if cpu().held.get() == 0 {
        look_at_time();
    }
}

/// Lets in interrupts and other threads, if [`EVERY_NS`] have passed.
#[inline(always)]
fn look_at_time() {
    let own = cpu();
    // SAFETY: every x86-64 CPU has the instruction.
    let now = unsafe { _rdtsc() } as u32;
    if now.wrapping_sub(own.let_in.get()) >= own.let_in_after.get() {
        let_in(now);
    }
}

/// Enables interrupts for one instruction, then lets another thread run if the time slice is used up. Does
/// nothing on the idle thread, which also runs the boot.
#[cold]
#[inline(never)]
fn let_in(now: u32) {
    let own = cpu();
    own.let_in.set(now);
    if ptr::eq(own.current.get(), own.idle.get()) {
        return;
    }
    irq_off::end_half_way();
    // SAFETY: nothing is held, so an interrupt finds all data consistent and leaves it consistent. `nop` is
    // there because interrupts are taken one instruction after `sti`.
    unsafe { asm!("sti", "nop", "cli") };
    irq_off::begin();
    if options::gives_way() {
        (handlers().give_way)();
    } else if cpu().resched.get() {
        (handlers().preempt)();
    }
}

/// Prepares the calling CPU. The clock must be calibrated.
pub fn init_cpu() {
    let turns = if options::gives_way() { 0 } else { clock::turns(EVERY_NS) };
    cpu().let_in_after.set(u32::try_from(turns).unwrap_or(u32::MAX));
}
