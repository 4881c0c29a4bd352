//! Which space a processor runs, and what it forgets when others ask.

use crate::arch::cpu::{self, MAX_CPUS, cpu};
use crate::arch::{apic, features, jitter};
use crate::memory::kernel_root;
use core::ptr;
use freehold::platform::{Flush, Pfn};
use freehold::{PAGE_SHIFT, PAGE_SIZE};
use freehold_kit::{Load, Processors, ShootCpu, Shootdown, SpaceCpus};
use x86_64::registers::control::Cr3;

static TLBS: Shootdown<MAX_CPUS> = Shootdown::new([const { ShootCpu::new() }; MAX_CPUS]);
/// Pages that are forgotten one by one; for more, all is.
const ONE_BY_ONE: u64 = 33;
/// Of what is loaded as a root: the context's translations stay. The context is in the lowest bits.
const KEEP: u64 = 1 << 63;

/// How processors reach each other.
struct Machine;

impl Processors for Machine {
    fn interrupt(&self, cpu: usize) {
        apic::interrupt(cpu, apic::FLUSH);
    }

    fn flush_here(&self, _: usize, root: Pfn, what: &Flush) {
        debug_assert_eq!(current_root(), root.get() << PAGE_SHIFT);
        let (start, end) = (what.start.get(), what.end.get());
        if what.all || start >= end || end - start > ONE_BY_ONE * PAGE_SIZE {
            reload();
        } else {
            // Each forgets what is remembered of tables, too.
            (start..end).step_by(PAGE_SIZE as usize).for_each(forget);
        }
    }

    fn switch_away(&self, _: usize, _: Pfn) {
        load(kernel_root());
        cpu().loaded.set(ptr::null());
    }

    fn relax(&self) {
        core::hint::spin_loop();
    }
}

fn current_root() -> u64 {
    Cr3::read_raw().0.start_address().as_u64()
}

/// Forgets one page. The crate `x86_64` would cut the address to 48 bits.
fn forget(at: u64) {
    // SAFETY: drops what tables say anyway.
    unsafe { core::arch::asm!("invlpg [{}]", in(reg) at, options(nostack, preserves_flags)) };
}

fn load(root: u64) {
    // SAFETY: a root whose upper half is the kernel's.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}

/// Loads a space's root. Context 0 is the kernel's own root's.
fn load_space(space: &SpaceCpus, how: Load) {
    let kept = if how.keeps { KEEP } else { 0 };
    let context = if features::has_contexts() { (how.context as u64 + 1) | kept } else { 0 };
    load((space.root().get() << PAGE_SHIFT) | context);
}

/// Forgets all of the context that is loaded but what is global.
fn reload() {
    // SAFETY: what is in the register.
    unsafe {
        core::arch::asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack, preserves_flags));
    }
}

/// `Platform::space_created`.
pub fn space(root: Pfn) -> SpaceCpus {
    TLBS.space(root)
}

/// Answers the flushes that others wait for.
#[inline]
pub fn answer() {
    TLBS.answer(cpu::number(), &Machine);
}

/// `Platform::flush`.
pub fn flush(space: &SpaceCpus, what: &Flush) {
    jitter::stall();
    TLBS.flush(cpu::number(), space, what, &Machine);
}

/// `Platform::space_ending`.
pub fn end(space: &SpaceCpus) {
    TLBS.end(cpu::number(), space, &Machine);
}

/// `Platform::runs_elsewhere`.
pub fn runs_elsewhere(space: &SpaceCpus) -> bool {
    TLBS.runs_elsewhere(cpu::number(), space)
}

/// Whether the processor runs this space's programs.
pub fn runs(space: &SpaceCpus) -> bool {
    TLBS.runs(cpu::number(), space)
}

/// The processor goes on with a program in this space. The caller keeps the space until the next call.
pub fn enter(space: &SpaceCpus) {
    let own = cpu();
    let number = own.number.get();
    if own.loaded.get() == ptr::from_ref(space) && TLBS.runs(number, space) {
        return;
    }
    if let Some(how) = TLBS.enter(number, space) {
        load_space(space, how);
        let before = own.loaded.replace(space);
        if !before.is_null() {
            // SAFETY: `space_ending` of that one would have made this processor forget it.
            TLBS.leave(number, unsafe { &*before });
        }
    }
}

/// The processor goes on without a program, in whatever space it is.
pub fn idle() {
    let loaded = cpu().loaded.get();
    // SAFETY: as in `enter`.
    if let Some(space) = unsafe { loaded.as_ref() }
        && TLBS.runs(cpu::number(), space)
    {
        TLBS.idle(cpu::number(), space);
    }
}

/// The processor goes on in no space at all: what it ran may end.
pub fn leave() {
    load(kernel_root());
    let before = cpu().loaded.replace(ptr::null());
    if !before.is_null() {
        // SAFETY: as in `enter`.
        TLBS.leave(cpu::number(), unsafe { &*before });
    }
}
