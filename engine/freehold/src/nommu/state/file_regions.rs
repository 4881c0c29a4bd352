//! The regions of one file, as the file knows them.
#![expect(unsafe_code, reason = "regions are linked by pointers")]

use super::locked::{Locked, Read, Write};
use crate::{error::FillError, platform::Platform};
use core::{mem::offset_of, ptr::NonNull};
use freehold_range::{IntervalAdapter, IntervalLink, IntervalTree};
use freehold_sync::Rank;
use freehold_vmspace::PageRange;

/// What a file's tree has of a region: a field of it.
pub(crate) struct RegionRecord {
    link: IntervalLink,
    /// The region's frames are the file's own. Fixed.
    is_shared: bool,
}

impl RegionRecord {
    pub fn new(is_shared: bool) -> Self {
        RegionRecord { link: IntervalLink::new(), is_shared }
    }
}

/// Finds a region's place among those of its file.
pub(crate) struct ByPage;

// SAFETY: the link lies at a fixed offset inside the record, which stays where it is; nothing but trees of
// this adapter uses it.
unsafe impl IntervalAdapter for ByPage {
    type Object = RegionRecord;

    fn link(object: NonNull<RegionRecord>) -> NonNull<IntervalLink> {
        // SAFETY: the offset of a field inside the object.
        unsafe { object.byte_add(offset_of!(RegionRecord, link)).cast() }
    }

    fn object(link: NonNull<IntervalLink>) -> NonNull<RegionRecord> {
        // SAFETY: every link in a tree of this adapter is that field of a record.
        unsafe { link.byte_sub(offset_of!(RegionRecord, link)).cast() }
    }
}

/// The regions of one file that others have to know of, by its pages: copies that can be shared, and pages
/// that must not be lost. It stands where VMAs stand with an MMU, and so does its lock, which has the rank
/// and the name of theirs:
///
/// | i_mmap lock held | gives |
/// | --- | --- |
/// | for reading | the regions in the tree stay there, and what they are |
/// | for writing | the right to link and unlink |
pub(crate) struct FileRegions<P: Platform> {
    tree: Locked<P, IntervalTree<ByPage>>,
}

impl<P: Platform> FileRegions<P> {
    pub fn new() -> Self {
        FileRegions { tree: Locked::new(Rank::IMmap, IntervalTree::new()) }
    }

    /// Whether the file may lose bytes of these pages, of which there is at least one: not while one of them
    /// is mapped shared, since nothing would stop the program from using it.
    ///
    /// The caller holds the file's invalidate lock for writing, so that nobody comes to have one afterwards.
    ///
    /// # Errors
    ///
    /// It may not.
    ///
    /// # Locks
    ///
    /// The i_mmap lock for reading: nothing in the tree is changed.
    pub fn may_lose(&self, pages: PageRange) -> Result<(), FillError> {
        if pages.is_empty() {
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
