//! Where a thread of the kernel lets others have its processor, half-way through a long call.
//!
//! Interrupts are off in the kernel, so that what a processor has for itself needs no lock. A long call lets
//! them in at places where nothing is in the making: [`look`]. The engine comes by such a place whenever it
//! lets its last spin lock go ([`release_and_look`]), or waits for another processor; the kernel's own long
//! loops call [`look`] themselves. There, once [`EVERY_NS`] have passed since the last time, interrupts are on
//! for a moment, and a thread whose turn is over gives way.
//!
//! [`hold`] forbids it: spin locks, read sections, walks without locks, numbers of processors, and interrupts
//! themselves. The count is the processor's; a thread that sleeps has none, which the scheduler checks.

use super::handlers::handlers;
use crate::arch::cpu::{Cpu, cpu};
use crate::arch::{clock, irq_off};
use crate::options;
use core::arch::asm;
use core::arch::x86_64::_rdtsc;
use core::mem::offset_of;
use core::ptr;

/// How long a call goes on before it looks.
const EVERY_NS: u64 = 20_000;

/// Until the matching [`release`] the thread keeps its processor, and interrupts stay off.
#[inline(always)]
pub fn hold() {
    // SAFETY: the processor's own, in one instruction.
    unsafe { asm!("inc dword ptr gs:[{}]", const offset_of!(Cpu, held), options(nostack)) };
}

/// Ends a [`hold`], where the caller is in the midst of something.
#[inline(always)]
pub fn release() {
    // SAFETY: as in `hold`.
    unsafe { asm!("dec dword ptr gs:[{}]", const offset_of!(Cpu, held), options(nostack)) };
}

/// Ends a [`hold`]. The thread may be somewhere else afterwards, if that was the last.
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

/// A place where interrupts may come, and others may have the processor. No spin lock is held, and nothing of
/// [`cpu`] is at hand.
#[inline]
pub fn preempt_point() {
    if cpu().held.get() == 0 {
        look_at_time();
    }
}

#[inline(always)]
fn look_at_time() {
    let own = cpu();
    // SAFETY: every processor of this kind has it.
    let now = unsafe { _rdtsc() } as u32;
    if now.wrapping_sub(own.let_in.get()) >= own.let_in_after.get() {
        let_in(now);
    }
}

#[cold]
#[inline(never)]
fn let_in(now: u32) {
    let own = cpu();
    own.let_in.set(now);
    if ptr::eq(own.current.get(), own.idle.get()) {
        return;
    }
    irq_off::end(irq_off::HALF_WAY);
    // SAFETY: nothing is held, so an interrupt finds all in order, and leaves it so. `nop`: interrupts come
    // one instruction after `sti`.
    unsafe { asm!("sti", "nop", "cli") };
    irq_off::begin();
    if options::gives_way() {
        (handlers().give_way)();
    } else if cpu().resched.get() {
        (handlers().preempt)();
    }
}

/// Prepares the calling processor. The clock is right already.
pub fn init_cpu() {
    let turns = if options::gives_way() { 0 } else { clock::turns(EVERY_NS) };
    cpu().let_in_after.set(u32::try_from(turns).unwrap_or(u32::MAX));
}
