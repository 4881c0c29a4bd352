//! The clock: nanoseconds since the start, measured by the time-stamp counter. The kernel assumes that all
//! CPUs have the same counter.
//!
//! The rate is measured once, against the PIT, the old timer of the PC, before the other CPUs start. Reading
//! the time takes no lock. The wall-clock time is the sum of these nanoseconds and the wall-clock time of the
//! start, which changes when a program sets the clock. `calls/time.rs` converts times, and `sched/timers.rs`
//! has the timers. A clock that programs can name is an arm of `now` in `calls/time.rs`.

use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use x86_64::instructions::port::Port;

/// Value of the counter at the start. `START` and `RATE` are written once, before the other CPUs start.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds in 2^32 ticks of the counter.
static RATE: AtomicU64 = AtomicU64::new(1 << 32);

/// Wall-clock time of the start, in nanoseconds since 1970. Comes from the CMOS clock until a program sets
/// the time.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// Frequency of the programmable interval timer (PIT).
const PIT_HZ: u64 = 1_193_182;
/// Duration of the calibration.
const LOOK_NS: u64 = 20_000_000;

/// Reads the time-stamp counter.
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction.
    unsafe { _rdtsc() }
}

/// Returns the nanoseconds since the start. The time never decreases.
#[inline]
pub fn now_ns() -> u64 {
    let turns = counter().wrapping_sub(START.load(Relaxed));
    ((u128::from(turns) * u128::from(RATE.load(Relaxed))) >> 32) as u64
}

/// Converts nanoseconds to ticks of the counter.
pub fn turns(ns: u64) -> u64 {
    (ns << 32) / RATE.load(Relaxed)
}

/// Returns a number that changes on every tick of the counter.
pub fn entropy() -> u64 {
    counter()
}

/// Measures the counter against the PIT, whose frequency is known. Returns the nanoseconds that the
/// measurement took.
pub fn calibrate() -> u64 {
    let begin = counter();
    wait_by_old_timer();
    let turns = counter() - begin;
    RATE.store((LOOK_NS << 32) / turns.max(1), Relaxed);
    START.store(begin, Relaxed);
    LOOK_NS
}

/// Waits for `LOOK_NS`, timed by channel 2 of the PIT.
fn wait_by_old_timer() {
    let count = PIT_HZ * LOOK_NS / 1_000_000_000;
    // SAFETY: these are the ports of the PIT and of its gate.
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

/// Spins for `us` microseconds.
pub fn spin_us(us: u64) {
    let end = now_ns() + us * 1000;
    while now_ns() < end {
        core::hint::spin_loop();
    }
}

/// Returns the wall-clock time of the start, in nanoseconds since 1970.
pub fn epoch_ns() -> u64 {
    EPOCH.load(Relaxed)
}

/// Sets the wall-clock time of the start, in nanoseconds since 1970.
pub fn set_epoch(ns: u64) {
    EPOCH.store(ns, Relaxed);
}

/// Reads the date and time from the CMOS clock (MC146818).
pub fn read_day() {
    let mut before = date();
    // Two equal readings mean that the clock was not being updated.
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

/// Reads second, minute, hour, day, month and year of this century.
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

/// Reads a register of the CMOS clock.
fn register(at: u8) -> u8 {
    // SAFETY: these are the ports of the clock. Bit 7 of port 0x70 is clear, so nonmaskable interrupts stay
    // enabled.
    unsafe {
        Port::<u8>::new(0x70).write(at);
        Port::<u8>::new(0x71).read()
    }
}

/// Returns the days from 1970 to a date of the Gregorian calendar. Computes with years that begin in March.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468
}
