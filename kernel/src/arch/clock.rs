//! Nanoseconds since the start, by the time-stamp counter, which is the same on all processors.

use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use x86_64::instructions::port::Port;

/// The counter at the start. Both are written once, before there are other processors.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds in 2^32 turns of the counter.
static RATE: AtomicU64 = AtomicU64::new(1 << 32);

/// The time of the start, in nanoseconds since 1970: by the machine's own clock, until a program sets it.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// Turns of the old timer in a second, and how long it is looked at.
const PIT_HZ: u64 = 1_193_182;
const LOOK_NS: u64 = 20_000_000;

#[inline]
fn counter() -> u64 {
    // SAFETY: every processor of this kind has it.
    unsafe { _rdtsc() }
}

/// The time now. Never goes back.
#[inline]
pub fn now_ns() -> u64 {
    let turns = counter().wrapping_sub(START.load(Relaxed));
    ((u128::from(turns) * u128::from(RATE.load(Relaxed))) >> 32) as u64
}

/// Turns of the counter in so many nanoseconds.
pub fn turns(ns: u64) -> u64 {
    (ns << 32) / RATE.load(Relaxed)
}

/// A number that changes with every turn of the processor.
pub fn entropy() -> u64 {
    counter()
}

/// Measures the counter against the old timer, whose speed is known; returns how many nanoseconds that took.
pub fn calibrate() -> u64 {
    let begin = counter();
    wait_by_old_timer();
    let turns = counter() - begin;
    RATE.store((LOOK_NS << 32) / turns.max(1), Relaxed);
    START.store(begin, Relaxed);
    LOOK_NS
}

/// Waits, by channel 2 of the programmable interval timer.
fn wait_by_old_timer() {
    let count = PIT_HZ * LOOK_NS / 1_000_000_000;
    // SAFETY: ports of the timer and of its gate.
    unsafe {
        let mut gate = Port::<u8>::new(0x61);
        let before = gate.read();
        gate.write(before & 0xfc | 1);
        Port::<u8>::new(0x43).write(0xb0);
        Port::<u8>::new(0x42).write(count as u8);
        Port::<u8>::new(0x42).write((count >> 8) as u8);
        while gate.read() & 0x20 == 0 {
            core::hint::spin_loop();
        }
    }
}

/// Spins for so long.
pub fn spin_us(us: u64) {
    let end = now_ns() + us * 1000;
    while now_ns() < end {
        core::hint::spin_loop();
    }
}

pub fn epoch_ns() -> u64 {
    EPOCH.load(Relaxed)
}

/// The machine has started at this time.
pub fn set_epoch(ns: u64) {
    EPOCH.store(ns, Relaxed);
}

/// Asks the machine's clock (MC146818) what day it is.
pub fn read_day() {
    let mut before = date();
    // Twice the same: it was not being changed.
    loop {
        let again = date();
        if again == before {
            break;
        }
        before = again;
    }
    let [second, minute, hour, day, month, year] = before;
    let seconds = days_since_1970(2000 + year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
    set_epoch((seconds * 1_000_000_000).saturating_sub(now_ns()));
}

/// Second, minute, hour, day, month and year of this century.
fn date() -> [u64; 6] {
    while register(0xa) & 0x80 != 0 {
        core::hint::spin_loop();
    }
    let mode = register(0xb);
    let number = |byte: u8| match mode & 4 {
        0 => u64::from(byte >> 4) * 10 + u64::from(byte & 15),
        _ => u64::from(byte),
    };
    let hour = register(4);
    let mut date = [0, 2, 4, 7, 8, 9].map(|at| number(register(at)));
    if mode & 2 == 0 {
        date[2] = number(hour & 0x7f) % 12 + if hour & 0x80 != 0 { 12 } else { 0 };
    }
    date
}

fn register(at: u8) -> u8 {
    // SAFETY: ports of the clock; nonmaskable interrupts stay on.
    unsafe {
        Port::<u8>::new(0x70).write(at);
        Port::<u8>::new(0x71).read()
    }
}

/// In the calendar that we use, from a year that begins in March.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468
}
