//! The local APIC: interrupts to other processors, and the timer. In QEMU's interpreter there is no x2APIC,
//! so its registers are memory.

use crate::arch::cpu::{self, MAX_CPUS};
use crate::arch::{clock, layout::direct};
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use x86_64::instructions::port::Port;

/// Vectors that this kernel uses.
pub const FLUSH: u8 = 0xf0;
/// Somebody put a thread into the queue of a processor that idles.
pub const WAKE: u8 = 0xf1;
pub const TIMER: u8 = 0xf2;
pub const SPURIOUS: u8 = 0xff;

const REGISTERS: u64 = 0xfee0_0000;
const EOI: u64 = 0xb0;
const COMMAND: u64 = 0x300;
const COMMAND_TO: u64 = 0x310;
const TIMER_MODE: u64 = 0x320;
const LINE_1: u64 = 0x360;
const TIMER_COUNT: u64 = 0x380;
const TIMER_NOW: u64 = 0x390;
const TIMER_DIVIDE: u64 = 0x3e0;

/// The APIC's number of each processor. Written before the processor starts.
static IDS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];
/// Turns of the timer in 2^32 nanoseconds; written once, before the timer is used.
static TURNS: AtomicU64 = AtomicU64::new(0);

fn write(register: u64, value: u32) {
    // SAFETY: a register of the local APIC, which the direct map shows.
    unsafe { direct::<u32>(REGISTERS + register).write_volatile(value) };
}

fn read(register: u64) -> u32 {
    // SAFETY: as above.
    unsafe { direct::<u32>(REGISTERS + register).read_volatile() }
}

/// Masks the old interrupt controllers, which the firmware leaves on vectors of exceptions.
pub fn mask_old_controllers() {
    // SAFETY: their mask registers.
    unsafe {
        Port::<u8>::new(0x21).write(0xff);
        Port::<u8>::new(0xa1).write(0xff);
    }
}

/// Turns the APIC of the calling processor on.
pub fn init() {
    write(0xf0, 0x100 | u32::from(SPURIOUS));
    write(0x80, 0);
    // Nonmaskable interrupts come by this line.
    write(LINE_1, 0x400);
    write(TIMER_DIVIDE, 0b1011);
    write(TIMER_MODE, u32::from(TIMER));
}

pub fn end_of_interrupt() {
    write(EOI, 0);
}

/// The processor `number` has this APIC number.
pub fn set_id(number: usize, id: u32) {
    IDS[number].store(id, Relaxed);
}

/// The number of the calling processor, as its APIC knows it: also where the GS base is a program's.
pub fn own_number() -> usize {
    let id = read(0x20) >> 24;
    (0..cpu::count()).find(|number| IDS[*number].load(Relaxed) == id).unwrap_or_default()
}

/// Interrupts another processor.
pub fn interrupt(number: usize, vector: u8) {
    command(IDS[number].load(Relaxed), 0x4000 | u32::from(vector));
}

/// Sends a command: INIT, start-up, or an interrupt.
pub fn command(id: u32, what: u32) {
    while read(COMMAND) & 0x1000 != 0 {
        core::hint::spin_loop();
    }
    write(COMMAND_TO, id << 24);
    write(COMMAND, what);
}

/// Lets the timer run while `wait` does, and keeps how fast it was.
pub fn calibrate(wait: impl FnOnce() -> u64) {
    write(TIMER_MODE, 0x1_0000 | u32::from(TIMER));
    write(TIMER_COUNT, u32::MAX);
    let ns = wait();
    let turns = u64::from(u32::MAX - read(TIMER_NOW));
    write(TIMER_COUNT, 0);
    write(TIMER_MODE, u32::from(TIMER));
    TURNS.store((turns << 32) / ns, SeqCst);
}

/// Has the timer of the calling processor go off at this time; `u64::MAX`: never.
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
