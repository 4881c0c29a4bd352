//! The end of the machine: by the first program's exit status, or by a panic. `PROTOCOL.md` describes the
//! report in both cases.
//!
//! `process/exit.rs` calls [`exit`] when process 1 ends. The panic handler, `trap.rs` and
//! `process/standstill.rs` end the machine after they have written a report. The functions that a panic calls
//! here take no lock, because any lock may be held at that time. [`exit`] may take the lock of the report.
//! Panics do not unwind. QEMU ends all CPUs; on a machine without QEMU's debug-exit device, only the calling
//! CPU stops.
//!
//! The tests whose names begin with `end-` in `kernel/tests/tests.toml` check the end by a panic.
//! `cargo xtask boot --bench` parses the line about interrupts (`kernel/xtask/src/kernel_bench/mod.rs`), so
//! change both together.

use super::irq_off;
use crate::arch::report::{report_now, say};
use crate::arch::serial;
use core::panic::PanicInfo;
use x86_64::instructions::{hlt, interrupts, port::Port};

/// Value written to QEMU's debug-exit device. QEMU exits with status 2 n + 1 for the value n. The value is
/// not 0, because QEMU exits with status 1 when it refuses its arguments.
const END: u8 = 1;

/// Sends all pending output, then ends the machine with the first program's status.
pub fn exit(status: u8) -> ! {
    serial::drain();
    report_irq_off();
    report_now!("status {status}");
    end()
}

/// Reports the longest time that interrupts were off, and where.
fn report_irq_off() {
    match irq_off::longest() {
        None => {}
        Some((ns, irq_off::IDLE)) => {
            say!("interrupts were off for {ns} ns at most, until a CPU halted")
        }
        Some((ns, what)) if irq_off::is_half_way(what) => {
            let call = what & 0xfff;
            say!("interrupts were off for {ns} ns at most, at a preemption point of call {call}")
        }
        Some((ns, what)) if what & irq_off::VECTOR != 0 => {
            say!("interrupts were off for {ns} ns at most, in vector {}", what & !irq_off::VECTOR)
        }
        Some((ns, call)) => say!("interrupts were off for {ns} ns at most, in call {call}"),
    }
}

/// Ends the machine after a panic that is already reported.
pub fn exit_after_panic() -> ! {
    serial::drain();
    end()
}

/// Ends the machine after everything is sent.
fn end() -> ! {
    // SAFETY: the debug-exit device of QEMU; a machine without one ignores the write.
    unsafe { Port::<u8>::new(0xf4).write(END) };
    stop()
}

/// Halts the calling CPU for ever.
pub fn stop() -> ! {
    loop {
        interrupts::disable();
        hlt();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    report_now!("panic {info}");
    exit_after_panic()
}

/// A symbol that the landing pads of the precompiled libraries need for linking. Never called, because no
/// panic unwinds.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    panic!("unwinding")
}

/// A symbol that the exception tables of the precompiled libraries need for linking. Never called.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
