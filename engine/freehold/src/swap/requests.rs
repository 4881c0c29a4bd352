//! Requests to read and write pages of a swap device: [`SwapRead`] and [`SwapWrite`], which a
//! [`SwapDevice`](super::SwapDevice) gets and completes.
//!
//! `slot.rs` has the protocol of the words of the slots. A request owns a reference to each of its frames and
//! a lease of its device, so the device may keep it as long as it wants, and may complete it on any CPU.
//! Every page of a request ends exactly once: by `complete`, or with an error when the request is dropped.
//!
//! A device completes pages without any lock of the engine. The functions here must therefore take no lock
//! that sleeps, and must leave no page without an end: a task that waits for such a page would never wake up.

use super::{
    area::{Area, Lease},
    word::Shadow,
};
use crate::{
    Pfn,
    error::IoError,
    file::request::{MAX_PAGES, RequestPages},
    platform::Platform,
};
use core::{fmt, ops::Range};
use freehold_vmspace::PageIndex;

/// The part that both kinds of requests have. The pages are those of consecutive slots.
struct Request<P: Platform> {
    /// The slots that are not complete, and their frames. A slot is used as a page index.
    pages: RequestPages,
    /// The slot of the first shadow.
    first: u64,
    /// The shadow of each slot from `first` on.
    shadows: [Shadow; MAX_PAGES],
    /// The device. Its drop is the last step of a request.
    lease: Lease<P>,
}

impl<P: Platform> Request<P> {
    /// Creates a request for one slot, whose read or write has begun.
    fn new(lease: Lease<P>, slot: u64, pfn: Pfn, shadow: Shadow) -> Self {
        let pages = RequestPages::new(PageIndex::new(slot));
        let mut request = Request { pages, first: slot, shadows: [Shadow::default(); MAX_PAGES], lease };
        request.add(slot, pfn, shadow);
        request
    }

    fn add(&mut self, slot: u64, pfn: Pfn, shadow: Shadow) {
        self.pages.add(PageIndex::new(slot), pfn);
        self.shadows[(slot - self.first) as usize] = shadow;
    }

    /// Returns the slot behind the last page if the request may have one more page.
    fn next_slot(&self) -> Option<u64> {
        let end = self.pages.range().end.get();
        let fits = !self.pages.is_empty() && end - self.first < MAX_PAGES as u64;
        (fits && self.area().can_merge()).then_some(end)
    }

    fn take(&mut self, slot: u64) -> Option<(Pfn, Shadow)> {
        let pfn = self.pages.take(PageIndex::new(slot))?;
        Some((pfn, self.shadows[(slot - self.first) as usize]))
    }

    fn split_off(&mut self, at: u64) -> Self {
        let pages = self.pages.split_off(PageIndex::new(at));
        Request { pages, lease: self.lease.clone(), ..*self }
    }

    fn area(&self) -> &Area<P> {
        self.lease.area()
    }
}

/// Implements what both kinds of requests have in common.
macro_rules! request {
    ($name:ident, $end:ident) => {
        impl<P: Platform> $name<P> {
            /// Maximum number of pages of a request.
            pub const MAX_PAGES: u64 = MAX_PAGES as u64;

            /// Returns the platform, by which a device without a channel of its own accesses the frames.
            pub fn platform(&self) -> &P {
                self.0.area().memory().platform()
            }

            /// Returns the range from the first slot that is not complete to the last. Some slots in between
            /// may be complete already. The range is empty if all are complete.
            pub fn slots(&self) -> Range<u64> {
                let range = self.0.pages.range();
                range.start.get()..range.end.get()
            }

            /// Returns the number of pages that are not complete.
            pub fn len(&self) -> u64 {
                self.0.pages.len().get()
            }

            /// Returns true if all pages are complete.
            pub fn is_empty(&self) -> bool {
                self.0.pages.is_empty()
            }

            /// Returns the first slot that is not complete, and its frame.
            pub fn next_page(&self) -> Option<(u64, Pfn)> {
                self.0.pages.next().map(|(index, pfn)| (index.get(), pfn))
            }

            /// Returns the frame of a slot, unless the slot is complete or not part of the request. The
            /// request has a reference to the frame until the slot is complete.
            pub fn frame(&self, slot: u64) -> Option<Pfn> {
                self.0.pages.frame(PageIndex::new(slot))
            }

            /// Moves the slots from `at` on that are not complete to another request, so that different CPUs
            /// or devices can complete the parts. The result may be empty.
            pub fn split_off(&mut self, at: u64) -> Self {
                $name(self.0.split_off(at))
            }

            /// Creates a request for one slot, whose read or write has begun.
            pub(super) fn new(lease: Lease<P>, slot: u64, pfn: Pfn, shadow: Shadow) -> Self {
                $name(Request::new(lease, slot, pfn, shadow))
            }

            /// Returns the lease of the device.
            pub(super) fn lease(&self) -> &Lease<P> {
                &self.0.lease
            }
        }

        impl<P: Platform> fmt::Debug for $name<P> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("slots", &self.slots())
                    .field("left", &self.len())
                    .finish()
            }
        }

        impl<P: Platform> Drop for $name<P> {
            /// Fails the pages that are not complete.
            fn drop(&mut self) {
                while let Some((slot, _)) = self.next_page() {
                    self.complete(slot, Err(IoError));
                }
            }
        }
    };
}

/// A request to read the pages of consecutive slots into frames. The device gets it by
/// [`SwapDevice::read`](super::SwapDevice::read) and owns it from then on.
///
/// The device fills each frame and completes its page: at once or later, on any CPU, in any order, and with
/// an error or without. If the page was freed since the request was made, the contents are ignored, so a
/// device need not know of such changes. Pages that are not complete when the request is dropped fail:
/// accesses to them raise SIGBUS. A later access makes a new request.
///
/// A request keeps its device alive, so the drop of a request may drop the device. It is therefore dropped
/// with no lock held.
#[must_use = "dropping a request fails its pages"]
pub struct SwapRead<P: Platform>(Request<P>);

/// A request to write the pages of consecutive slots. The device gets it by
/// [`SwapDevice::write`](super::SwapDevice::write) and owns it from then on.
///
/// The device stores the contents of each frame and completes the page: at once or later, on any CPU, in any
/// order, and with an error or without. A page whose write has failed stays in memory, and the slot is not
/// used again. Pages that are not complete when the request is dropped fail.
///
/// A request keeps its device alive, so the drop of a request may drop the device. It is therefore dropped
/// with no lock held.
#[must_use = "dropping a request fails its pages"]
pub struct SwapWrite<P: Platform>(Request<P>);

request!(SwapRead, end_read);
request!(SwapWrite, end_write);

impl<P: Platform> SwapRead<P> {
    /// Completes a page. With `Ok`, the frame holds the contents of the slot. With an error, the accesses
    /// that wait for the page fail. Does nothing if the slot is complete already or not part of the request.
    ///
    /// # Locks
    ///
    /// None that sleeps. The device may hold its own locks. Wakes the tasks that wait for the page.
    pub fn complete(&mut self, slot: u64, read: Result<(), IoError>) {
        if let Some((pfn, shadow)) = self.0.take(slot) {
            self.0.area().end_read(slot, pfn, read, shadow);
        }
    }

    /// Begins a read of the slot behind the last one of the request into the frame, of which the caller has
    /// the only reference and keeps it. Returns false, and begins nothing, if that slot is not stored or the
    /// request may not have another page. For readahead.
    #[doc(hidden)]
    pub fn extend(&mut self, pfn: Pfn) -> bool {
        let Some(slot) = self.0.next_slot() else { return false };
        let Some(shadow) = self.0.area().begin_read(slot, pfn) else { return false };
        self.0.add(slot, pfn, shadow);
        true
    }
}

impl<P: Platform> SwapWrite<P> {
    /// Adds a page whose write has begun. Returns false, and adds nothing, if the slot is not behind the last
    /// one of the request, or if the request may not have another page.
    pub(super) fn append(&mut self, slot: u64, pfn: Pfn, shadow: Shadow) -> bool {
        let follows = self.0.next_slot() == Some(slot);
        if follows {
            self.0.add(slot, pfn, shadow);
        }
        follows
    }

    /// Completes a page. With `Ok`, the contents of the frame are stored. Does nothing if the slot is
    /// complete already or not part of the request.
    ///
    /// # Locks
    ///
    /// None that sleeps. The device may hold its own locks.
    pub fn complete(&mut self, slot: u64, written: Result<(), IoError>) {
        if let Some((pfn, shadow)) = self.0.take(slot) {
            self.0.area().end_write(slot, pfn, written, shadow);
        }
    }

    /// Begins a write of the slot behind the last one of the request. Returns false, and begins nothing, if
    /// the page of that slot is not new or the request may not have another page. The caller has a swap entry
    /// for the slot.
    #[doc(hidden)]
    pub fn extend(&mut self, shadow: Shadow) -> bool {
        let Some(slot) = self.0.next_slot() else { return false };
        let Some(pfn) = self.0.area().begin_write(slot) else { return false };
        self.0.add(slot, pfn, shadow);
        true
    }
}
