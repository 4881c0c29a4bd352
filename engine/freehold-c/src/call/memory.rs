//! The memory of stages, for kernels that use stages without an engine.
#![expect(unsafe_code, reason = "functions in C's calling convention receive pointers")]
#![expect(clippy::missing_safety_doc, reason = "the head of the header has the rules for all pointers")]

use crate::{
    handle::{MemoryHandle, give, take},
    host::Kernel,
    result::failure,
    setup,
};
use core::ffi::c_int;
use freehold::counted::Counted;
use freehold::error::{Errno, NoMemory};
use freehold_vmspace::Memory;

/// Creates the memory that stages share. Returns 0; -EINVAL before fh_init has succeeded; or -ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_memory_new(memory: *mut *mut MemoryHandle) -> c_int {
    if !setup::is_ready() {
        return failure(Errno::EINVAL);
    }
    let new = Memory::new(Kernel).and_then(|new| Counted::try_new(new).map_err(|_| NoMemory));
    // SAFETY: by the rules of the header, `memory` leads to a pointer.
    unsafe { give(new, memory) }
}

/// Drops a reference. Stages have references of their own. The end of the last one waits for a grace period.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_memory_put(memory: *mut MemoryHandle) {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    unsafe { take(memory) };
}
