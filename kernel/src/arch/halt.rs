//! The end: by the program's exit status, or by a panic.

use super::serial::say;
use core::fmt::Write;
use core::panic::PanicInfo;
use x86_64::instructions::{hlt, interrupts, port::Port};

/// What QEMU is told after a panic; `cargo xtask boot` makes status 125 of it.
const PANIC: u8 = 0x7f;

/// Ends the machine. The debug-exit device makes QEMU's own exit status `status * 2 + 1`, modulo 256, which
/// loses the highest bit; so the second serial port, where there is one, is told the whole, as a line.
pub fn exit(status: u8) -> ! {
    let _ = writeln!(Report, "exit {status}");
    end(status)
}

/// The status of a panic.
pub fn exit_after_panic() -> ! {
    let _ = writeln!(Report, "panic");
    end(PANIC)
}

fn end(code: u8) -> ! {
    // SAFETY: the debug-exit device of QEMU; a machine without it ignores the write.
    unsafe { Port::<u8>::new(0xf4).write(code) };
    stop()
}

/// The second serial port.
struct Report;

impl Write for Report {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        // SAFETY: a serial port, or nothing.
        text.bytes().for_each(|byte| unsafe { Port::<u8>::new(0x2f8).write(byte) });
        Ok(())
    }
}

fn stop() -> ! {
    loop {
        interrupts::disable();
        hlt();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    say!("\nkernel panic: {info}");
    exit_after_panic()
}

/// Named by landing pads of the precompiled libraries, which never run.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    panic!("unwinding")
}

/// Named by their tables.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
