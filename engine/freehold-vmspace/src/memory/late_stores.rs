//! Pages of files that become dirty after the entry through which they were stored to.
//!
//! Write-back finds the dirty pages of a file by marks in the file's page cache. A fault that makes an entry
//! writable sets the mark, but this crate does not know files. It finds stores later, for example after the
//! flush that ends an unmap. The mark is usually still set then, and the frame is usually still dirty. If a
//! write-back has cleaned the page in the meantime, the file is counted here, and the next write-back of the
//! file looks at the frames of all its cached pages (`change/write_back.rs` of `freehold`).
//!
//! Several files may share a counter. A file then looks at its frames without need. The tests
//! `files::cached_translations` of `freehold` fail if a late store is not counted.

use super::Memory;
use crate::{RssKind, frame::Frame, platform::Platform};
use freehold_sync::publish::EventCounter;

/// Number of counters.
const COUNTERS: usize = 64;

/// For each file, the number of times that one of its pages became dirty late. Files share the counters.
pub(super) struct LateStores([EventCounter; COUNTERS]);

impl LateStores {
    pub(super) fn new() -> Self {
        LateStores(core::array::from_fn(|_| EventCounter::new()))
    }

    /// Returns the counter of the file whose pages have this rmap word.
    fn of(&self, rmap: usize) -> &EventCounter {
        // Mixes the bits of an address, the low ones of which are constant.
        &self.0[((rmap as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % COUNTERS]
    }
}

#[doc(hidden)]
impl<P: Platform> Memory<P> {
    /// Marks a page as dirty that the caller does not mark in the cache of its file. The caller has a
    /// reference to the frame, or holds the lock of a table whose entry maps it.
    #[inline]
    pub fn set_dirty_late(&self, frame: &Frame) {
        if frame.make_dirty() && frame.kind() == RssKind::File {
            self.count_late_store(frame);
        }
    }

    #[cold]
    fn count_late_store(&self, frame: &Frame) {
        // A task that sees the count finds the frame dirty.
        self.late_stores.of(frame.rmap().0).record();
    }

    /// Returns a number that changes whenever a page of this file becomes dirty late. `rmap` is the rmap word
    /// of the file's pages.
    pub fn late_stores(&self, rmap: usize) -> u64 {
        self.late_stores.of(rmap).count()
    }
}
