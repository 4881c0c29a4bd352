//! The local APIC: interrupts to other CPUs, and the timer. Its registers are memory-mapped, because QEMU's
//! interpreter has no x2APIC.
//!
//! `boot/smp.rs` starts CPUs with the APIC, `memory/tlb.rs` and `sched/scheduler.rs` interrupt other CPUs,
//! and `sched/timers.rs` owns the timer. Each CPU uses only its own APIC, with interrupts off, so no lock is
//! needed: no interrupt can come between the two stores of [`command`]. A new vector needs an arm in
//! `trap.rs`.

use crate::arch::cpu::{self, MAX_CPUS};
use crate::arch::{clock, layout::direct};
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use x86_64::instructions::port::Port;

/// Vector that asks a CPU to answer TLB flushes. The kernel uses no vectors for interrupts except `FLUSH`,
/// [`WAKE`], [`TIMER`] and [`SPURIOUS`].
pub const FLUSH: u8 = 0xf0;
/// Vector that makes a CPU enter the kernel, because a thread was put into the CPU's queue or the running
/// thread has new work.
pub const WAKE: u8 = 0xf1;
/// Vector of the local timer.
pub const TIMER: u8 = 0xf2;
/// Vector of interrupts that were withdrawn before they were delivered. Such an interrupt needs no
/// [`end_of_interrupt`].
pub const SPURIOUS: u8 = 0xff;

/// Physical address of the registers. The offsets of the registers in use follow.
const REGISTERS: u64 = 0xfee0_0000;
const EOI: u64 = 0xb0;
const COMMAND: u64 = 0x300;
const COMMAND_TO: u64 = 0x310;
const TIMER_MODE: u64 = 0x320;
const LINE_1: u64 = 0x360;
const TIMER_COUNT: u64 = 0x380;
const TIMER_NOW: u64 = 0x390;
const TIMER_DIVIDE: u64 = 0x3e0;

/// The APIC ID of each CPU. Written before the CPU starts.
static IDS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];
/// Timer ticks in 2^32 nanoseconds. Written once, before the timer is used.
static TURNS: AtomicU64 = AtomicU64::new(0);

fn write(register: u64, value: u32) {
    // SAFETY: the address is a register of the local APIC, in the part of the direct map that `boot.s` made.
    unsafe { direct::<u32>(REGISTERS + register).write_volatile(value) };
}

fn read(register: u64) -> u32 {
    // SAFETY: as in `write`.
    unsafe { direct::<u32>(REGISTERS + register).read_volatile() }
}

/// Masks the legacy interrupt controllers (8259), which the firmware maps to vectors of exceptions.
pub fn mask_old_controllers() {
    // SAFETY: these ports are the mask registers of the two controllers.
    unsafe {
        Port::<u8>::new(0x21).write(0xff);
        Port::<u8>::new(0xa1).write(0xff);
    }
}

/// Enables the local APIC of the calling CPU.
pub fn init() {
    write(0xf0, 0x100 | u32::from(SPURIOUS));
    write(0x80, 0);
    // Delivers the LINT1 line as a nonmaskable interrupt.
    write(LINE_1, 0x400);
    write(TIMER_DIVIDE, 0b1011);
    write(TIMER_MODE, u32::from(TIMER));
}

/// Ends the current interrupt, so that the APIC delivers the next one.
pub fn end_of_interrupt() {
    write(EOI, 0);
}

/// Sets the APIC ID of the CPU `number`.
pub fn set_id(number: usize, id: u32) {
    IDS[number].store(id, Relaxed);
}

/// Returns the number of the calling CPU, found by its APIC ID. In contrast to `cpu::number` this also works
/// while the GS base is a program's, as in a nonmaskable interrupt.
pub fn own_number() -> usize {
    let id = read(0x20) >> 24;
    (0..cpu::count()).find(|number| IDS[*number].load(Relaxed) == id).unwrap_or_default()
}

/// Sends an interrupt to another CPU.
pub fn interrupt(number: usize, vector: u8) {
    command(IDS[number].load(Relaxed), 0x4000 | u32::from(vector));
}

/// Sends a command to the CPU with this APIC ID: INIT, start-up, or an interrupt. Spins until the APIC has
/// sent the previous command.
pub fn command(id: u32, what: u32) {
    while read(COMMAND) & 0x1000 != 0 {
        core::hint::spin_loop();
    }
    write(COMMAND_TO, id << 24);
    write(COMMAND, what);
}

/// Measures the timer's rate while `wait` runs. `wait` returns the nanoseconds that it took.
pub fn calibrate(wait: impl FnOnce() -> u64) {
    write(TIMER_MODE, 0x1_0000 | u32::from(TIMER));
    write(TIMER_COUNT, u32::MAX);
    let ns = wait();
    let turns = u64::from(u32::MAX - read(TIMER_NOW));
    write(TIMER_COUNT, 0);
    write(TIMER_MODE, u32::from(TIMER));
    TURNS.store((turns << 32) / ns, SeqCst);
}

/// Sets the timer of the calling CPU to fire at `at`, in nanoseconds since the start. `u64::MAX` disarms the
/// timer. A distant time fires early, after about two seconds, so the handler must look at the clock.
pub fn set_timer(at: u64) {
    let own = cpu::cpu();
    if own.timer.replace(at) == at {
        return;
    }
    let count = match at {
        u64::MAX => 0,
        _ => {
            let ns = at.saturating_sub(clock::now_ns()).min(1 << 31);
            ((ns * TURNS.load(Relaxed)) >> 32).max(1)
        }
    };
    write(TIMER_COUNT, u32::try_from(count).unwrap_or(u32::MAX));
}
