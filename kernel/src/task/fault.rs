//! Page faults and exceptions of programs.

use super::exit::{self, Status};
use crate::arch::cpu;
use crate::arch::report::say;
use crate::arch::trap::Frame;
use crate::options;
use freehold::fault::{Access, FaultError};

const SIGILL: u8 = 4;
const SIGTRAP: u8 = 5;
const SIGBUS: u8 = 7;
const SIGFPE: u8 = 8;
const SIGKILL: u8 = 9;
const SIGSEGV: u8 = 11;

/// A page fault of the calling thread's program, or of the kernel in its memory.
///
/// # Errors
///
/// The access is refused.
#[inline]
pub fn page(at: u64, access: Access) -> Result<(), FaultError> {
    cpu::current().space().handle_fault(at, access).map(drop)
}

/// A page fault of a program was refused: this becomes a signal.
pub fn refused(frame: &mut Frame, at: u64, error: FaultError) {
    let signal = match error {
        FaultError::Segv { .. } => SIGSEGV,
        FaultError::Bus { .. } | FaultError::MemoryFailed { .. } => SIGBUS,
        _ => SIGKILL,
    };
    raise(frame, signal, at);
}

/// An exception other than a page fault.
pub fn exception(frame: &mut Frame) {
    let signal = match frame.vector {
        0 | 16 | 19 => SIGFPE,
        1 | 3 => SIGTRAP,
        6 => SIGILL,
        17 => SIGBUS,
        _ => SIGSEGV,
    };
    let at = frame.rip;
    raise(frame, signal, at);
}

/// The program's instruction deserves this signal. Handlers come in here.
fn raise(frame: &mut Frame, signal: u8, at: u64) {
    if options::is_verbose() {
        let pid = cpu::current().process().pid;
        say!("process {pid}: signal {signal} at {:#x}, address {at:#x}", frame.rip);
    }
    exit::exit_group(Status::by_signal(signal));
}
