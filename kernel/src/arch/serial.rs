//! The serial port: the console's output and input.

use super::lock::SpinLock;
use core::sync::atomic::{AtomicU16, Ordering::Relaxed};
use x86_64::instructions::port::Port;

const BASE: u16 = 0x3f8;
/// Bytes that the port takes once it says that it is empty.
const FIFO: usize = 16;

static PORT: SpinLock<()> = SpinLock::new(());

/// A byte that came in before the queue was there, plus one; 0: none.
static EARLY: AtomicU16 = AtomicU16::new(0);

/// Turns the queue on, and interrupts of the port off. Turning it on drops a byte that has come in already,
/// so that is taken first.
pub fn init() {
    if let Some(byte) = read() {
        EARLY.store(u16::from(byte) + 1, Relaxed);
    }
    // SAFETY: the port of the first serial line; nothing but output follows from it.
    unsafe {
        Port::<u8>::new(BASE + 1).write(0);
        Port::<u8>::new(BASE + 3).write(3);
        Port::<u8>::new(BASE + 2).write(1);
    }
}

/// Writes all of it, with nothing of another processor's in between.
pub fn write(bytes: &[u8]) {
    let _guard = PORT.lock();
    write_now(bytes);
}

/// The same, though others may be writing: for a panic.
pub fn write_now(bytes: &[u8]) {
    for part in bytes.chunks(FIFO) {
        // SAFETY: as in `init`.
        unsafe {
            while Port::<u8>::new(BASE + 5).read() & 0x20 == 0 {}
            part.iter().for_each(|byte| Port::<u8>::new(BASE).write(*byte));
        }
    }
}

/// Takes a byte that came in.
pub fn read() -> Option<u8> {
    // Relaxed: the byte is all there is to it.
    if let Some(early) = EARLY.swap(0, Relaxed).checked_sub(1) {
        return Some(early as u8);
    }
    // SAFETY: as in `init`.
    unsafe { (Port::<u8>::new(BASE + 5).read() & 1 != 0).then(|| Port::<u8>::new(BASE).read()) }
}

/// Waits until everything is sent.
pub fn drain() {
    // SAFETY: as in `init`.
    while unsafe { Port::<u8>::new(BASE + 5).read() } & 0x40 == 0 {}
}
