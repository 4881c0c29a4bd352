//! The contents of files that came with the archive: the engine reads them page by page on demand from the
//! archive, which stays in memory. `files/tree.rs` makes such files.
//!
//! [`Archived`] is the engine's `Pager` for one file. The archive itself is never written. Changed pages stay
//! in the engine's page cache. Pages that were truncated or punched out have a bit each, because they must read
//! as zeroes later. The bits are allocated with the file, so a program that makes holes uses no memory. Every
//! program of the tests is loaded through [`Archived`].

use crate::platform::Machine;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::error::NoMemory;
use freehold::file::Mapping;
use freehold::file::{IoError, Pager};
use freehold::platform::{Pfn, Platform};
use freehold::{PAGE_SIZE, PageIndex, PageRange};

/// The pager of a file from the archive.
pub struct Archived {
    contents: &'static [u8],
    /// A bit for each page of the archived contents: the page was truncated or punched out. Bits are only set.
    /// Relaxed: the engine reads a page that was discarded only after the discard has returned.
    gone: Vec<AtomicU64>,
}

impl Archived {
    /// Makes the pager of a file with these contents.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub fn new(contents: &'static [u8]) -> Result<Self, NoMemory> {
        let words = contents.len().div_ceil(PAGE_SIZE as usize * 64);
        let mut gone = Vec::new();
        gone.try_reserve_exact(words).map_err(|_| NoMemory)?;
        gone.extend((0..words).map(|_| AtomicU64::new(0)));
        Ok(Archived { contents, gone })
    }

    /// Returns true if the page was truncated or punched out.
    fn is_gone(&self, index: u64) -> bool {
        self.gone.get((index / 64) as usize).is_some_and(|word| word.load(Relaxed) >> (index % 64) & 1 != 0)
    }
}

impl Pager<Machine> for Archived {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let start = (index.get().saturating_mul(PAGE_SIZE) as usize).min(self.contents.len());
        let is_gone = self.is_gone(index.get());
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
        for index in pages.start.get()..pages.end.get().min(last) {
            self.gone[(index / 64) as usize].fetch_or(1 << (index % 64), Relaxed);
        }
    }
}

/// Returns the bytes of the pages that a file has in memory.
pub fn allocated(mapping: &Mapping<Machine>) -> u64 {
    mapping.present_pages() * mapping.page_bytes()
}
