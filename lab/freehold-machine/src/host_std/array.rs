//! Arrays as large as the machine's memory, which cost only what was touched.
#![expect(unsafe_code, reason = "maps host memory and gives out references into it")]

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

// SAFETY: it owns the values, and gives out shared references only.
unsafe impl<T: Send + Sync> Send for LazyArray<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for LazyArray<T> {}

impl<T: Blank> LazyArray<T> {
    /// Reserves address space. `dense`: most of it will be touched soon, so large host pages pay.
    pub(crate) fn new(len: usize, dense: bool) -> io::Result<Self> {
        const { assert!(!core::mem::needs_drop::<T>(), "the values are unmapped, not dropped") };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?.max(1);
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at a place of the kernel's choice touches no other memory.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, prot, flags)? };
        if dense {
            // SAFETY: the mapping was just made and is `bytes` long. A refusal changes nothing but speed.
            let _ = unsafe { madvise(base, bytes, Advice::LinuxHugepage) };
        }
        let base: NonNull<T> = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        T::announce(base.as_ptr(), len);
        Ok(LazyArray { base, len, bytes })
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        if index >= self.len {
            return None;
        }
        // SAFETY: inside the mapping; all-zero bytes are a `T` (`Blank`), and only shared references to it
        // are ever given out, so writes go through `T`'s own interior mutability.
        Some(unsafe { self.base.add(index).as_ref() })
    }
}

impl<T> Drop for LazyArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and every reference into it borrowed from `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
