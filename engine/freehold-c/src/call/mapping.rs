//! System calls that change the mappings of an address space, or report about them.
#![expect(unsafe_code, reason = "functions in C's calling convention receive pointers")]
#![expect(clippy::missing_safety_doc, reason = "the head of the header has the rules for all pointers")]

use super::space::bytes_mut;
use crate::{
    handle::{FileHandle, SpaceHandle, lend},
    result::{status, value},
};
use core::ffi::c_int;
use freehold::prelude::{Advice, LockFlags, MapFlags, Prot, RemapFlags, SyncFlags};

/// mmap(2). file is NULL for anonymous memory. The mapping keeps a reference to the file.
///
/// Returns the address, or a negative errno number: -EINVAL, -ENOMEM, -EACCES, -EEXIST and so on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_mmap(
    space: *const SpaceHandle,
    address: u64,
    length: u64,
    prot: u64,
    flags: u64,
    file: *const FileHandle,
    offset: u64,
) -> i64 {
    let (prot, flags) = (Prot::from_bits_retain(prot), MapFlags::from_bits_retain(flags));
    // SAFETY: by the rules of the header, the kernel owns the references.
    let (space, file) = unsafe { (lend(space), (!file.is_null()).then(|| lend(file))) };
    value(space.mmap(address, length, prot, flags, file.as_deref(), offset))
}

/// munmap(2). Returns 0 or a negative errno number: -EINVAL, -ENOMEM, -EINTR.
///
/// When the call returns, no CPU uses the pages any more, and their frames are free. Other calls and faults
/// of the space run at the same time, except those that touch the range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_munmap(space: *const SpaceHandle, address: u64, length: u64) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    status(unsafe { lend(space) }.munmap(address, length))
}

/// mprotect(2). Returns 0 or a negative errno number: -EINVAL, -ENOMEM, -EACCES, -EINTR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_mprotect(
    space: *const SpaceHandle,
    address: u64,
    length: u64,
    prot: u64,
) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    status(unsafe { lend(space) }.mprotect(address, length, Prot::from_bits_retain(prot)))
}

/// mremap(2). Returns the new address, or a negative errno number: -EINVAL, -ENOMEM, -EFAULT, -EINTR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_mremap(
    space: *const SpaceHandle,
    address: u64,
    old_length: u64,
    new_length: u64,
    flags: u64,
    new_address: u64,
) -> i64 {
    let flags = RemapFlags::from_bits_retain(flags);
    // SAFETY: by the rules of the header, the kernel owns the reference.
    value(unsafe { lend(space) }.mremap(address, old_length, new_length, flags, new_address))
}

/// madvise(2), with the numbers of Linux: 4 is MADV_DONTNEED. Returns 0 or a negative errno number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_madvise(
    space: *const SpaceHandle,
    address: u64,
    length: u64,
    advice: u32,
) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    let space = unsafe { lend(space) };
    status(Advice::from_raw(advice).and_then(|advice| space.madvise(address, length, advice)))
}

/// mlock2(2): flags is 0, or 1 for MLOCK_ONFAULT. Returns 0 or a negative errno number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_mlock(space: *const SpaceHandle, address: u64, length: u64, flags: u32) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    status(unsafe { lend(space) }.mlock2(address, length, LockFlags::from_bits_retain(flags)))
}

/// munlock(2). Returns 0 or a negative errno number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_munlock(space: *const SpaceHandle, address: u64, length: u64) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    status(unsafe { lend(space) }.munlock(address, length))
}

/// msync(2): flags has the bits 1 (MS_ASYNC), 2 (MS_INVALIDATE) and 4 (MS_SYNC). Returns 0 or a negative
/// errno number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_msync(space: *const SpaceHandle, address: u64, length: u64, flags: u32) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    status(unsafe { lend(space) }.msync(address, length, SyncFlags::from_bits_retain(flags)))
}

/// mincore(2): writes one byte for each page to out, 1 if the page is resident and 0 if not. out has room for
/// all pages. Returns 0 or a negative errno number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_mincore(
    space: *const SpaceHandle,
    address: u64,
    length: u64,
    out: *mut u8,
) -> c_int {
    let pages = length.div_ceil(freehold::PAGE_SIZE) as usize;
    // SAFETY: by the rules of the header, the kernel owns the reference, and `out` has a byte for each page.
    let (space, out) = unsafe { (lend(space), bytes_mut(out.cast(), pages)) };
    status(space.mincore(address, length, out))
}

/// brk(2). Returns the break after the call, which is the old one if it could not move, or -EINTR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_brk(space: *const SpaceHandle, address: u64) -> i64 {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    value(unsafe { lend(space) }.brk(address))
}
