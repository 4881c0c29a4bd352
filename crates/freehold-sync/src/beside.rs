//! The reader/writer lock beside a VMA: an object of its own, found through the VMA, where
//! [`vma_lock`](crate::vma_lock) says so.
#![expect(unsafe_code, reason = "a VMA's words do not name the host that its lock is used with")]

use crate::atomic::{AtomicPtr, Ordering, const_unless_loom};
use crate::host::Host;
use crate::rwsem::raw::RawRwSem;
use allocator_api2::alloc::AllocError;
use allocator_api2::boxed::Box;
use core::ptr::null_mut;

/// Where the lock is.
///
/// # Invariants
/// Null, or a lock that this owns. Once made, it stays.
pub(crate) struct Beside(AtomicPtr<RawRwSem<()>>);

impl Beside {
    const_unless_loom! {
        /// None yet.
        pub fn none() -> Self {
            Beside(AtomicPtr::new(null_mut()))
        }
    }

    /// Makes the lock, unless there is one. Its VMA is the caller's.
    pub fn make<H: Host>(&self) -> Result<(), AllocError> {
        // Relaxed: the owner's own.
        if self.0.load(Ordering::Relaxed).is_null() {
            let lock = Box::into_raw(Box::try_new(RawRwSem::<H>::new())?);
            // Release: pairs with the acquire in `get`.
            self.0.store(lock.cast(), Ordering::Release);
        }
        Ok(())
    }

    /// The lock, if the VMA has ever had one.
    pub fn get<H: Host>(&self) -> Option<&RawRwSem<H>> {
        // Acquire: pairs with `make`, for a reader that reads this before it has seen the VMA attached.
        let lock = self.0.load(Ordering::Acquire).cast::<RawRwSem<H>>();
        // SAFETY: null, or a lock that is there as long as this is. Its layout is the same for every host.
        unsafe { lock.as_ref() }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Relaxed: dropped by its only owner.
        let lock = self.0.load(Ordering::Relaxed);
        if !lock.is_null() {
            // SAFETY: made by `make` from such a box, and nobody else's. What it has lies in its words, which
            // need no drop, and its layout is the same for every host.
            drop(unsafe { Box::from_raw(lock) });
        }
    }
}
