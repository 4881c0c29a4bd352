//! Readahead: reads of pages that a program has not asked for yet, but probably needs soon.
//!
//! Each open file has a [`Readahead`]: the window that was read last, and hints about the order of accesses.
//! Read calls and faults of all mappings of the open file use it. `window.rs` computes the next window.
//!
//! ```text
//! page absent       a miss: the task reads a window that contains the page, and waits for the page only
//! page has a mark   the task takes the mark, starts the reads of the next window, and does not wait
//! page in cache     nothing is read, and nothing of the open file is written by a fault
//! ```
//!
//! The mark is a bit in the word of one page of each window (`cache/entry.rs`). A page that is still being
//! read can have the mark too. A fault does not map a marked page around another page (`fault/file.rs`), so
//! that an access to the marked page faults.
//!
//! The state is a hint. Tasks read and write its words without a lock. If two tasks change it at once, one
//! change may be lost, or a window of one task may get the size of another. Such a window is a little too
//! large or too small, or its pages are in the cache already. The pages of a window are read like all other
//! pages (`fill.rs`, `read.rs`): a page that is in the cache or is being read is left out.
//!
//! Readahead gives up without an error if memory is short, if a read fails at once, or at the end of the
//! file. A file whose pager wants one page per request has no readahead, because such a pager usually reads
//! in the task that needs the page (`Pager::read_page`), which would wait for all pages of the window.
//!
//! `file/change/advise.rs` has the advice of programs. `tests/files/readahead.rs` has the tests. The
//! mutations whose names begin with `readahead` (`xtask/mutants`) remove parts of this file one by one.

mod window;

pub(crate) use window::AccessOrder;
pub(super) use window::{Mark, Window};

use super::{File, Mapping, Need, Wanted, cache::lookup::CachedPage, mapping::FillError};
use crate::{platform::Platform, wait::Rounds};
use freehold_sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use freehold_vmspace::{PageIndex, PageRange};
use window::MANY_MISSES;

/// Maximum number of pages that one call or one advice reads in advance, if the maximum of the file is not
/// larger. Limits the memory that a hint can use.
const AT_ONCE: u64 = 512;
/// Largest value of [`Mapping::set_readahead`].
const LARGEST: u32 = 1 << 13;

/// The state of readahead of one open file. All fields are hints, which tasks read and write without a lock
/// and with relaxed order.
pub(super) struct Readahead {
    /// The first page of the last window.
    start: AtomicU64,
    /// The size of the last window in the lower half, and the number of its pages that are read ahead in the
    /// upper half.
    sizes: AtomicU64,
    /// The offset after the last byte that a read call has read, or `u64::MAX` before the first call.
    position: AtomicU64,
    /// Number of faults that found neither their page nor its neighbours in the cache, less the number that
    /// found a neighbour.
    misses: AtomicU32,
    /// The order of accesses that `File::advise` has announced for read calls.
    order: AtomicU8,
}

impl Readahead {
    /// Creates the state of a file that was never read.
    pub fn new() -> Self {
        Readahead {
            start: AtomicU64::new(0),
            sizes: AtomicU64::new(0),
            position: AtomicU64::new(u64::MAX),
            misses: AtomicU32::new(0),
            order: AtomicU8::new(AccessOrder::Any as u8),
        }
    }

    /// Returns the last window.
    fn window(&self) -> Window {
        let (start, sizes) = (self.start.load(Relaxed), self.sizes.load(Relaxed));
        Window { start: PageIndex::new(start), size: sizes as u32, ahead: (sizes >> u32::BITS) as u32 }
    }

    /// Stores the last window, unless it has no mark.
    fn set_window(&self, window: Window) {
        if window.ahead > 0 {
            self.start.store(window.start.get(), Relaxed);
            self.sizes.store(u64::from(window.ahead) << u32::BITS | u64::from(window.size), Relaxed);
        }
    }

    /// Corrects the last window, unless it is another one by now, if its mark is not at the planned place.
    pub fn correct(&self, window: Window, mark: &Mark) {
        let put = window.with_mark(mark);
        if put != window && self.window() == window {
            self.set_window(put);
        }
    }

    /// Returns the announced order of read calls.
    fn order(&self) -> AccessOrder {
        match self.order.load(Relaxed) {
            order if order == AccessOrder::Random as u8 => AccessOrder::Random,
            order if order == AccessOrder::Sequential as u8 => AccessOrder::Sequential,
            _ => AccessOrder::Any,
        }
    }

    /// Counts a fault that did not find its page. Returns the new count.
    fn count_miss(&self, has_neighbour: bool) -> u32 {
        let misses = self.misses.load(Relaxed);
        let counted = match has_neighbour {
            true => misses.saturating_sub(1),
            false => misses.saturating_add(1).min(10 * MANY_MISSES),
        };
        self.misses.store(counted, Relaxed);
        counted
    }
}

impl<P: Platform> File<P> {
    /// Reads bytes at `offset` like [`Mapping::read_at`], and reads pages ahead. Read calls should use this
    /// function, so that the open file knows their order.
    ///
    /// # Errors
    ///
    /// Fails like [`Mapping::read_at`].
    ///
    /// # Locks
    ///
    /// The locks of [`Mapping::fill`], for pages that are not in the cache.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::*, platform::Platform};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// struct Disk;
    /// impl<P: Platform> Pager<P> for Disk {
    ///     fn read(&self, mut request: ReadRequest<P>) {
    ///         while let Some((index, frame)) = request.next_page() {
    ///             request.platform().zero_frame(frame);
    ///             request.complete(index, Ok(()));
    ///         }
    ///     }
    ///     fn read_pages(&self) -> u64 {
    ///         32
    ///     }
    /// }
    /// let mapping = Mapping::new(&engine, Disk, 64 * PAGE_SIZE, false).unwrap();
    /// let file = File::new(&mapping, FileAccess::READ, "/it").unwrap();
    /// let mut page = [0; PAGE_SIZE as usize];
    /// file.read_at(0, &mut page).unwrap();
    /// assert_eq!(mapping.present_pages(), 4);
    /// // The next read continues the sequence, so it starts the next window.
    /// file.read_at(PAGE_SIZE, &mut page).unwrap();
    /// assert_eq!(mapping.present_pages(), 12);
    /// // A read elsewhere gets only its own page.
    /// file.read_at(40 * PAGE_SIZE, &mut page).unwrap();
    /// assert_eq!(mapping.present_pages(), 13);
    /// ```
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FillError> {
        let mapping = self.mapping();
        if mapping.max_window() == 0 {
            return mapping.read_at(offset, out);
        }
        let page = |index, wanted| mapping.retry_when_short(|| self.page_ahead(index, wanted));
        let read = mapping.read_pages_at(offset, out, page)?;
        let position = offset.saturating_add(read as u64);
        // The word is not written again by tasks that read one place repeatedly.
        if self.readahead.position.load(Relaxed) != position {
            self.readahead.position.store(position, Relaxed);
        }
        Ok(read)
    }

    /// Announces the order of read calls.
    pub(super) fn set_read_order(&self, order: AccessOrder) {
        self.readahead.order.store(order as u8, Relaxed);
    }

    /// Returns the maximum size of a window of a read call or of a fault, in pages; 0 without readahead.
    fn max_window(&self) -> u64 {
        let max = self.mapping().max_window();
        if self.readahead.order() == AccessOrder::Sequential { 2 * max } else { max }
    }

    /// Returns a page for a read call that wants `wanted` pages from there on.
    fn page_ahead(&self, index: PageIndex, wanted: u64) -> Result<CachedPage<'_, P>, FillError> {
        let (mapping, wanted) = (self.mapping(), wanted.clamp(1, AT_ONCE));
        let mut rounds = Rounds::new();
        loop {
            let found = mapping.get_page(index);
            // A page that is being read is not found, but may have the mark.
            let is_marked = found.as_ref().is_none_or(CachedPage::is_marked) && mapping.take_mark(index);
            if is_marked && self.readahead.order() != AccessOrder::Random {
                self.read_next_window(index, wanted);
            }
            if let Some(page) = found {
                return Ok(page);
            }
            mapping.fill_in(index, 0, Some(&self.readahead), &|| self.window_of_read(index, wanted))?;
            rounds.again::<P>()?;
        }
    }

    /// Returns the window of a read call that does not find page `index`, and stores it.
    fn window_of_read(&self, index: PageIndex, wanted: u64) -> Window {
        let (mapping, state) = (self.mapping(), &self.readahead);
        if state.order() == AccessOrder::Random {
            return Window::unmarked(index, wanted);
        }
        let position = PageIndex::of_byte(state.position.load(Relaxed));
        let before = |most| mapping.cached_before(index, most);
        let window = state.window().of_read(index, wanted, position, self.max_window(), before);
        state.set_window(window);
        window
    }

    /// Starts the reads of the next window. The caller has taken the mark of page `index`, and wants `wanted`
    /// pages from there on.
    fn read_next_window(&self, index: PageIndex, wanted: u64) {
        let (mapping, state) = (self.mapping(), &self.readahead);
        // A program that uses its windows does not access the file at random.
        if state.misses.load(Relaxed) > 0 {
            state.misses.store(state.misses.load(Relaxed) / 2, Relaxed);
        }
        let absent = |pages| mapping.first_absent(pages);
        let max = self.max_window();
        if max == 0 {
            return;
        }
        if let Some(window) = state.window().at_mark(index, wanted, max, absent) {
            state.set_window(window);
            let mut mark = Mark::of(window);
            mapping.read_ahead(window.pages_before(mapping.end()), &mut mark);
            state.correct(window, &mark);
        }
    }

    /// Brings the page of a fault into the cache like [`Mapping::fill_wanted`], and reads pages ahead. If the
    /// fault has found the page with a mark, only reads ahead. If the fault lacks the permission to change
    /// the page, only asks the pager.
    ///
    /// # Errors
    ///
    /// Fails like [`Mapping::fill`].
    ///
    /// # Locks
    ///
    /// The locks of `fill`. The caller holds no lock.
    pub(crate) fn fill_wanted(&self, wanted: Wanted) -> Result<(), FillError> {
        let (mapping, index) = (self.mapping(), wanted.index);
        match wanted.need {
            Need::Permission => return mapping.ask_to_write(PageRange::one(index)),
            Need::Page if mapping.max_window() == 0 => return mapping.fill_wanted(wanted),
            Need::Page | Need::NextWindow => {}
        }
        // A page that is still being read may have the mark, too.
        if mapping.take_mark(index) && wanted.order != AccessOrder::Random {
            self.read_next_window(index, 1);
        }
        if wanted.need == Need::NextWindow {
            return Ok(());
        }
        mapping.fill_in(index, wanted.policy, Some(&self.readahead), &|| self.window_of_fault(wanted))
    }

    /// Returns the window of a fault that does not find its page, and stores it.
    fn window_of_fault(&self, wanted: Wanted) -> Window {
        let (mapping, state, index) = (self.mapping(), &self.readahead, wanted.index);
        let misses = match wanted.order {
            AccessOrder::Any => state.count_miss(mapping.has_neighbour(index)),
            AccessOrder::Random | AccessOrder::Sequential => 0,
        };
        let window = state.window().of_fault(index, wanted.order, self.max_window(), misses);
        state.set_window(window);
        window
    }
}

impl<P: Platform> Mapping<P> {
    /// Sets the maximum number of pages of a window of readahead. 0 turns readahead off: a miss then reads
    /// the aligned block of [`read_pages`](super::Pager::read_pages) pages around the page that is needed.
    ///
    /// The initial value is [`Config::readahead`](crate::engine::Config::readahead) if the pager wants more
    /// than one page per request, and 0 otherwise. Values above 8192 count as 8192. Files without a backing
    /// store have no readahead. [`FileAdvice::Sequential`](super::FileAdvice::Sequential) doubles the maximum
    /// for an open file.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{Mapping, Zeroes}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::new(&engine, Zeroes, PAGE_SIZE, false).unwrap();
    /// assert_eq!(file.readahead(), 0);
    /// file.set_readahead(64);
    /// assert_eq!(file.readahead(), 64);
    /// ```
    pub fn set_readahead(&self, pages: u32) {
        // Relaxed, here and below: a concurrent miss may use either value.
        self.readahead.store(pages.min(LARGEST), Relaxed);
    }

    /// Returns the maximum number of pages of a window of [readahead](Self::set_readahead).
    pub fn readahead(&self) -> u32 {
        self.readahead.load(Relaxed)
    }

    /// Returns the maximum number of pages of a window; 0 if the file has no readahead.
    fn max_window(&self) -> u64 {
        if self.has_store() && self.waits_for_pager() { self.readahead().into() } else { 0 }
    }

    /// Starts reads of the first absent pages of `pages`, at most as many as one advice may read, and does
    /// not wait. For shared memory, these are the pages that are swapped out. Does nothing for a direct file,
    /// which has no cache.
    pub(crate) fn will_need(&self, pages: PageRange) {
        let most = AT_ONCE.max(self.max_window());
        let pages = PageRange::new(pages.start, pages.end.min(pages.start.saturating_add(most)));
        if self.has_store() {
            self.read_ahead(pages, &mut Mark::of(Window::default()));
        } else {
            self.read_swapped(pages);
        }
    }

    /// Returns the number of consecutive pages directly before `index` that are in the cache or are being
    /// read, up to `most`.
    fn cached_before(&self, index: PageIndex, most: u64) -> u64 {
        let first = index.get().saturating_sub(most);
        (first..index.get()).rev().take_while(|page| !self.is_vacant(PageIndex::new(*page))).count() as u64
    }

    /// Returns the first page of `pages` that is neither in the cache nor being read.
    fn first_absent(&self, pages: PageRange) -> Option<PageIndex> {
        pages.into_iter().find(|index| self.is_vacant(*index))
    }

    /// Returns true if the page before or after `index` is in the cache or is being read.
    fn has_neighbour(&self, index: PageIndex) -> bool {
        let before = index.get().checked_sub(1).map(PageIndex::new);
        before.is_some_and(|before| !self.is_vacant(before)) || !self.is_vacant(index + 1)
    }
}
