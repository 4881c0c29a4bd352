//! Requests to write pages of a file to its backing store: [`WriteRequest`], which a [`Pager`](super::Pager)
//! gets and completes. The counterpart of `read.rs`.
//!
//! `change/write_back.rs` makes requests. The pages of a request are marked as being written in the tree of
//! the cache (`cache/marks.rs`). Until a page is complete, a removal of the page waits
//! ([`Stop::Writing`](super::contents::Stop)), and a second write of the page does not begin. All other
//! operations proceed: faults map the page, stores mark it as dirty again, and a migration fails because the
//! request has a reference to the frame.
//!
//! A request owns its references to the frames and to its file, so its pager may keep it as long as it wants,
//! and may complete it on any CPU. Every page of a request ends exactly once: by `complete`, or with an error
//! when the request is dropped. A pager completes pages without any lock of the engine. The functions here
//! must therefore take no lock that sleeps, and must leave no page without an end: a task that waits for such
//! a page would never wake up. The mutations that begin with `write-` (`xtask/mutants`) remove these
//! protections one by one.

use super::{
    IoError, Mapping,
    cache::{radix::Stay, reading::Turn},
    request::{MAX_PAGES, RequestPages},
};
use crate::{Pfn, counted::Counted, platform::Platform};
use core::fmt;
use freehold_sync::{Killed, rank};
use freehold_vmspace::{PageCount, PageIndex, PageRange};

/// A request to write consecutive pages of a file. The pager gets it by [`Pager::write`](super::Pager::write)
/// and owns it from then on.
///
/// The pager stores the contents of each frame and completes the page: at once or later, on any CPU, in any
/// order, and with an error or without. A page that is completed with an error is dirty again, and every open
/// file learns of the error once (`File::sync`). Programs may change the contents of a frame during the
/// write, by stores through mappings or by [`write_at`](Mapping::write_at). Such a page is written again
/// later, so a pager need not know of the change.
///
/// Until a page is complete, a truncation or a hole that removes the page waits. Pages that are not complete
/// when the request is dropped fail. A request keeps its file alive, so the drop of a request may drop the
/// file and its pager. It is therefore dropped with no lock held.
///
/// # Examples
///
/// A pager that completes its requests later:
///
/// ```
/// # use freehold::{PAGE_SIZE, PageIndex, PageRange, file::{Mapping, Pager, WriteRequest}, platform::Platform};
/// # use std::sync::{Arc, Mutex};
/// # let engine = freehold_machine::example_engine(1 << 20);
/// /// A device with a queue.
/// struct Device<P: Platform>(Arc<Mutex<Vec<WriteRequest<P>>>>);
/// impl<P: Platform> Pager<P> for Device<P> {
/// #   fn reads_zeroes(&self) -> bool {
/// #       true
/// #   }
///     fn write(&self, request: WriteRequest<P>) {
///         self.0.lock().unwrap().push(request);
///     }
///     fn write_pages(&self) -> u64 {
///         8
///     }
/// }
/// let queue = Arc::new(Mutex::new(Vec::new()));
/// let file = Mapping::new(&engine, Device(queue.clone()), 4 * PAGE_SIZE, false).unwrap();
/// file.write_at(PAGE_SIZE, &[7; 2 * PAGE_SIZE as usize]).unwrap();
/// std::thread::scope(|scope| {
///     let writer = scope.spawn(|| file.write_back(PageRange::ALL));
///     // The interrupt of the device:
///     let mut request = loop {
///         if let Some(request) = queue.lock().unwrap().pop() {
///             break request;
///         }
/// #       std::thread::yield_now();
///     };
///     assert_eq!(request.len().get(), 2);
///     while let Some((index, frame)) = request.next_page() {
///         let mut stored = [0];
///         request.platform().read_frame(frame, 0, &mut stored);
///         assert_eq!(stored, [7]);
///         request.complete(index, Ok(()));
///     }
///     assert_eq!(writer.join().unwrap(), Ok(()));
/// });
/// ```
#[must_use = "dropping a request fails its pages"]
pub struct WriteRequest<P: Platform> {
    /// The file. Its drop is the last step of a request, because frames are freed into the file's memory.
    file: Counted<Mapping<P>>,
    /// The pages that are not complete. The request has a reference to each of their frames.
    pages: RequestPages,
}

impl<P: Platform> WriteRequest<P> {
    /// Maximum number of pages of a request.
    pub const MAX_PAGES: u64 = MAX_PAGES as u64;

    /// Creates a request for consecutive pages from `first`, whose writes have begun. Takes over the
    /// references to the frames.
    pub(super) fn new(file: Counted<Mapping<P>>, first: PageIndex, frames: &[Pfn]) -> Self {
        let mut pages = RequestPages::new(first);
        (0..).zip(frames).for_each(|(n, frame)| pages.add(first + n, *frame));
        WriteRequest { file, pages }
    }

    /// Returns the platform, by which a pager without a device of its own reads the frames.
    pub fn platform(&self) -> &P {
        self.file.files().platform()
    }

    /// Returns the file.
    pub fn file(&self) -> &Counted<Mapping<P>> {
        &self.file
    }

    /// Returns the range from the first page that is not complete to the last. Some pages in between may be
    /// complete already. The range is empty if all pages are complete.
    pub fn pages(&self) -> PageRange {
        self.pages.range()
    }

    /// Returns the number of pages that are not complete.
    pub fn len(&self) -> PageCount {
        self.pages.len()
    }

    /// Returns true if all pages are complete.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns the first page that is not complete, and its frame.
    pub fn next_page(&self) -> Option<(PageIndex, Pfn)> {
        self.pages.next()
    }

    /// Returns the frame of a page, unless the page is complete or not part of the request. The frame holds
    /// the page until the page is complete. For a direct file it is the frame of the storage.
    pub fn frame(&self, index: PageIndex) -> Option<Pfn> {
        self.pages.frame(index)
    }

    /// Completes a page. With `Ok`, the contents that the frame had at the beginning of the request, or later
    /// ones, are stored. With an error, the page is dirty again, and the error is reported. Does nothing if
    /// the page is complete already or is not part of the request.
    ///
    /// # Locks
    ///
    /// None that sleeps. The pager may hold its own locks. Wakes the tasks that wait for the page.
    pub fn complete(&mut self, index: PageIndex, written: Result<(), IoError>) {
        if let Some(frame) = self.pages.take(index) {
            self.file.end_write(index, frame, written);
        }
    }

    /// Moves the pages from `at` on that are not complete to another request, so that different CPUs or
    /// devices can complete the parts. The result may be empty.
    pub fn split_off(&mut self, at: PageIndex) -> Self {
        WriteRequest { file: self.file.clone(), pages: self.pages.split_off(at) }
    }
}

impl<P: Platform> fmt::Debug for WriteRequest<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteRequest").field("pages", &self.pages()).field("left", &self.len()).finish()
    }
}

impl<P: Platform> Drop for WriteRequest<P> {
    /// Fails the pages that are not complete.
    fn drop(&mut self) {
        while let Some((index, _)) = self.next_page() {
            self.complete(index, Err(IoError));
        }
    }
}

impl<P: Platform> Mapping<P> {
    /// Passes a request to the pager. The caller holds no lock.
    pub(super) fn send_write(&self, request: WriteRequest<P>) {
        rank::holds_none::<P>();
        self.pager().write(request);
    }

    /// Ends the write of a page and drops the reference of the request to the frame.
    fn end_write(&self, index: PageIndex, pfn: Pfn, written: Result<(), IoError>) {
        if written.is_err() {
            // Before the end of the write, so that the page always has a mark and a later write-back finds
            // the page.
            self.set_dirty(index, pfn);
            self.dirty.failed();
        }
        // Before the end of the write, because a removal that waits for the end then counts references. The
        // last reference is dropped here only if the memory of the page has failed.
        if self.files().platform().frame(pfn).put() {
            self.files().memory().free_charged(pfn);
        }
        self.end_write_mark(index);
    }

    /// Ends the write of a page of which the caller has no reference, and wakes the tasks that wait for it.
    pub(super) fn end_write_mark(&self, index: PageIndex) {
        let rcu = P::rcu_read();
        let wake = self.cache.end_write(Stay::within::<P>(&rcu), index);
        drop(rcu);
        self.dirty.throttle.subtract::<P>(1);
        if wake {
            self.write_turn(index).wake::<P>();
        }
    }

    /// Returns true if a page of the range is being written. No write begins while the caller holds the
    /// invalidate lock for writing.
    pub(super) fn has_writes(&self, stay: Stay<'_>, pages: PageRange) -> bool {
        self.next_write(stay, pages).is_some()
    }

    fn next_write(&self, stay: Stay<'_>, pages: PageRange) -> Option<PageIndex> {
        let mut at = pages.start;
        while self.is_written_back() && at < pages.end {
            let rest = PageRange::new(at, pages.end);
            match self.cache.next_write(&mut self.marks(), stay, rest) {
                (None, next) => at = next,
                (found, _) => return found,
            }
        }
        None
    }

    /// Waits until each page of the range has been seen without a write under way. If another write
    /// of a page begins before this task looks again, the task waits for that write too.
    ///
    /// # Errors
    ///
    /// Fails with `Killed` if a fatal signal ends the wait.
    ///
    /// # Locks
    ///
    /// None. The caller holds no lock.
    pub(super) fn wait_for_writes(&self, pages: PageRange) -> Result<(), Killed> {
        rank::holds_none::<P>();
        let mut at = pages.start;
        loop {
            let rcu = P::rcu_read();
            let found = self.next_write(Stay::within::<P>(&rcu), PageRange::new(at, pages.end));
            drop(rcu);
            let Some(index) = found else { return Ok(()) };
            self.write_turn(index).wait_while::<P>(|| {
                let rcu = P::rcu_read();
                self.cache.watch_write(Stay::within::<P>(&rcu), index)
            })?;
            at = index + 1;
        }
    }

    /// Returns the counter that tasks sleep on while the page `index` is being written.
    fn write_turn(&self, index: PageIndex) -> Turn<'_> {
        self.files().reads.of(self.key(), index.get())
    }
}
