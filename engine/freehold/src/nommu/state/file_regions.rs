//! Without an MMU, the mappings of a file are found through *regions*: runs of contiguous frames (see
//! [`nommu`](crate::nommu)). This file has the part of a region that its file uses, and the tree of these
//! parts in each file.
//!
//! This file is a layer below `file/`, because a file checks its tree before it loses pages.
//! `nommu/region.rs` owns the region, and links it into the tree and unlinks it. No function of this file
//! creates or frees a region. `tests/nommu/truncate.rs` tests `may_lose`.
#![expect(unsafe_code, reason = "regions are linked by pointers")]

use super::locked::{Locked, Read, Write};
use crate::{error::FillError, platform::Platform};
use core::{mem::offset_of, ptr::NonNull};
use freehold_range::{IntervalAdapter, IntervalLink, IntervalTree};
use freehold_sync::Rank;
use freehold_vmspace::PageRange;

/// The part of a region that the tree of its file uses. A field of the region.
pub(crate) struct RegionRecord {
    /// Link in the tree of the file's regions. Guarded by the file's i_mmap lock.
    link: IntervalLink,
    /// True if the region's frames are the file's own. Constant.
    is_shared: bool,
}

impl RegionRecord {
    pub fn new(is_shared: bool) -> Self {
        RegionRecord { link: IntervalLink::new(), is_shared }
    }
}

/// An adapter that finds the link of a region in the tree of its file.
pub(crate) struct ByPage;

// SAFETY: the link lies at a fixed offset inside the record, which stays at its address. Only trees of this
// adapter use the link.
unsafe impl IntervalAdapter for ByPage {
    type Object = RegionRecord;

    fn link(object: NonNull<RegionRecord>) -> NonNull<IntervalLink> {
        // SAFETY: `link` is a field of the object, so its offset lies inside the object.
        unsafe { object.byte_add(offset_of!(RegionRecord, link)).cast() }
    }

    fn object(link: NonNull<IntervalLink>) -> NonNull<RegionRecord> {
        // SAFETY: every link in a tree of this adapter is the field `link` of a record.
        unsafe { link.byte_sub(offset_of!(RegionRecord, link)).cast() }
    }
}

/// The regions of one file that must be found through the file, ordered by page: copies that can be shared,
/// and pages that the file must not lose. With an MMU, each file has a tree of VMAs instead. The lock over
/// the tree has the rank and the name of the i_mmap lock:
///
/// | i_mmap lock held | right |
/// | --- | --- |
/// | for reading | the regions in the tree stay linked and keep their kind |
/// | for writing | the holder may link and unlink regions |
pub(crate) struct FileRegions<P: Platform> {
    tree: Locked<P, IntervalTree<ByPage>>,
}

impl<P: Platform> FileRegions<P> {
    pub fn new() -> Self {
        FileRegions { tree: Locked::new(Rank::IMmap, IntervalTree::new()) }
    }

    /// Checks that the file may lose bytes of these pages. A file must not lose a page that is mapped shared,
    /// because a program could still use the page.
    ///
    /// The caller holds the file's invalidate lock for writing, so that no task can map one of the pages
    /// after the check.
    ///
    /// # Errors
    ///
    /// Fails with [`FillError::Busy`] if one of the pages is mapped shared.
    ///
    /// # Locks
    ///
    /// The i_mmap lock for reading, because the tree is not changed.
    pub fn may_lose(&self, pages: PageRange) -> Result<(), FillError> {
        if pages.is_empty() || !cfg!(feature = "nommu") {
            return Ok(());
        }
        // SAFETY: linked regions are live, and stay linked while the lock is held.
        let is_shared = |record: NonNull<RegionRecord>| unsafe { record.as_ref() }.is_shared;
        let tree = self.read();
        if tree.overlapping(pages.start.get(), pages.end.get() - 1).any(is_shared) {
            Err(FillError::Busy)
        } else {
            Ok(())
        }
    }

    /// Takes the i_mmap lock for reading.
    pub(crate) fn read(&self) -> Read<'_, P, IntervalTree<ByPage>> {
        self.tree.read()
    }

    /// Takes the i_mmap lock for writing.
    pub(crate) fn edit(&self) -> Write<'_, P, IntervalTree<ByPage>> {
        self.tree.write()
    }
}
