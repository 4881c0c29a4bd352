//! Page faults and exceptions of programs. The engine serves the faults (`AddressSpace::handle_fault`); this
//! file raises the signal if the engine refuses a fault or the processor reports another exception.
//!
//! The functions run with interrupts off and without a spin lock, because serving a fault may sleep.
//!
//! `arch/trap.rs` calls [`page`], [`refused`] and [`exception`] through the table of handlers, and
//! `thread.rs` calls [`beyond_end`]. The numbers, codes and addresses of the signals are those of Linux; the
//! programs `signals.c`, `keys.c` and `canonical.c` of the tests check them.
//!
//! An exception without an arm in [`exception`] raises SIGSEGV.

use crate::arch::frame::{Frame, UserAddr, is_canonical};
use crate::arch::report::say;
use crate::options;
use crate::process::shortage::{self, Need};
use crate::process::signal::{self, Info};
use crate::process::{exit, observer::observer};
use crate::sched::current;
use core::sync::atomic::Ordering::Relaxed;
use freehold::fault::{Access, FaultError};
use linux_raw_sys::general::*;

const GENERAL_PROTECTION: u64 = 13;
const PAGE_FAULT: u64 = 14;
// Bits of a page fault's error code.
const PRESENT: u64 = 1;
const USER: u64 = 4;
const FETCH: u64 = 16;
/// The flag RF, which a fault sets in the frame of the interrupted instruction.
const RESUME: u64 = 0x1_0000;

/// Handles a page fault of the calling thread's program, or of the kernel in the program's memory.
///
/// # Errors
///
/// Fails if the address space refuses the access. For a fault of the program, the caller then calls
/// [`refused`]; for a fault of the kernel, the kernel's copy fails.
#[inline]
pub fn page(at: u64, access: Access, from_program: bool) -> Result<(), FaultError> {
    let here = current();
    let access = Access { user: from_program, ..access };
    let resolved = match here.space().handle_fault(at, access) {
        // The program repeats the access after the signal's handler.
        Err(FaultError::Interrupted) => return Ok(()),
        // The program repeats the access with the memory of another process that had to end.
        Err(error) if is_shortage(error) && shortage::relieve(Need::Must) => return Ok(()),
        handled => handled?,
    };
    let count = &here.faults[usize::from(resolved.major)];
    count.store(count.load(Relaxed) + 1, Relaxed);
    Ok(())
}

/// Returns true if a fault failed because there was no memory.
fn is_shortage(error: FaultError) -> bool {
    error.signal().is_none() && error != FaultError::Killed
}

/// Raises the signal for a page fault of a program that [`page`] refused.
pub fn refused(frame: &Frame, at: u64, error: FaultError) {
    let info = match error.signal() {
        Some(signal) => {
            let info = Info::fault(signal.number as u32, signal.code as u32, at);
            Info { fields: [at, signal.addr_lsb.into(), signal.pkey.unwrap_or(0).into(), 0], ..info }
        }
        // The thread ends on its way back to the program.
        None if error == FaultError::Killed => return,
        None => {
            report(frame, SIGKILL, at);
            exit::out_of_memory()
        }
    };
    // As on Linux, the error code reports every kernel address as mapped, so that a program cannot learn
    // which kernel addresses are mapped.
    let error = frame.error | if at >= UserAddr::END { PRESENT } else { 0 };
    current().last_fault.set((PAGE_FAULT, error, at));
    raise(frame, info, at);
}

/// Raises the signal for an exception other than a page fault.
pub fn exception(frame: &Frame) {
    let at = frame.rip;
    let info = match frame.vector {
        0 => Info::fault(SIGFPE, FPE_INTDIV, at),
        16 | 19 => Info::fault(SIGFPE, FPE_FLTINV, at),
        1 => Info::fault(SIGTRAP, TRAP_TRACE, at),
        3 => Info::kernel(SIGTRAP),
        6 => Info::fault(SIGILL, ILL_ILLOPN, at),
        12 => Info::kernel(SIGBUS),
        17 => Info::fault(SIGBUS, BUS_ADRALN, 0),
        _ => Info::kernel(SIGSEGV),
    };
    note(frame.vector, frame.error);
    raise(frame, info, at);
}

/// Raises a signal because the program's next instruction is not at a [`UserAddr`]. The program gets the
/// signal that a jump to that address causes: that of a page fault or, if the address is not canonical, of a
/// general protection fault. The kernel must not load the address by `iretq`, because the instruction would
/// fault in the kernel.
pub fn beyond_end(frame: &mut Frame) {
    let at = frame.rip;
    let info = match is_canonical(at) {
        true => {
            frame.rflags |= RESUME;
            current().last_fault.set((PAGE_FAULT, PRESENT | USER | FETCH, at));
            Info::fault(SIGSEGV, SEGV_MAPERR, at)
        }
        false => {
            note(GENERAL_PROTECTION, 0);
            Info::kernel(SIGSEGV)
        }
    };
    raise(frame, info, at);
}

/// Records an exception that has no address. Keeps the address of the last page fault.
fn note(vector: u64, error: u64) {
    let last = &current().last_fault;
    last.set((vector, error, last.get().2));
}

/// Raises a signal that an instruction of the program caused.
fn raise(frame: &Frame, info: Info, at: u64) {
    report(frame, info.signal, at);
    (observer().signal)(info.signal, info.code);
    signal::force(info);
}

/// Logs a signal, with option `verbose`.
fn report(frame: &Frame, signal: u32, at: u64) {
    if options::is_verbose() {
        let pid = current().process().pid;
        say!("process {pid}: signal {signal} at {:#x}, address {at:#x}", frame.rip);
    }
}
