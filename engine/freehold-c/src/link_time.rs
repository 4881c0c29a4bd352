//! The mandatory functions of [`PlatformOps`], found by the linker.
//!
//! The table is a constant, so the compiler calls the functions directly. The types of the fields are those
//! of the table that [`fh_init`](crate::call::boot::fh_init) receives in the other variant, and the compiler
//! compares them with the declarations here. A kernel passes the optional functions to `fh_init`.
//! `tests/c.rs` builds a program in this variant.
#![expect(unsafe_code, reason = "declares external functions")]

use crate::ops::{FlushRequest, FrameRequest, PlatformOps};
use core::ffi::{c_char, c_void};

// The documentation is that of the fields in `ops.rs`.
unsafe extern "C" {
    fn fh_platform_alloc(size: usize, align: usize) -> *mut c_void;
    fn fh_platform_free(memory: *mut c_void, size: usize, align: usize);
    fn fh_platform_panic(message: *const c_char);
    fn fh_platform_wait(word: *const u32, expected: u32);
    fn fh_platform_wake(word: *const u32, all: bool);
    fn fh_platform_cpu_enter() -> u32;
    fn fh_platform_cpu_exit();
    fn fh_platform_alloc_frames(request: *const FrameRequest, frames: *mut u64, count: usize) -> usize;
    fn fh_platform_free_frames(frames: *const u64, count: usize);
    fn fh_platform_flush(space: *mut c_void, request: *const FlushRequest);
}

/// The functions of the kernel, without the optional ones.
pub(crate) const OPS: PlatformOps = add(PlatformOps::none());

/// Returns a table with the optional functions of `table`, and the mandatory ones that the linker has found.
pub(crate) const fn add(table: PlatformOps) -> PlatformOps {
    PlatformOps {
        alloc: Some(fh_platform_alloc),
        free: Some(fh_platform_free),
        panic: Some(fh_platform_panic),
        wait: Some(fh_platform_wait),
        wake: Some(fh_platform_wake),
        cpu_enter: Some(fh_platform_cpu_enter),
        cpu_exit: Some(fh_platform_cpu_exit),
        alloc_frames: Some(fh_platform_alloc_frames),
        free_frames: Some(fh_platform_free_frames),
        flush: Some(fh_platform_flush),
        ..table
    }
}
