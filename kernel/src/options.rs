//! The kernel's options, from its command line.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Says what it does on the console. Written once, at the start.
static VERBOSE: AtomicBool = AtomicBool::new(false);

pub fn is_verbose() -> bool {
    VERBOSE.load(Relaxed)
}

/// Says every system call. Written once, as above.
static TRACE: AtomicBool = AtomicBool::new(false);

#[inline(always)]
pub fn is_tracing() -> bool {
    TRACE.load(Relaxed)
}

/// Takes the options of a command line over.
pub fn init(line: &str) {
    for option in line.split_ascii_whitespace() {
        match option {
            "trace" => TRACE.store(true, Relaxed),
            "verbose" => VERBOSE.store(true, Relaxed),
            _ => crate::arch::serial::say!("unknown option {option}"),
        }
    }
}
