//! The parts of a Rust program that the standard library has in an ordinary program: the global allocator and
//! the panic handler. Both call functions of the kernel.
//!
//! This module exists only in the static library (`Cargo.toml`, feature `staticlib`). `tests/c` tests it.
#![expect(unsafe_code, reason = "implements the global allocator")]

use crate::setup::{call, ops_if_ready};
use core::{
    alloc::{GlobalAlloc, Layout},
    fmt::{self, Write},
    panic::PanicInfo,
    ptr,
};

/// The kernel's memory.
struct Heap;

// SAFETY: the caller of `fh_init` promises that `alloc` and `free` are an allocator.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match ops_if_ready() {
            Some(_) => call!(alloc(layout.size(), layout.align())).cast(),
            None => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        call!(free(memory.cast(), layout.size(), layout.align()));
    }
}

#[global_allocator]
static HEAP: Heap = Heap;

/// A message of limited length, which ends with a zero byte.
struct Message {
    bytes: [u8; Self::LIMIT + 1],
    len: usize,
}

impl Message {
    const LIMIT: usize = 255;
}

impl Write for Message {
    /// Appends text, and drops what is beyond the limit.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut room = text.len().min(Self::LIMIT - self.len);
        while !text.is_char_boundary(room) {
            room -= 1;
        }
        self.bytes[self.len..self.len + room].copy_from_slice(&text.as_bytes()[..room]);
        self.len += room;
        Ok(())
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut message = Message { bytes: [0; Message::LIMIT + 1], len: 0 };
    let _ = write!(message, "{info}");
    // Before `fh_init` there is no function to call.
    if ops_if_ready().is_some() {
        call!(panic(message.bytes.as_ptr().cast()));
    }
    loop {
        core::hint::spin_loop();
    }
}

/// Stands for the function that unwinds the stack. The compiled crates `core` and `alloc` refer to it, but
/// nothing unwinds, so it is never called.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
