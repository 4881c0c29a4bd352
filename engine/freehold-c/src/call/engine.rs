//! Engines: the state that address spaces and files share.
#![expect(unsafe_code, reason = "functions in C's calling convention receive pointers")]
#![expect(clippy::missing_safety_doc, reason = "the head of the header has the rules for all pointers")]

use crate::{
    handle::{EngineHandle, give, lend, take},
    host::Kernel,
    result::failure,
    setup,
};
use core::ffi::c_int;
use freehold::error::Errno;
use freehold::prelude::{Config, Engine};
use freehold::reclaim::ReclaimRequest;

/// Creates an engine. Most kernels have one. Engines share nothing but the functions of fh_init.
///
/// Returns 0; -EINVAL before fh_init has succeeded; or -ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_engine_new(engine: *mut *mut EngineHandle) -> c_int {
    if !setup::is_ready() {
        return failure(Errno::EINVAL);
    }
    // SAFETY: by the rules of the header, `engine` leads to a pointer.
    unsafe { give(Engine::new(Kernel, Config::new()), engine) }
}

/// Drops a reference. The last reference of an engine is that of the kernel or of an address space or a file,
/// and its end waits for a grace period.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_engine_put(engine: *mut EngineHandle) {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    unsafe { take(engine) };
}

/// Takes pages away from programs and files until this many frames are free, or until no more are found.
/// Returns the number of frames that have become free; some stay in the cache of this CPU (fh_trim).
///
/// Dirty pages of files are written by the pager. Anonymous memory stays, because the library has no swap
/// devices. For memory_short, or for a task of the kernel that runs when little memory is free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_reclaim(engine: *const EngineHandle, frames: u64) -> u64 {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    let engine = unsafe { lend(engine) };
    engine.reclaim(&ReclaimRequest::pages(frames)).freed
}

/// Returns the memory that the library keeps for this CPU to the kernel: free frames, and memory for records.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_trim(engine: *const EngineHandle) {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    unsafe { lend(engine) }.trim();
}
