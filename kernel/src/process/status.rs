//! The exit status of a process, in the forms in which wait4, SIGCHLD and the report of the machine show it.
//! A status is a plain value. A process has two statuses, `Process::ending` and `Process::status`, each under
//! a spin lock of its own.

use linux_raw_sys::general::{CLD_DUMPED, CLD_EXITED, CLD_KILLED};

/// The exit status of a process, in the form of `wait4`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(u32);

impl Status {
    /// Returns the status of a process that has called exit with this code.
    pub fn by_exit(code: u8) -> Self {
        Status(u32::from(code) << 8)
    }

    /// Returns the status of a process that this signal has ended.
    pub fn by_signal(signal: u8) -> Self {
        Status(signal.into())
    }

    /// Returns the status with the flag for a core file.
    pub fn with_core(self) -> Self {
        Status(self.0 | 0x80)
    }

    /// Returns the word that `wait4` stores.
    pub fn word(self) -> u32 {
        self.0
    }

    /// Returns `si_code` and `si_status` of SIGCHLD.
    pub fn code_and_value(self) -> (u32, u32) {
        match self.0 & 0x7f {
            0 => (CLD_EXITED, self.0 >> 8),
            signal if self.0 & 0x80 != 0 => (CLD_DUMPED, signal),
            signal => (CLD_KILLED, signal),
        }
    }

    /// Returns the status as one number, as a shell reports it: the exit code, or 128 plus the signal.
    pub fn code(self) -> u8 {
        match self.0 & 0x7f {
            0 => (self.0 >> 8) as u8,
            signal => 128 + signal as u8,
        }
    }
}
