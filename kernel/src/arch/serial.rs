//! The first serial port (COM1): the output and input of the console.
//!
//! `files/console.rs` reads and writes programs' bytes here, and `report.rs` writes the report here if there
//! is no report port. The port causes no interrupts: output waits until the port is empty, and input is
//! polled. Bytes are sent unchanged.

use crate::arch::lock::SpinLock;
use x86_64::instructions::port::Port;

/// First I/O port of the serial port.
const BASE: u16 = 0x3f8;
/// Number of bytes that the port accepts after it has reported an empty queue.
const FIFO: usize = 16;

/// Held while a program's bytes are written.
static PORT: SpinLock<()> = SpinLock::new(());

/// Enables the port's queue, and disables its interrupts. Input that arrived before this call is lost; the
/// report's line `ready` therefore announces when input is accepted.
pub fn init() {
    // SAFETY: these are the ports of the first serial line. Writing them affects only its output.
    unsafe {
        Port::<u8>::new(BASE + 1).write(0);
        Port::<u8>::new(BASE + 3).write(3);
        Port::<u8>::new(BASE + 2).write(1);
    }
}

/// Writes all bytes, without output of another CPU in between.
pub fn write(bytes: &[u8]) {
    let _guard = PORT.lock();
    write_now(bytes);
}

/// Writes all bytes, even while another CPU writes: for a panic.
pub fn write_now(bytes: &[u8]) {
    for part in bytes.chunks(FIFO) {
        // SAFETY: as in `init`.
        unsafe {
            while Port::<u8>::new(BASE + 5).read() & 0x20 == 0 {}
            part.iter().for_each(|byte| Port::<u8>::new(BASE).write(*byte));
        }
    }
}

/// Takes a byte of input, if there is one.
pub fn read() -> Option<u8> {
    // SAFETY: as in `init`.
    unsafe { (Port::<u8>::new(BASE + 5).read() & 1 != 0).then(|| Port::<u8>::new(BASE).read()) }
}

/// Waits until everything is sent.
pub fn drain() {
    // SAFETY: as in `init`.
    while unsafe { Port::<u8>::new(BASE + 5).read() } & 0x40 == 0 {}
}
