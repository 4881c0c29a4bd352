//! Advice of programs about an open file: posix_fadvise and readahead(2).
//!
//! Three kinds of advice change the order of access that readahead expects from read calls of this open file
//! (`file/readahead/mod.rs`). As on Linux, a fault obeys the advice of its mapping (madvise) instead; but the
//! window of a fault is also twice as large after `Sequential`. The other advice takes effect at once. All
//! advice is a hint, so nothing here fails: the embedder checks the descriptor and the numbers of a call.
//!
//! The file is in this folder because `DontNeed` starts writes of pages and drops pages.
//! `tests/files/readahead.rs` has the tests, and the program `advice.c` of the kernel's tests checks the
//! errors of the calls.

use crate::{
    PAGE_SIZE,
    file::{AccessOrder, File},
    platform::Platform,
};
use core::ops::Range;
use freehold_vmspace::{PageIndex, PageRange};

/// Advice of posix_fadvise, with Linux's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileAdvice {
    /// POSIX_FADV_NORMAL: no particular order of access.
    Normal = 0,
    /// POSIX_FADV_RANDOM: random order of access. Read calls read only the pages that they need.
    Random = 1,
    /// POSIX_FADV_SEQUENTIAL: ascending order of access. Windows of readahead grow to twice the maximum.
    Sequential = 2,
    /// POSIX_FADV_WILLNEED: the range will be read soon. Starts reads of its first pages, like
    /// [`File::readahead`].
    WillNeed = 3,
    /// POSIX_FADV_DONTNEED: the range is not needed soon. Starts writes of its dirty pages, and then drops
    /// the clean pages that lie in the range as a whole and are not in use.
    DontNeed = 4,
    /// POSIX_FADV_NOREUSE: the range will be read only once. Has no effect.
    NoReuse = 5,
}

impl FileAdvice {
    /// Returns the advice with this number, or `None` if the number is unknown.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::file::FileAdvice;
    /// assert_eq!(FileAdvice::from_raw(4), Some(FileAdvice::DontNeed));
    /// assert_eq!(FileAdvice::from_raw(6), None);
    /// ```
    pub fn from_raw(number: u32) -> Option<Self> {
        use FileAdvice::*;
        [Normal, Random, Sequential, WillNeed, DontNeed, NoReuse].get(number as usize).copied()
    }
}

impl<P: Platform> File<P> {
    /// Applies an advice to the bytes of this range. `Normal`, `Random` and `Sequential` apply to all read
    /// calls of this open file, whatever the range. Has no effect on shared memory and on direct files.
    ///
    /// # Locks
    ///
    /// For `WillNeed` those of [`readahead`](Self::readahead). For `DontNeed` those of
    /// [`Mapping::write_back`](super::super::Mapping::write_back), without its wait for the writes, and of
    /// [`drop_clean`](Self::drop_clean).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, FileAdvice, Mapping, Zeroes}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let mapping = Mapping::new(&engine, Zeroes, 4 * PAGE_SIZE, false).unwrap();
    /// let file = File::new(&mapping, FileAccess::READ_WRITE, "/it").unwrap();
    /// mapping.write_at(0, &[1; 3 * PAGE_SIZE as usize]).unwrap();
    /// // Only page 1 lies in the range as a whole.
    /// file.advise(FileAdvice::DontNeed, 8..2 * PAGE_SIZE + 8);
    /// assert_eq!(mapping.present_pages(), 2);
    /// ```
    pub fn advise(&self, advice: FileAdvice, bytes: Range<u64>) {
        match advice {
            FileAdvice::Normal => self.set_read_order(AccessOrder::Any),
            FileAdvice::Random => self.set_read_order(AccessOrder::Random),
            FileAdvice::Sequential => self.set_read_order(AccessOrder::Sequential),
            FileAdvice::WillNeed => self.readahead(bytes),
            FileAdvice::DontNeed => self.forget(bytes),
            FileAdvice::NoReuse => {}
        }
    }

    /// Starts reads of the pages that hold these bytes and are absent: readahead(2). Reads at most 512 pages,
    /// or as many as a window of readahead has, from the start of the range on. Does not wait, and does not
    /// report failures.
    ///
    /// # Locks
    ///
    /// The invalidate lock for reading, killably, which is released before each call of the pager.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping, Zeroes}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let mapping = Mapping::new(&engine, Zeroes, 8 * PAGE_SIZE, false).unwrap();
    /// let file = File::new(&mapping, FileAccess::READ, "/it").unwrap();
    /// file.readahead(PAGE_SIZE..3 * PAGE_SIZE + 1);
    /// assert_eq!(mapping.present_pages(), 3);
    /// ```
    pub fn readahead(&self, bytes: Range<u64>) {
        self.mapping().will_need(touched(&bytes));
    }

    /// Starts writes of the dirty pages of a range, and drops the clean pages that lie in the range as a
    /// whole. The last page of the file ends at the end of the file.
    fn forget(&self, bytes: Range<u64>) {
        let mapping = self.mapping();
        if !mapping.has_store() {
            return;
        }
        // A fatal signal ends the call early: the other pages stay dirty.
        let _ = mapping.start_some_writes(touched(&bytes), u64::MAX);
        let end = match bytes.end >= mapping.size() {
            true => PageIndex::END,
            false => PageIndex::of_byte(bytes.end),
        };
        self.drop_clean(PageRange::new(PageIndex::new(bytes.start.div_ceil(PAGE_SIZE)), end));
    }
}

/// Returns the pages that hold any of these bytes.
fn touched(bytes: &Range<u64>) -> PageRange {
    PageRange::new(PageIndex::of_byte(bytes.start), PageIndex::new(bytes.end.div_ceil(PAGE_SIZE)))
}
