//! The report port, on which the kernel sends messages to the command that booted it: see `PROTOCOL.md`,
//! which fixes the first word of each line. On a machine without the port, the messages appear on the
//! console.
//!
//! Code uses the macros. `report!` and `say!` assemble a line on the stack and write it under a spin lock, so
//! that lines of different CPUs do not mix. `report_now!` takes no lock and is only for a kernel that cannot
//! continue. None of these macros allocates or sleeps. A new first word also needs an arm in `Report::read`
//! (`kernel/xtask/src/boot/report.rs`).

use crate::arch::{lock::SpinLock, serial};
use core::fmt;
use x86_64::instructions::port::Port;

/// I/O port of QEMU's debug console: the report port.
const PORT: u16 = 0xe9;
/// Value that a read of the port returns if the port exists.
const THERE: u8 = 0xe9;
/// Maximum length of a line that is written without interleaving.
const LINE: usize = 240;

/// Held while a line is written. No other lock is taken under this lock.
static LOCK: SpinLock<()> = SpinLock::new(());

/// Writes all bytes, even while another CPU writes.
fn write_now(bytes: &[u8]) {
    // SAFETY: the port of QEMU's debug console; another machine has nothing there.
    if unsafe { Port::<u8>::new(PORT).read() } != THERE {
        return serial::write_now(bytes);
    }
    // SAFETY: as above.
    bytes.iter().for_each(|byte| unsafe { Port::<u8>::new(PORT).write(*byte) });
}

/// A sink that writes formatted text immediately and without a lock, for a panic.
pub struct Raw;

impl fmt::Write for Raw {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write_now(text.as_bytes());
        Ok(())
    }
}

/// A line that is assembled, then written without output of another CPU in between.
pub struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Line {
    pub const fn new() -> Self {
        Self { bytes: [0; LINE], len: 0 }
    }

    /// Writes the line. Text that did not fit is cut off.
    pub fn end(mut self) {
        self.bytes[self.len] = b'\n';
        let _guard = LOCK.lock();
        write_now(&self.bytes[..=self.len]);
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = text.len().min(LINE - 1 - self.len);
        self.bytes[self.len..][..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        Ok(())
    }
}

/// Writes a line of the report.
macro_rules! report {
    ($($part:tt)*) => {{
        use core::fmt::Write;
        let mut line = $crate::arch::report::Line::new();
        let _ = write!(line, $($part)*);
        line.end();
    }};
}
pub(crate) use report;

/// Writes a line of the report immediately, without a lock: for a kernel that cannot continue.
macro_rules! report_now {
    ($($part:tt)*) => {{
        use core::fmt::Write;
        let _ = writeln!($crate::arch::report::Raw, $($part)*);
    }};
}
pub(crate) use report_now;

/// Writes a message to the log: a line of the report that begins with `log`.
macro_rules! say {
    ($($part:tt)*) => { $crate::arch::report::report!("log {}", format_args!($($part)*)) };
}
pub(crate) use say;
