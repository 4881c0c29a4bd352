//! The contents of files that came with the archive: the engine reads them page by page on demand from the
//! archive, which stays in memory. `files/tree.rs` makes such files.
//!
//! [`Archived`] is the engine's `Pager` for one file. The archive itself is never written. Changed pages stay
//! in the engine's page cache. Pages that were truncated or punched out are listed, because they must read as
//! zeroes later. A spin lock guards the list. Every program of the tests is loaded through [`Archived`].

use crate::arch::lock::SpinLock;
use crate::platform::Machine;
use alloc::vec::Vec;
use core::ops::Range;
use freehold::file::Mapping;
use freehold::file::{IoError, Pager};
use freehold::platform::{Pfn, Platform};
use freehold::{PAGE_SIZE, PageIndex, PageRange};

/// The pager of a file from the archive.
pub struct Archived {
    contents: &'static [u8],
    /// Ranges of page indices that were truncated or punched out.
    gone: SpinLock<Vec<Range<u64>>>,
}

impl Archived {
    pub fn new(contents: &'static [u8]) -> Self {
        Archived { contents, gone: SpinLock::new(Vec::new()) }
    }
}

impl Pager<Machine> for Archived {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let start = (index.get().saturating_mul(PAGE_SIZE) as usize).min(self.contents.len());
        let is_gone = self.gone.lock().iter().any(|gone| gone.contains(&index.get()));
        let part = &self.contents[start..self.contents.len().min(start + PAGE_SIZE as usize)];
        if is_gone || part.len() < PAGE_SIZE as usize {
            platform.zero_frame(frame);
        }
        if !is_gone {
            platform.write_frame(frame, 0, part);
        }
        Ok(())
    }

    fn discard(&self, pages: PageRange) {
        let last = (self.contents.len() as u64).div_ceil(PAGE_SIZE);
        let (start, end) = (pages.start.get(), pages.end.get().min(last));
        if start < end {
            self.gone.lock().push(start..end);
        }
    }
}

/// Returns the bytes of the pages that a file has in memory.
pub fn allocated(mapping: &Mapping<Machine>) -> u64 {
    mapping.present_pages() * mapping.page_bytes()
}
