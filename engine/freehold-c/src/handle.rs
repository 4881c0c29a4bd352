//! Objects behind pointers that the kernel in C owns.
//!
//! A pointer to a handle is a counted reference to an object of the engine ([`Counted::into_raw`]), or owns a
//! stage. The types of the handles have no contents and are never read: they only give each kind of object a
//! type of its own in C.
//!
//! By the rules of the header, a pointer that a call receives came from the library and was not put back yet.
//! Notes on safety call this promise "the rules of the header".
#![expect(unsafe_code, reason = "converts pointers of the kernel to references")]

use crate::{
    host::Kernel,
    result::{OK, failure},
};
use core::{ffi::c_int, mem::ManuallyDrop, ptr::NonNull};
use freehold::counted::{Counted, Shared};
use freehold::error::ToErrno;
use freehold::prelude::{AddressSpace, Engine, File};
use freehold_vmspace::Memory;

/// A type of pointers in C that stands for a counted object.
///
/// # Safety
///
/// Every non-null pointer of this type that the kernel has is a reference to an `Object`.
pub unsafe trait Handle: Sized {
    /// The object.
    type Object: Shared;
}

/// The state that all address spaces and files share.
#[derive(Debug)]
pub struct EngineHandle(());

/// The address space of a process.
#[derive(Debug)]
pub struct SpaceHandle(());

/// An open file.
#[derive(Debug)]
pub struct FileHandle(());

/// The memory of stages.
#[derive(Debug)]
pub struct MemoryHandle(());

// SAFETY: only `give` makes pointers of this type, from references to this type of object.
unsafe impl Handle for EngineHandle {
    type Object = Engine<Kernel>;
}

// SAFETY: as above.
unsafe impl Handle for SpaceHandle {
    type Object = AddressSpace<Kernel>;
}

// SAFETY: as above.
unsafe impl Handle for FileHandle {
    type Object = File<Kernel>;
}

// SAFETY: as above.
unsafe impl Handle for MemoryHandle {
    type Object = Memory<Kernel>;
}

/// Stores a new reference in `out`, which the kernel owns then. Stores null after an error.
///
/// # Safety
///
/// `out` is a pointer of the kernel to which the call may write.
pub unsafe fn give<H: Handle>(object: Result<Counted<H::Object>, impl ToErrno>, out: *mut *mut H) -> c_int {
    let (handle, result) = match object {
        Ok(object) => (Counted::into_raw(object).as_ptr().cast(), OK),
        Err(error) => (core::ptr::null_mut(), failure(error.to_errno())),
    };
    // SAFETY: the caller's promise.
    unsafe { out.write(handle) };
    result
}

/// Lends the object of a handle that the kernel keeps.
///
/// # Safety
///
/// The kernel owns a reference behind `handle`, and keeps it until the result is dropped.
pub unsafe fn lend<H: Handle>(handle: *const H) -> ManuallyDrop<Counted<H::Object>> {
    let object = NonNull::new(handle.cast_mut().cast()).expect("a handle is not null");
    // SAFETY: the pointer came from `into_raw`. The result does not drop the reference, so it is not
    // converted back more than once.
    ManuallyDrop::new(unsafe { Counted::from_raw(object) })
}

/// Takes a reference back from the kernel, and drops it. Does nothing for null.
///
/// # Safety
///
/// The kernel owns a reference behind `handle`, and does not use it any more.
pub unsafe fn take<H: Handle>(handle: *mut H) {
    if !handle.is_null() {
        // SAFETY: the caller's promise.
        drop(ManuallyDrop::into_inner(unsafe { lend(handle) }));
    }
}
