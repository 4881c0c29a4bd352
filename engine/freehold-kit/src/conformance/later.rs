//! A pager that leaves its request to another task.
#![expect(unsafe_code, reason = "passes a request to another task by a pointer")]

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ptr;
use freehold::file::{Pager, ReadRequest};
use freehold::platform::Platform;
use freehold::platform::atomic::{AtomicPtr, Ordering::AcqRel};

/// A place for one request, from the task that reads to the task that completes the read.
pub(super) struct Later<P: Platform>(AtomicPtr<ReadRequest<P>>);

impl<P: Platform> Later<P> {
    pub fn new() -> Self {
        Later(AtomicPtr::new(ptr::null_mut()))
    }

    /// Stores a request. An earlier request that no task has taken is dropped, so that its pages fail.
    fn put(&self, request: ReadRequest<P>) {
        drop(self.swap(Box::into_raw(Box::new(request))));
    }

    /// Removes the request.
    pub fn take(&self) -> Option<ReadRequest<P>> {
        self.swap(ptr::null_mut()).map(|request| *request)
    }

    fn swap(&self, new: *mut ReadRequest<P>) -> Option<Box<ReadRequest<P>>> {
        // Acquire and release: pairs with itself, so the task that gets the pointer sees the request.
        let old = self.0.swap(new, AcqRel);
        // SAFETY: a pointer that is not null came from a box, and the swap made this task its only owner.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }
}

impl<P: Platform> Drop for Later<P> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// The pager.
pub(super) struct Pages<P: Platform>(pub Arc<Later<P>>);

impl<P: Platform> Pager<P> for Pages<P> {
    fn read(&self, request: ReadRequest<P>) {
        self.0.put(request);
    }
}
