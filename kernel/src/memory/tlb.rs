//! The address space that each CPU runs, and the TLB flushes that CPUs request of each other.
//!
//! `freehold-kit` has the protocol, and its `shootdown.rs` explains why no stale translation survives. This
//! file supplies the instructions and the interrupt ([`Machine`]).
//!
//! | functions | called by |
//! | --- | --- |
//! | [`space`], [`flush`], [`end`], [`runs_elsewhere`], [`runs`] | `platform/mod.rs`, for the functions of `Platform` |
//! | [`barrier`] | `calls/memory.rs` for membarrier |
//! | [`enter`], [`idle`], [`leave`] | `sched/scheduler.rs` when threads switch, `process/thread.rs` when a thread changes its space |
//! | [`answer`] | the interrupt `FLUSH`, and `arch/lock.rs` in every loop that waits for another CPU |
//!
//! Rules:
//!
//! - Only this file loads CR3, because the protocol must know which spaces may have entries in the TLB of a
//!   CPU.
//! - A CPU that waits with interrupts off must call [`answer`] in its loop, because another CPU may wait for
//!   the answer. A lockless walk of tables (`walk_tables`) must not call [`answer`], because a flush has to
//!   wait for the end of the walk.
//! - No lock guards the state: it is atomic, or belongs to one CPU (`Cpu::loaded`) and is changed with
//!   interrupts off.
//! - Only translations of programs are flushed here. Entries of the kernel's half are global and never
//!   change.
//!
//! loom tests the protocol (`tests/loom_kit` of `freehold-kit`). The kernel's tests run it with real TLBs:
//! `loops.c` measures flushes, and `cargo xtask kernel-tests --times N` delays CPUs in [`flush`]
//! (`arch/jitter.rs`).

use crate::arch::cpu::{self, MAX_CPUS, cpu};
use crate::arch::{apic, features, jitter, preempt};
use crate::memory::kernel_root;
use core::ptr;
use core::sync::atomic::{Ordering::SeqCst, fence};
use freehold::platform::{Flush, Pfn};
use freehold::{PAGE_SHIFT, VirtAddr};
use freehold_kit::{Load, Processors, ShootCpu, Shootdown, SpaceCpus};
use x86_64::registers::control::Cr3;

/// The state of the protocol: which CPUs run a space or keep its TLB entries, and pending flushes.
static TLBS: Shootdown<MAX_CPUS> = Shootdown::new([const { ShootCpu::new() }; MAX_CPUS]);
/// Maximum number of translations that are flushed one by one. For more, the whole context is flushed.
const ONE_BY_ONE: usize = 33;
/// Bit of a root's CR3 value: keep the context's TLB entries. The context is in the lowest bits.
const KEEP: u64 = 1 << 63;

/// The operations by which CPUs interrupt each other and flush TLBs.
struct Machine;

impl Processors for Machine {
    fn interrupt(&self, cpu: usize) {
        apic::interrupt(cpu, apic::FLUSH);
    }

    fn flush_here(&self, _: usize, root: Pfn, what: &Flush) {
        debug_assert_eq!(current_root(), root.get() << PAGE_SHIFT);
        if what.all || what.visits().len() > ONE_BY_ONE {
            reload();
        } else {
            // Each `invlpg` drops all of a larger translation, and also the cached upper-level entries.
            what.visits().for_each(|at| forget(at.get()));
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

/// Returns the physical address of the loaded root.
fn current_root() -> u64 {
    Cr3::read_raw().0.start_address().as_u64()
}

/// Flushes one translation. Written in assembly, because the crate `x86_64` would truncate the address to 48 bits.
fn forget(at: u64) {
    // SAFETY: drops TLB entries, which the CPU reloads from the page tables.
    unsafe { core::arch::asm!("invlpg [{}]", in(reg) at, options(nostack, preserves_flags)) };
}

/// Loads a root, with its context in the lowest bits.
fn load(root: u64) {
    // SAFETY: the upper half of every root is the kernel's.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}

/// Loads a space's root with the context number (PCID) that the protocol chose. Context 0 belongs to the
/// kernel's own root.
fn load_space(space: &SpaceCpus, how: Load) {
    let kept = if how.keeps { KEEP } else { 0 };
    let context = if features::has_contexts() { (how.context as u64 + 1) | kept } else { 0 };
    load((space.root().get() << PAGE_SHIFT) | context);
}

/// Flushes the loaded context, except global entries.
fn reload() {
    // SAFETY: writes back the value that the register has.
    unsafe {
        core::arch::asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack, preserves_flags));
    }
}

/// Implements `Platform::space_created`.
pub fn space(root: Pfn) -> SpaceCpus {
    TLBS.space(root)
}

/// Answers the flushes for which other CPUs wait.
#[inline]
pub fn answer() {
    TLBS.answer(cpu::number(), &Machine);
}

/// Implements `Platform::flush`.
pub fn flush(space: &SpaceCpus, what: &Flush) {
    jitter::stall();
    TLBS.flush(cpu::number(), space, what, &Machine);
}

/// Makes every CPU that runs a program in this space pass a full memory barrier and execute a serializing
/// instruction (`invlpg`), and waits for them. A CPU that begins to run such a program later passes a barrier
/// first, because it switches threads. Flushes a page for this purpose, so that there is only one protocol.
pub fn barrier(space: &SpaceCpus) {
    // The thread stays on its CPU during a flush.
    preempt::hold();
    flush(space, &Flush::page(VirtAddr::new(0)));
    preempt::release();
    fence(SeqCst);
}

/// Implements `Platform::space_ending`.
pub fn end(space: &SpaceCpus) {
    TLBS.end(cpu::number(), space, &Machine);
}

/// Implements `Platform::runs_elsewhere`.
pub fn runs_elsewhere(space: &SpaceCpus) -> bool {
    TLBS.runs_elsewhere(cpu::number(), space)
}

/// Returns true if the calling CPU runs programs in this space.
pub fn runs(space: &SpaceCpus) -> bool {
    TLBS.runs(cpu::number(), space)
}

/// Makes the calling CPU run a program in this space. The caller keeps the space alive until the next call.
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
            // SAFETY: the old space is alive: its `space_ending` would have cleared this CPU's `loaded`.
            TLBS.leave(number, unsafe { &*before });
        }
    }
}

/// Records that the calling CPU runs no program. The page-table root of the last space stays loaded, so no
/// load is needed if the same space runs next.
pub fn idle() {
    let loaded = cpu().loaded.get();
    // SAFETY: as in `enter`.
    if let Some(space) = unsafe { loaded.as_ref() }
        && TLBS.runs(cpu::number(), space)
    {
        TLBS.idle(cpu::number(), space);
    }
}

/// Makes the calling CPU load the kernel's own root, so that the space that the CPU ran can end.
pub fn leave() {
    load(kernel_root());
    let before = cpu().loaded.replace(ptr::null());
    if !before.is_null() {
        // SAFETY: as in `enter`.
        TLBS.leave(cpu::number(), unsafe { &*before });
    }
}
