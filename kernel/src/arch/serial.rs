//! The serial port: the console's output and input.

use crate::arch::lock::SpinLock;
use x86_64::instructions::port::Port;

const BASE: u16 = 0x3f8;
/// Bytes that the port takes once it says that it is empty.
const FIFO: usize = 16;

static PORT: SpinLock<()> = SpinLock::new(());

/// Turns the queue on, and interrupts of the port off. What has come in before is lost, so the report says
/// that input is taken from now on.
pub fn init() {
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
    // SAFETY: as in `init`.
    unsafe { (Port::<u8>::new(BASE + 5).read() & 1 != 0).then(|| Port::<u8>::new(BASE).read()) }
}

/// Waits until everything is sent.
pub fn drain() {
    // SAFETY: as in `init`.
    while unsafe { Port::<u8>::new(BASE + 5).read() } & 0x40 == 0 {}
}
