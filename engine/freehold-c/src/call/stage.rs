//! Stages: page tables without a program above them, for example the second stage of a virtual machine.
//!
//! A stage has one owner. The calls that change it take a mutable reference, so by the rules of the header
//! the kernel excludes all other calls for the stage.
#![expect(unsafe_code, reason = "functions in C's calling convention receive pointers")]
#![expect(clippy::missing_safety_doc, reason = "the head of the header has the rules for all pointers")]

use crate::{
    handle::{MemoryHandle, lend},
    host::Kernel,
    result::{OK, failure},
};
use allocator_api2::boxed::Box;
use core::ffi::c_int;
use freehold::error::Errno;
use freehold_vmspace::{MapError, VmSpace, platform::PteFlags};

/// Bit of the rights of a page: stores are allowed.
pub const RIGHTS_WRITE: u32 = 1;
/// Bit of the rights of a page: instruction fetches are allowed.
pub const RIGHTS_EXEC: u32 = 2;

/// Page tables of a guest, with the pages that they map.
pub struct Stage(VmSpace<Kernel>);

/// Returns the flags of entries with these rights. A guest is a program for the tables, so all entries have
/// the right of the unprivileged mode.
fn flags(rights: u32) -> PteFlags {
    let mut flags = PteFlags::USER | PteFlags::ACCESSED | PteFlags::DIRTY;
    flags.set(PteFlags::WRITE, rights & RIGHTS_WRITE != 0);
    flags.set(PteFlags::EXEC, rights & RIGHTS_EXEC != 0);
    flags
}

/// Lends a stage for a call that changes it.
///
/// # Safety
///
/// The kernel owns the stage, and makes no other call for it at the same time.
unsafe fn change<'s>(stage: *mut Stage) -> &'s mut VmSpace<Kernel> {
    // SAFETY: the pointer came from `Box::into_raw`; the caller promises the rest.
    &mut unsafe { stage.as_mut() }.expect("a stage is not null").0
}

/// Lends a stage for a call that reads it.
///
/// # Safety
///
/// The kernel owns the stage, and makes no call at the same time that changes it.
unsafe fn read<'s>(stage: *const Stage) -> &'s VmSpace<Kernel> {
    // SAFETY: the pointer came from `Box::into_raw`; the caller promises the rest.
    &unsafe { stage.as_ref() }.expect("a stage is not null").0
}

/// Creates a stage in which nothing is mapped. Returns 0 or -ENOMEM.
///
/// Calls for one stage must not run at the same time, except fh_stage_root. The kernel has a lock for this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_stage_new(memory: *const MemoryHandle, stage: *mut *mut Stage) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the reference.
    let memory = unsafe { lend(memory) };
    let new = VmSpace::new(&memory).ok().and_then(|space| Box::try_new(Stage(space)).ok());
    let (pointer, result) = match new {
        Some(new) => (Box::into_raw(new), OK),
        None => (core::ptr::null_mut(), failure(Errno::ENOMEM)),
    };
    // SAFETY: by the rules of the header, `stage` leads to a pointer.
    unsafe { stage.write(pointer) };
    result
}

/// Ends a stage: unmaps and frees all its pages. Does nothing for NULL. No CPU uses the stage any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_stage_end(stage: *mut Stage) {
    if !stage.is_null() {
        // SAFETY: the pointer came from `Box::into_raw`, and the kernel does not use it any more.
        drop(unsafe { Box::from_raw(stage) });
    }
}

/// Returns the frame of the root table, which a CPU loads into its register. It stays the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_stage_root(stage: *const Stage) -> u64 {
    // SAFETY: by the rules of the header, the kernel owns the stage.
    unsafe { read(stage) }.root().get()
}

/// Maps new pages of zeroes from start to end, which are multiples of 4096. rights has bits FH_RIGHTS_;
/// loads are always allowed.
///
/// Returns 0; -EINVAL for a wrong range; -EEXIST if a page is mapped in the range; or -ENOMEM. Nothing is
/// mapped after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_stage_map(stage: *mut Stage, start: u64, end: u64, rights: u32) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the stage.
    match unsafe { change(stage) }.map(start..end, flags(rights)) {
        Ok(()) => OK,
        Err(MapError::Occupied) => failure(Errno::EEXIST),
        Err(MapError::NoMemory) => failure(Errno::ENOMEM),
        Err(_) => failure(Errno::EINVAL),
    }
}

/// Gives all mapped pages of a range these rights. No CPU uses older rights when the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_stage_protect(stage: *mut Stage, start: u64, end: u64, rights: u32) {
    // SAFETY: by the rules of the header, the kernel owns the stage.
    unsafe { change(stage) }.set_rights(start..end, flags(rights));
}

/// Unmaps the pages of a range and frees them. No CPU uses them when the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_stage_unmap(stage: *mut Stage, start: u64, end: u64) {
    // SAFETY: by the rules of the header, the kernel owns the stage.
    unsafe { change(stage) }.unmap(start..end);
}

/// Finds the page of an address. Returns 0 and writes its frame to frame, or returns -EFAULT if nothing is
/// mapped. The frame belongs to the stage until the page is unmapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_stage_translate(stage: *const Stage, address: u64, frame: *mut u64) -> c_int {
    // SAFETY: by the rules of the header, the kernel owns the stage.
    let Some(mapped) = unsafe { read(stage) }.translate(address) else {
        return failure(Errno::EFAULT);
    };
    // SAFETY: by the rules of the header, `frame` leads to a number.
    unsafe { frame.write(mapped.pfn.get()) };
    OK
}

/// Returns the number of mapped pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_stage_resident(stage: *const Stage) -> u64 {
    // SAFETY: by the rules of the header, the kernel owns the stage.
    u64::try_from(unsafe { read(stage) }.rss().total()).unwrap_or(0)
}
