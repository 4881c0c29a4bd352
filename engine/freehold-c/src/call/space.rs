//! Address spaces: their life, and access to their memory and tables.
#![expect(unsafe_code, reason = "functions in C's calling convention receive pointers")]
#![expect(clippy::missing_safety_doc, reason = "the head of the header has the rules for all pointers")]

use crate::{
    handle::{EngineHandle, SpaceHandle, give, lend, take},
    result::value,
};
use core::ffi::{c_int, c_void};
use core::slice;
use freehold::prelude::{AddressSpace, SpaceConfig};
use freehold::remote::AccessMode;

/// Creates an address space without mappings. Returns 0 or -ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_space_new(engine: *const EngineHandle, space: *mut *mut SpaceHandle) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference, and `space` leads to a pointer.
    unsafe { give(AddressSpace::new(&lend(engine), &SpaceConfig::new()), space) }
}

/// Copies an address space, as fork(2) does. Private memory is shared until one side stores to it.
///
/// Returns 0, -ENOMEM or -EINTR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_fork(parent: *const SpaceHandle, child: *mut *mut SpaceHandle) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference, and `child` leads to a pointer.
    unsafe { give(lend(parent).fork(), child) }
}

/// Drops a reference. The last reference unmaps everything. No task may run in the space any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_space_put(space: *mut SpaceHandle) {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    unsafe { take(space) };
}

/// Returns the frame of the root table, which a CPU loads into its register. It stays the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_space_root(space: *const SpaceHandle) -> u64 {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    unsafe { lend(space) }.mmu().root.get()
}

/// Returns the record that space_created has stored for the space.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_space_record(space: *const SpaceHandle) -> *mut c_void {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    unsafe { lend(space) }.mmu().record
}

/// Returns the number of resident pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_resident(space: *const SpaceHandle) -> u64 {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    u64::try_from(unsafe { lend(space) }.rss().total()).unwrap_or(0)
}

/// Reads bytes of a program for a system call. Handles the faults of the access.
///
/// Returns the number of bytes before the first one that cannot be read. If that is none, returns -EFAULT,
/// -ENOMEM or -EINTR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_read_memory(
    space: *const SpaceHandle,
    address: u64,
    out: *mut c_void,
    length: usize,
) -> i64 {
    // SAFETY: by the rules of the header, the kernel owns the reference, and `out` has `length` bytes.
    let (space, out) = unsafe { (lend(space), bytes_mut(out, length)) };
    value(space.read_memory(address, out, AccessMode::Plain).map(|bytes| bytes as u64))
}

/// Writes bytes of a program for a system call, like fh_read_memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_write_memory(
    space: *const SpaceHandle,
    address: u64,
    data: *const c_void,
    length: usize,
) -> i64 {
    // SAFETY: by the rules of the header, the kernel owns the reference, and `data` has `length` bytes.
    let (space, data) = unsafe { (lend(space), bytes(data, length)) };
    value(space.write_memory(address, data, AccessMode::Plain).map(|bytes| bytes as u64))
}

/// Returns the bytes that the kernel passes. The pointer may be null if there are none.
///
/// # Safety
///
/// The memory has `length` bytes, and no thread writes to them during the call.
pub(super) unsafe fn bytes<'b>(data: *const c_void, length: usize) -> &'b [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(data.cast(), length) }
}

/// Returns the memory of the kernel that a call fills. The pointer may be null if it has no bytes.
///
/// # Safety
///
/// The memory has `length` bytes, and no other thread accesses them during the call.
pub(super) unsafe fn bytes_mut<'b>(out: *mut c_void, length: usize) -> &'b mut [u8] {
    if length == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts_mut(out.cast(), length) }
}
