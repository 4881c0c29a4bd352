//! Requests to read pages of a file from its backing store: [`ReadRequest`], which a [`Pager`](super::Pager)
//! gets and completes.
//!
//! `cache/reading.rs` has the protocol of the words of the pages. `fill.rs` starts reads and waits for them.
//! A request owns its frames and a reference to its file, so its pager may keep it as long as it wants, and
//! may complete it on any CPU. Every page of a request ends exactly once: by `complete`, or with an error
//! when the request is dropped.
//!
//! A pager completes pages without any lock of the engine. The functions here must therefore take no lock
//! that sleeps, and must leave no page without an end: a task that waits for such a page would never wake up.
//! The mutations `read-drop-fails`, `read-cookie` and `read-removal-wakes` (`xtask/mutants`) remove these
//! protections one by one.

use super::{
    IoError, LOST, Mapping, SwappedOut, Word, block_around,
    cache::{
        radix::{Locked, Stay},
        reading::{self, End, State, Turn},
    },
    mapping::FillError,
    readahead::Mark,
    request::{MAX_PAGES, RequestPages},
};
use crate::{Pfn, counted::Counted, platform::Platform};
use core::fmt;
use freehold_sync::{
    Killed, RwSemReadGuard, RwSemWriteGuard,
    atomic::{AtomicU64, Ordering::Relaxed},
    rank,
};
use freehold_vmspace::{PageCount, PageIndex, PageRange, Run};

/// A request to read consecutive pages of a file into frames that are already allocated. The pager gets it by
/// [`Pager::read`](super::Pager::read) and owns it from then on.
///
/// The pager fills each frame and completes its page: at once or later, on any CPU, in any order, and with an
/// error or without. A completed page is visible to programs at once. If the file has lost the page since the
/// request was made (truncation, hole), the contents are ignored and the frame is freed, so a pager need not
/// know of such changes.
///
/// Pages that are not complete when the request is dropped fail: accesses to them raise SIGBUS, and reads
/// return EIO. A later access makes a new request. A request keeps its file alive, so the drop of a request
/// may drop the file and its pager. It is therefore dropped with no lock held.
///
/// # Examples
///
/// A pager that completes its requests later:
///
/// ```
/// # use freehold::{PAGE_SIZE, PageIndex, file::{Mapping, Pager, ReadRequest}, platform::Platform};
/// # use std::sync::{Arc, Mutex};
/// # let engine = freehold_machine::example_engine(1 << 20);
/// /// A device with a queue.
/// struct Device<P: Platform>(Arc<Mutex<Vec<ReadRequest<P>>>>);
/// impl<P: Platform> Pager<P> for Device<P> {
///     fn read(&self, request: ReadRequest<P>) {
///         self.0.lock().unwrap().push(request);
///     }
/// }
/// let queue = Arc::new(Mutex::new(Vec::new()));
/// let file = Mapping::new(&engine, Device(queue.clone()), 4 * PAGE_SIZE, false).unwrap();
/// let mut found = [0; 2];
/// std::thread::scope(|scope| {
///     let reader = scope.spawn(|| file.read_at(PAGE_SIZE, &mut found));
///     // The interrupt of the device:
///     let mut request = loop {
///         if let Some(request) = queue.lock().unwrap().pop() {
///             break request;
///         }
/// #       std::thread::yield_now();
///     };
///     while let Some((index, frame)) = request.next_page() {
///         request.platform().write_frame(frame, 0, b"ok");
///         request.complete(index, Ok(()));
///     }
///     assert_eq!(reader.join().unwrap(), Ok(2));
/// });
/// assert_eq!(&found, b"ok");
/// ```
#[must_use = "dropping a request fails its pages"]
pub struct ReadRequest<P: Platform> {
    /// The file. Its drop is the last step of a request, because frames are freed into the file's memory.
    file: Counted<Mapping<P>>,
    /// The pages that are not complete. Their frames belong to the request.
    pages: RequestPages,
    /// The pages whose failure is stored in the cache, because the task that made the request waits for them.
    watched: u32,
}

impl<P: Platform> ReadRequest<P> {
    /// Creates a request without pages. Its window begins at `first`.
    fn new(file: Counted<Mapping<P>>, first: PageIndex) -> Self {
        ReadRequest { file, pages: RequestPages::new(first), watched: 0 }
    }

    /// Maximum number of pages of a request.
    pub const MAX_PAGES: u64 = MAX_PAGES as u64;

    /// Returns the platform, by which a pager without a device of its own writes to the frames.
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

    /// Returns the frame of a page, unless the page is complete or not part of the request. The frame belongs
    /// to the request until the page is complete.
    pub fn frame(&self, index: PageIndex) -> Option<Pfn> {
        self.pages.frame(index)
    }

    /// Completes a page. With `Ok`, the frame holds the contents of the page, and programs see them from now
    /// on; bytes beyond the end of the file need not be written, because the engine zeroes them. With an
    /// error, the accesses that wait for the page fail. Does nothing if the page is complete already or is
    /// not part of the request.
    ///
    /// # Locks
    ///
    /// None that sleeps. The pager may hold its own locks. Wakes the tasks that wait for the page.
    pub fn complete(&mut self, index: PageIndex, read: Result<(), IoError>) {
        if let Some(frame) = self.pages.take(index) {
            let watched = self.watched & self.pages.bit(index) != 0;
            self.file.end_read(index, frame, read, watched);
        }
    }

    /// Moves the pages from `at` on that are not complete to another request, so that different CPUs or
    /// devices can complete the parts. The result may be empty.
    pub fn split_off(&mut self, at: PageIndex) -> Self {
        ReadRequest { file: self.file.clone(), pages: self.pages.split_off(at), watched: self.watched }
    }

    /// Adds a page, whose word names the frame. With `watched`, a failure is stored in the cache.
    fn add(&mut self, index: PageIndex, pfn: Pfn, watched: bool) {
        self.pages.add(index, pfn);
        if watched {
            self.watched |= self.pages.bit(index);
        }
    }
}

impl<P: Platform> fmt::Debug for ReadRequest<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadRequest").field("pages", &self.pages()).field("left", &self.len()).finish()
    }
}

impl<P: Platform> Drop for ReadRequest<P> {
    /// Fails the pages that are not complete.
    fn drop(&mut self) {
        while let Some((index, _)) = self.next_page() {
            self.complete(index, Err(IoError));
        }
    }
}

/// Result of an attempt to start a read.
#[expect(
    clippy::large_enum_variant,
    reason = "a result on the stack; a read must not allocate from the heap"
)]
pub(super) enum Start<P: Platform> {
    /// Another task has started a read of the page.
    UnderWay,
    /// The caller passes the request to [`send_read`](Mapping::send_read), after it has released the lock.
    Send(ReadRequest<P>),
}

/// Reads of consecutive pages into consecutive frames, which are marked and not yet passed to the pager.
#[must_use = "the pages never end being read unless `finish_run` passes them to the pager"]
pub(super) struct RunReads<P: Platform> {
    file: Counted<Mapping<P>>,
    /// The frame of the first page.
    first: Pfn,
    pages: PageRange,
}

impl<P: Platform> Mapping<P> {
    /// Starts a read of the absent page `index`, and of absent pages around it that lie in `pages`, as many
    /// as the pager wants in one request. With `watched`, the failure of the page itself is stored in the
    /// cache, because the caller waits for the page. One of the pages may get `mark`. No page becomes visible
    /// before the read ends.
    ///
    /// # Errors
    ///
    /// Fails with `Lost`, `NoMemory` or `NoSpace`; no read was started.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, which the caller holds.
    pub(super) fn start_read(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        pages: PageRange,
        watched: bool,
        mark: &mut Mark,
    ) -> Result<Start<P>, FillError> {
        let pages = self.request_around(index, pages);
        let file = self.home().hold_borrowed(self).ok_or(FillError::Io)?;
        let mut request = ReadRequest::new(file, pages.start);
        // Another task may have started a read of the page in the meantime.
        let Some(pfn) = self.begin_page(pages_stay, index, mark)? else { return Ok(Start::UnderWay) };
        request.add(index, pfn, watched);
        // The neighbours are optional: without memory, the request has fewer pages.
        let mut extend = |index| {
            let vacant = matches!(self.look(pages_stay, index), Look::Vacant);
            let begun = if vacant { self.begin_page(pages_stay, index, mark) } else { Ok(None) };
            begun.ok().flatten().inspect(|pfn| request.add(index, *pfn, false)).is_some()
        };
        let (before, after) = (PageRange::new(pages.start, index), PageRange::new(index + 1, pages.end));
        let _: bool = after.into_iter().all(&mut extend);
        let _: bool = before.numbers().rev().map(PageIndex::new).all(extend);
        Ok(Start::Send(request))
    }

    /// Returns the largest number of pages of a request.
    fn request_pages(&self) -> PageCount {
        let pages = self.pager().read_pages().clamp(1, ReadRequest::<P>::MAX_PAGES);
        PageCount::block(pages.ilog2())
    }

    /// Returns the pages that a read of the page `index` covers without readahead.
    pub(super) fn read_block(&self, index: PageIndex) -> PageRange {
        block_around(index, self.request_pages())
    }

    /// Returns the part of `pages` that one request for the page `index` may cover. The requests of a window
    /// follow each other from the start of the window.
    fn request_around(&self, index: PageIndex, pages: PageRange) -> PageRange {
        let most = self.request_pages();
        let start = index - (index - pages.start).get() % most.get();
        PageRange::new(start, pages.end.min(start.saturating_add(most.get())))
    }

    /// Returns what the cache has at `index`. Under the invalidate lock held for reading, the result is a
    /// hint. In both modes, a read may end at any moment.
    pub(super) fn look(&self, lock: &impl Locked, index: PageIndex) -> Look {
        // Relaxed: a hint. A lost page stays lost while the lock is held.
        match Word(self.word(lock, index).map_or(0, |word| word.load(Relaxed))) {
            word if word.is_vacant() => Look::Vacant,
            word if word.is_reading() => Look::Reading,
            Word(LOST) => Look::Lost,
            word => word.swapped_out().map_or(Look::Cached, Look::Swapped),
        }
    }

    /// Allocates a frame for a page and marks the page as being read into the frame. Counts the page. The
    /// page gets `mark` if it is the first page that may. Returns `None` if the cache has the page or a read
    /// of it, or if the page is being discarded.
    fn begin_page(
        &self,
        pages_stay: &RwSemReadGuard<'_, P>,
        index: PageIndex,
        mark: &mut Mark,
    ) -> Result<Option<Pfn>, FillError> {
        if self.is_discarding(PageRange::one(index)) {
            return Ok(None);
        }
        let marked = mark.belongs_to(index);
        let charge = self.charge_pages(PageCount::ONE)?;
        let pfn = self.files().memory().alloc_cache(self.cache_page(), index, 0)?;
        self.note_refault(index, pfn);
        let begun = self.cache_word(pages_stay, index).map(|word| reading::begin(word, pfn, 0, marked));
        if let Ok(true) = begun {
            if marked {
                mark.set(index);
            }
            charge.keep();
            self.invalidate.came(1);
            return Ok(Some(pfn));
        }
        self.files().memory().put_frame(pfn);
        begun.map(|_| None).map_err(FillError::from)
    }

    /// Gives a new page the age of a page that was evicted recently, if reclaim has evicted it. Another task
    /// cannot find the page yet.
    fn note_refault(&self, index: PageIndex, pfn: Pfn) {
        if let Some(age) = self.files().reclaim.refaulted(self.key(), index) {
            let frame = self.files().platform().frame(pfn);
            frame.set_first_age(age.byte());
        }
    }

    /// Starts reads of `pages`, none of which is in the cache, into the frames of `run`. The pages will be a
    /// block of this order. The caller has charged the pages, and then calls
    /// [`finish_run`](Self::finish_run) without the lock.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for nodes of the tree. No read was started, and the run is dropped.
    pub(super) fn start_run(
        &self,
        pages_go: &RwSemWriteGuard<'_, P>,
        pages: PageRange,
        run: Run<P>,
        order: u32,
    ) -> Result<RunReads<P>, FillError> {
        let file = self.home().hold_borrowed(self).ok_or(FillError::Io)?;
        // All nodes are made before the first read starts.
        let made = pages.into_iter().try_for_each(|index| self.cache_word(pages_go, index).map(drop));
        if made.is_err() {
            self.prune(pages_go, pages);
            made?;
        }
        let first = Pfn::new(run.numbers().start);
        for (pfn, index) in run.into_frames().zip(pages) {
            let begun =
                self.word(pages_go, index).is_some_and(|word| reading::begin(word, pfn, order, false));
            debug_assert!(begun, "a page of a run is in the cache");
            self.invalidate.came(1);
        }
        Ok(RunReads { file, first, pages })
    }

    /// Passes the reads of a run to the pager, and waits for them. A page that was removed in the meantime
    /// counts as read.
    ///
    /// # Errors
    ///
    /// Fails with `Io` if a page could not be read; the other pages are in the cache. Fails with `Killed` if
    /// a fatal signal ends the wait.
    pub(super) fn finish_run(&self, reads: RunReads<P>) -> Result<(), FillError> {
        let RunReads { file, first, pages } = reads;
        let mut start = pages.start;
        while start < pages.end {
            let part = PageRange::new(start, pages.end.min(start + ReadRequest::<P>::MAX_PAGES));
            let mut request = ReadRequest::new(file.clone(), part.start);
            for index in part {
                request.add(index, first.add((index - pages.start).get()), true);
            }
            self.send_read(request);
            start = part.end;
        }
        let mut result = Ok(());
        for index in pages {
            if self.wait_for_read(index)? == State::Failed {
                self.forget_read(index);
                result = Err(FillError::Io);
            }
        }
        result
    }

    /// Passes a request to the pager. The caller holds no lock.
    pub(super) fn send_read(&self, request: ReadRequest<P>) {
        rank::holds_none::<P>();
        self.pager().read(request);
    }

    /// Ends the read of a page into the frame `pfn`. Publishes the page if it was read and the file still
    /// wants it; otherwise frees the frame.
    fn end_read(&self, index: PageIndex, pfn: Pfn, read: Result<(), IoError>, watched: bool) {
        let frame = self.files().platform().frame(pfn);
        let visible = read.is_ok();
        if visible {
            self.zero_beyond_end(index, pfn);
            frame.enter_cache();
        }
        let rcu = P::rcu_read();
        let word = self.cache.get(Stay::within::<P>(&rcu), index);
        let end = word.map_or(End::Removed, |word| reading::end(word, pfn, visible, watched));
        drop(rcu);
        if end == (End::Ended { wake: true }) {
            self.turn(index).wake::<P>();
        }
        match end {
            End::Ended { .. } if visible => return,
            End::Ended { .. } => self.pages_went(1),
            End::Removed if visible => frame.leave_cache(),
            End::Removed => {}
        }
        // The frame may come from a run, so it returns to the platform and not to the caches of free frames.
        if frame.put() {
            self.files().memory().free_charged(pfn);
        }
    }

    /// Waits until the page `index` is not being read.
    ///
    /// # Errors
    ///
    /// Fails with `Killed` if a fatal signal ends the wait.
    ///
    /// # Locks
    ///
    /// None. The caller holds no lock.
    pub(super) fn wait_for_read(&self, index: PageIndex) -> Result<State, Killed> {
        rank::holds_none::<P>();
        self.turn(index).wait::<P, _>(|| {
            let rcu = P::rcu_read();
            let word = self.cache.get(Stay::within::<P>(&rcu), index);
            reading::ended(word.map_or(State::Other, reading::watch))
        })
    }

    /// Removes the failure of a read that the caller has seen, and the tree nodes that the read has left
    /// behind. Waits for no lock: nodes that stay are freed by the next removal of pages.
    pub(super) fn forget_read(&self, index: PageIndex) {
        let rcu = P::rcu_read();
        let forgotten = self.cache.get(Stay::within::<P>(&rcu), index).is_some_and(reading::forget);
        drop(rcu);
        if forgotten && let Some(pages_go) = self.invalidate.try_write() {
            self.prune(&pages_go, self.read_block(index));
        }
    }

    /// Removes the word of a page that is being read, or whose read has failed, and wakes the tasks that wait
    /// for the page. Returns false if the word is neither. The caller holds the invalidate lock for writing.
    pub(super) fn remove_reading(&self, index: PageIndex, word: &AtomicU64) -> bool {
        let Some(removed) = reading::remove(word) else { return false };
        if removed.reading {
            self.pages_went(1);
        }
        if removed.wake {
            self.turn(index).wake::<P>();
        }
        true
    }

    /// Adds a page with these contents, which are a whole page, and marks it dirty. Replaces a read of the
    /// page, and a page that is swapped out. Returns false if the cache has the page. The caller holds
    /// `content` for writing.
    ///
    /// # Errors
    ///
    /// Fails with `Lost`, `NoMemory`, `NoSpace` or `Killed`; nothing has changed.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, killably.
    pub(super) fn put_whole_page(&self, index: PageIndex, contents: &[u8]) -> Result<bool, FillError> {
        let pages_stay = self.stay_to_fill(index)?;
        match self.look(&pages_stay, index) {
            Look::Lost => return Err(FillError::Lost),
            Look::Cached => return Ok(false),
            Look::Vacant | Look::Reading | Look::Swapped(_) => {}
        }
        let (memory, platform) = (self.files().memory(), self.files().platform());
        let charge = self.charge_pages(PageCount::ONE)?;
        let pfn = memory.alloc_cache(self.cache_page(), index, 0)?;
        self.note_refault(index, pfn);
        let word = self.cache_word(&pages_stay, index).inspect_err(|_| memory.put_frame(pfn))?;
        platform.write_frame(pfn, 0, contents);
        platform.frame(pfn).set_dirty();
        platform.frame(pfn).enter_cache();
        let Some(replaced) = reading::replace(word, pfn) else {
            platform.frame(pfn).leave_cache();
            memory.put_frame(pfn);
            return Ok(false);
        };
        self.mark_dirty(&P::rcu_read(), index);
        // A page that was being read or swapped out is already counted and charged.
        if !replaced.reading && replaced.swapped.is_none() {
            self.invalidate.came(1);
            charge.keep();
        }
        replaced.swapped.into_iter().for_each(|page| self.forget_swapped(page));
        if replaced.wake {
            self.turn(index).wake::<P>();
        }
        Ok(true)
    }

    /// Returns true if absent pages are read from a pager that may wait, or if it names their frames.
    pub(crate) fn waits_for_pager(&self) -> bool {
        self.huge.is_none() && (self.is_direct() || !self.pager().reads_zeroes())
    }

    /// Returns the counter that tasks sleep on while the page `index` is being read.
    pub(super) fn turn(&self, index: PageIndex) -> Turn<'_> {
        self.files().reads.of(self.key(), index.get())
    }
}

/// The state of an index in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// No page, and no read.
    Vacant,
    /// A read is under way.
    Reading,
    /// The page is lost.
    Lost,
    /// The page is swapped out.
    Swapped(SwappedOut),
    /// A page, visible or hidden.
    Cached,
}
