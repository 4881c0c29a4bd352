//! Arrays as large as the machine's memory, of which only the touched part costs host memory.
//!
//! `inner.rs` and `pool.rs` use them for the frames, tables and records of a machine, on this host and in
//! simulations. The host supplies zeroed pages, so only types whose initial value is all zero bytes may be in
//! an array (`blank.rs`). The values are never dropped. `host_shuttle/array.rs` has the same names.
#![expect(unsafe_code, reason = "maps host memory and returns references into it")]

use crate::blank::Blank;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;

/// `len` blank values of `T`; the host maps a page when it is first touched.
///
/// # Invariants
/// `base` is a mapping of `bytes` zeroed bytes, owned by this value, that holds `len` values of `T`.
#[derive(Debug)]
pub(crate) struct LazyArray<T> {
    base: NonNull<T>,
    len: usize,
    bytes: usize,
}

// SAFETY: the array owns the values and hands out only shared references.
unsafe impl<T: Send + Sync> Send for LazyArray<T> {}
// SAFETY: the array owns the values and hands out only shared references.
unsafe impl<T: Send + Sync> Sync for LazyArray<T> {}

impl<T: Blank> LazyArray<T> {
    /// Reserves address space. If `dense` is true, most of the array will be touched soon, so large host
    /// pages are worthwhile.
    pub(crate) fn new(len: usize, dense: bool) -> io::Result<Self> {
        const { assert!(!core::mem::needs_drop::<T>(), "the values are unmapped, not dropped") };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?.max(1);
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, prot, flags)? };
        if dense {
            // SAFETY: the mapping is new and `bytes` long. A failure affects only speed.
            let _ = unsafe { madvise(base, bytes, Advice::LinuxHugepage) };
        }
        let base: NonNull<T> = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        T::announce(base.as_ptr(), len);
        Ok(LazyArray { base, len, bytes })
    }

    /// Returns the value at `index`, or `None` beyond the end.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        if index >= self.len {
            return None;
        }
        // SAFETY: the index is inside the mapping, and all-zero bytes are a `T` (`Blank`). Only shared
        // references to the value are handed out, so writes use `T`'s own interior mutability.
        Some(unsafe { self.base.add(index).as_ref() })
    }
}

impl<T> Drop for LazyArray<T> {
    fn drop(&mut self) {
        // SAFETY: the array owns the mapping, and every reference into the mapping borrows `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
