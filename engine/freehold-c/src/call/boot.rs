//! The first calls of a kernel.
#![expect(unsafe_code, reason = "functions in C's calling convention receive pointers")]
#![expect(clippy::missing_safety_doc, reason = "the head of the header has the rules for all pointers")]

use crate::{
    machine::Machine,
    ops::PlatformOps,
    platform::NEEDS_PUBLISH_CODE,
    result::{OK, failure},
    setup::{WithSize, install},
};
use core::ffi::c_int;
use freehold::error::Errno;

/// Stands for a frame number where there is none.
pub const NO_FRAME: u64 = u64::MAX;

/// Returns the version of the library: 0x010203 is version 1.2.3.
#[unsafe(no_mangle)]
pub extern "C" fn fh_version() -> u32 {
    const PARTS: [&str; 3] =
        [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    PARTS.iter().fold(0, |version, part| version << 8 | part.parse::<u32>().unwrap_or(0))
}

/// Tells the library the functions and the memory of the kernel. Called once, before all other calls except
/// fh_version.
///
/// Both structures are copied. All functions stay valid as long as the kernel runs. A library that is built
/// with the feature link-time calls fh_platform_wait and so on instead of the mandatory functions. ops then
/// has the optional functions, or is NULL.
///
/// Returns 0; -EINVAL if a mandatory function or a number is missing or wrong, and then changes nothing; or
/// -EBUSY if an earlier call has succeeded, or runs at this moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_init(ops: *const PlatformOps, machine: *const Machine) -> c_int {
    // SAFETY: by the rules of the header, both pointers are NULL or lead to structures.
    let (ops, machine) = unsafe { (functions(ops), Machine::copy(machine)) };
    let (Some(ops), Some(machine)) = (ops, machine) else {
        return failure(Errno::EINVAL);
    };
    if !ops.is_complete(NEEDS_PUBLISH_CODE) || !machine.is_sound() {
        return failure(Errno::EINVAL);
    }
    if install(ops, machine) { OK } else { failure(Errno::EBUSY) }
}

/// Returns the functions of the kernel's table, and those that the linker has found.
///
/// # Safety
///
/// `ops` is null or leads to as many bytes as its first word says.
unsafe fn functions(ops: *const PlatformOps) -> Option<PlatformOps> {
    // SAFETY: the caller's promise.
    let table = unsafe { PlatformOps::copy(ops) };
    #[cfg(feature = "link-time")]
    let table = if ops.is_null() { Some(PlatformOps::none()) } else { table }.map(crate::link_time::add);
    table
}
