//! Exceptions and interrupts, after `entry.s` has saved all registers. This file finds the reason of a trap
//! and calls the layer above through the table of [`handlers`]. It runs with interrupts off.
//!
//! System calls do not come here: their entry is `system_call` in `calls/mod.rs`. The kernel itself may cause
//! only page faults in `ucopy.s`. If the address space refuses such a fault, the copy continues at
//! `ucopy_fixup` and fails. Any other exception of the kernel ends the machine with a report. The tests whose
//! names begin with `end-` in `kernel/tests/tests.toml` compare parts of that report.
//!
//! A new interrupt needs a vector in `apic.rs` and an arm in `handle`. The signal for an exception of a
//! program is chosen in `process/fault.rs`.

use super::frame::{Frame, Vectors};
use super::handlers::{Handlers, handlers};
use super::layout::Tables;
use super::{apic, cpu, entry_work, features, halt, irq_off, jitter, preempt, report::report_now};
use freehold::fault::{Access, FaultError};
use freehold::platform::{FaultCode, Format};
use x86_64::registers::control::Cr2;

unsafe extern "C" {
    static ucopy_begin: u8;
    static ucopy_end: u8;
    static ucopy_fixup: u8;
}

/// Bit of the flags register: interrupts are enabled.
const INTERRUPTS: u64 = 0x200;
const PAGE_FAULT: u64 = 14;
const FLUSH: u64 = apic::FLUSH as u64;
const WAKE: u64 = apic::WAKE as u64;
const TIMER: u64 = apic::TIMER as u64;
const SPURIOUS: u64 = apic::SPURIOUS as u64;

/// Handles a trap. Called by `entry.s` with interrupts off. Returns the address of the next instruction. If
/// this instruction belongs to a program, the address is a [`UserAddr`](super::frame::UserAddr).
#[unsafe(no_mangle)]
extern "C" fn trap(frame: &mut Frame) -> u64 {
    const { assert!(size_of::<Vectors>() + core::mem::offset_of!(Frame, rip) == 392) };
    features::forbid_user();
    match entry_work::has(entry_work::WATCHED) {
        true => watched(frame),
        false => handle(frame, handlers(), handlers().page_fault),
    }
}

/// Handles a trap while an option watches traps: measures the time with interrupts off, and uses the watching
/// handler of page faults.
#[cold]
fn watched(frame: &mut Frame) -> u64 {
    let vector = frame.vector;
    let were_on = frame.rflags & INTERRUPTS != 0;
    if were_on {
        irq_off::begin();
    }
    let next = handle(frame, handlers(), handlers().watched_page_fault);
    if were_on {
        irq_off::end(irq_off::VECTOR | vector & 0xff);
    }
    next
}

/// A function that serves page faults.
type Serve = fn(u64, Access, bool) -> Result<(), FaultError>;

/// Handles a trap by its vector, and then does the pending work of a thread that returns to its program.
/// Returns the address of the next instruction.
#[inline(always)]
fn handle(frame: &mut Frame, handlers: &Handlers, serve: Serve) -> u64 {
    match frame.vector {
        PAGE_FAULT => page_fault(frame, handlers, serve),
        FLUSH => {
            apic::end_of_interrupt();
            jitter::stall();
            (handlers.answer_flushes)();
        }
        WAKE => {
            apic::end_of_interrupt();
            cpu::cpu().resched.set(true);
        }
        TIMER => {
            apic::end_of_interrupt();
            // Expiring timers take locks, so the handler must not switch threads.
            preempt::hold();
            (handlers.tick)();
            preempt::release();
        }
        SPURIOUS => {}
        // These vectors run on stacks of their own. No thread can continue after them, because they end the
        // machine.
        2 => (handlers.nonmaskable)(frame),
        vector @ (8 | 18) => fatal(frame, vector),
        _ if frame.is_user() => (handlers.exception)(frame),
        vector => fatal(frame, vector),
    }
    if !frame.is_user() {
        return frame.rip;
    }
    let mut next = (handlers.before_user)(frame);
    if cpu::cpu().resched.get() {
        (handlers.preempt)();
        next = (handlers.before_user)(frame);
    }
    next.get()
}

/// Handles a page fault of a program, or of the kernel in a program's memory.
#[inline(always)]
fn page_fault(frame: &mut Frame, handlers: &Handlers, serve: Serve) {
    let at = Cr2::read_raw();
    if !frame.is_user() && (!in_ucopy(frame.rip) || at >= Tables::USER_END) {
        fatal(frame, PAGE_FAULT);
    }
    let code = FaultCode::from_bits_truncate(frame.error as u32);
    let access = Access::of_fault(code, features::pkru());
    if let Err(error) = serve(at, access, frame.is_user()) {
        match frame.is_user() {
            true => (handlers.refused)(frame, at, error),
            false => frame.rip = &raw const ucopy_fixup as u64,
        }
    }
}

/// Returns true if the instruction at `rip` is in the code of `ucopy.s` that touches a program's memory.
fn in_ucopy(rip: u64) -> bool {
    (&raw const ucopy_begin as u64..&raw const ucopy_end as u64).contains(&rip)
}

/// Reports an exception that must not occur in the kernel, and ends the machine.
fn fatal(frame: &Frame, vector: u64) -> ! {
    let name = match vector {
        6 => "invalid instruction",
        8 => "double fault",
        13 => "general protection fault",
        14 => "page fault",
        18 => "machine check",
        _ => "exception",
    };
    let f = frame;
    report_now!("panic {name} (vector {vector}, error {:#x}) at {:#x}", f.error, f.rip);
    report_now!("cr2 {:#x} cs {:#x} flags {:#x} rsp {:#x}", Cr2::read_raw(), f.cs, f.rflags, f.rsp);
    report_now!("rax {:#x} rbx {:#x} rcx {:#x} rdx {:#x}", f.rax, f.rbx, f.rcx, f.rdx);
    report_now!("rsi {:#x} rdi {:#x} rbp {:#x} r8 {:#x}", f.rsi, f.rdi, f.rbp, f.r8);
    report_now!("r9 {:#x} r10 {:#x} r11 {:#x} r12 {:#x}", f.r9, f.r10, f.r11, f.r12);
    report_now!("r13 {:#x} r14 {:#x} r15 {:#x}", f.r13, f.r14, f.r15);
    if vector == 8 && (handlers().is_stack_guard)(Cr2::read_raw()) {
        report_now!("a kernel stack has overflowed");
    }
    halt::exit_after_panic()
}
