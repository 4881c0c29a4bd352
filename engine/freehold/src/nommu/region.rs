//! One region: frames that follow each other, what they hold, and how many mappings use them.
//!
//! | region | in the file's tree | users | the file may lose its pages |
//! | --- | --- | --- | --- |
//! | *single*: anonymous memory, a copy that is written, pages in place that are only read | no | one | yes: the frames stay until the mapping goes |
//! | *text*: a copy that is only read | yes | all that map some of its pages so | yes: it is a copy |
//! | *shared*: a file's own pages | yes | one; the frames are what is shared | no: ETXTBSY |
//!
//! | field | written under | read under |
//! | --- | --- | --- |
//! | `by_address`, `users` | the regions' lock W | `by_address`: the same lock R; `users`: W |
//! | `by_page` | the file's i_mmap lock W, inside the regions' lock W | i_mmap R |
//! | `run` | regions W and the space's lock W, by the only user of a single region | regions R, or the space's lock R of a user |
//! | `source`, `regions` | never | freely |
#![expect(unsafe_code, reason = "regions are linked by pointers, and go with their last user")]

use super::{regions::Regions, state::file_regions::RegionRecord};
use crate::{counted::Counted, error::NoMemory, file::Mapping, platform::Platform};
use allocator_api2::boxed::Box;
use core::{marker::PhantomData, mem::offset_of, ops::Deref, ptr::NonNull};
use freehold_range::{IntervalAdapter, IntervalLink, IntervalTree};
use freehold_sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold_vmspace::{PageIndex, PageRange, Run};

/// What the frames of a region hold.
pub(crate) enum Source<P: Platform> {
    /// What one mapping has for itself: anonymous memory, a copy to be written, or pages of a file that it
    /// only reads.
    Single,
    /// A copy of a file's pages, used by all mappings that only read them.
    Text(FilePages<P>),
    /// A file's own pages, for one mapping by which it may be written: they must not be lost.
    Shared(FilePages<P>),
}

/// Pages of a file, from `first` on, as many as the region has frames.
pub(crate) struct FilePages<P: Platform> {
    pub mapping: Counted<Mapping<P>>,
    pub first: PageIndex,
}

pub(crate) struct Region<P: Platform> {
    /// Place among all regions; guarded by their lock.
    by_address: IntervalLink,
    /// Place among the regions of the file, unless `Single`; guarded by the file's i_mmap lock.
    by_page: RegionRecord,
    /// Guarded by the regions' lock.
    users: AtomicU64,
    /// Changed by the only user of a `Single` region, with the regions' lock held for writing.
    pub run: Run<P>,
    /// Fixed.
    pub source: Source<P>,
    /// Fixed. Last: the frames go back before.
    regions: Counted<Regions<P>>,
}

impl<P: Platform> Region<P> {
    /// A region with one user that is in no tree yet.
    pub fn alone(
        regions: &Counted<Regions<P>>,
        run: Run<P>,
        source: Source<P>,
    ) -> Result<RegionUse<P>, NoMemory> {
        let region = Box::try_new(Region {
            by_address: IntervalLink::new(),
            by_page: RegionRecord::new(matches!(source, Source::Shared(_))),
            users: AtomicU64::new(1),
            run,
            source,
            regions: regions.clone(),
        })?;
        Ok(RegionUse { region: NonNull::from(Box::leak(region)) })
    }

    /// The file and its pages in this region, if it is in the file's tree.
    pub fn file_pages(&self) -> Option<(&Counted<Mapping<P>>, PageRange)> {
        match &self.source {
            Source::Single => None,
            Source::Text(pages) | Source::Shared(pages) => {
                Some((&pages.mapping, PageRange::at(pages.first, self.run.pages())))
            }
        }
    }

    /// Returns the region with this record.
    ///
    /// # Safety
    ///
    /// The record is one that [`RegionUse::link`] put into the tree of a file.
    pub unsafe fn of_record(record: NonNull<RegionRecord>) -> NonNull<Self> {
        // SAFETY: the caller's promise: it is that field of a region.
        unsafe { record.byte_sub(offset_of!(Region<P>, by_page)).cast() }
    }

    /// Returns true if it is governed by these regions' lock.
    pub fn is_of(&self, regions: &Regions<P>) -> bool {
        core::ptr::eq(&*self.regions, regions)
    }
}

/// One mapping's share of a region. When the last goes the region goes, and gives its frames back.
///
/// # Invariants
///
/// `region` is live, and this share is counted in its `users`.
pub(crate) struct RegionUse<P: Platform> {
    region: NonNull<Region<P>>,
}

// SAFETY: a region may be used and freed by any thread; its links and its count are guarded by locks.
unsafe impl<P: Platform> Send for RegionUse<P> {}
// SAFETY: as above.
unsafe impl<P: Platform> Sync for RegionUse<P> {}

impl<P: Platform> RegionUse<P> {
    /// Returns what the file's tree has of the region.
    fn record(&self) -> NonNull<RegionRecord> {
        // SAFETY: the offset of a field inside the region, which is live.
        unsafe { self.region.byte_add(offset_of!(Region<P>, by_page)).cast() }
    }

    /// Enters the region into the trees.
    ///
    /// # Locks
    ///
    /// The lock of all regions is held for writing by the caller; takes the file's i_mmap lock for writing.
    pub fn link(&self, all: &mut IntervalTree<ByAddress<P>>) {
        let frames = self.run.numbers();
        if frames.is_empty() {
            return;
        }
        // SAFETY: it stays where it is until its last user has unlinked it.
        unsafe { all.insert(self.region, frames.start, frames.end - 1) };
        if let Some((mapping, pages)) = self.file_pages() {
            let mut of_file = mapping.regions.edit();
            // SAFETY: as above.
            unsafe { of_file.insert(self.record(), pages.start.get(), pages.end.get() - 1) };
        }
    }

    /// Another share of a region that is in the trees.
    ///
    /// # Safety
    ///
    /// The region is linked, and the caller holds the lock of all regions for writing.
    pub unsafe fn another(region: NonNull<Region<P>>) -> Self {
        // SAFETY: a linked region has users, and goes only under the lock that the caller holds.
        let users = unsafe { &region.as_ref().users };
        // Relaxed, here and below: ordered by the lock.
        users.store(users.load(Relaxed) + 1, Relaxed);
        RegionUse { region }
    }

    /// Changes the frames of a region that nobody else uses; it is in the tree afterwards unless it has none.
    ///
    /// # Locks
    ///
    /// The lock of all regions for writing.
    pub fn change<R>(&mut self, f: impl FnOnce(&mut Run<P>) -> R) -> R {
        assert!(matches!(self.source, Source::Single), "a region that others may use does not change");
        let regions = self.regions.clone();
        let mut all = regions.edit();
        // SAFETY: the region is live, and in this tree if in any.
        if unsafe { all.contains(self.region) } {
            // SAFETY: it was just seen to be there.
            unsafe { all.remove(self.region) };
        }
        // SAFETY: this is the only share, nobody comes through a tree any more, and the region is in no
        // file's.
        let result = f(unsafe { &mut self.region.as_mut().run });
        self.link(&mut all);
        result
    }
}

impl<P: Platform> Deref for RegionUse<P> {
    type Target = Region<P>;
    fn deref(&self) -> &Region<P> {
        // SAFETY: the type's invariant; it changes only through `&mut self` of the only share.
        unsafe { self.region.as_ref() }
    }
}

impl<P: Platform> Drop for RegionUse<P> {
    /// # Locks
    ///
    /// The lock of all regions for writing, and inside it the file's i_mmap lock for writing. Frames and
    /// files are let go of after them.
    fn drop(&mut self) {
        let regions = self.regions.clone();
        let mut all = regions.edit();
        let left = self.users.load(Relaxed) - 1;
        self.users.store(left, Relaxed);
        if left > 0 {
            return;
        }
        // SAFETY: the region is live, and in this tree if in any.
        if unsafe { all.contains(self.region) } {
            if let Some((mapping, _)) = self.file_pages() {
                let mut of_file = mapping.regions.edit();
                // SAFETY: `link` enters a region into both trees under one hold of the outer lock.
                unsafe { of_file.remove(self.record()) };
            }
            // SAFETY: it was just seen to be there.
            unsafe { all.remove(self.region) };
        }
        drop(all);
        // SAFETY: this was the last share and no tree leads here; the box was leaked by `alone`.
        drop(unsafe { Box::from_raw(self.region.as_ptr()) });
    }
}

/// Finds a region's place among all.
pub(crate) struct ByAddress<P>(PhantomData<fn() -> P>);

// SAFETY: the link lies at a fixed offset inside the region, which stays where it is; nothing but trees of
// this adapter uses it.
unsafe impl<P: Platform> IntervalAdapter for ByAddress<P> {
    type Object = Region<P>;

    fn link(object: NonNull<Region<P>>) -> NonNull<IntervalLink> {
        // SAFETY: the offset of a field inside the object.
        unsafe { object.byte_add(offset_of!(Region<P>, by_address)).cast() }
    }

    fn object(link: NonNull<IntervalLink>) -> NonNull<Region<P>> {
        // SAFETY: every link in a tree of this adapter is that field of a region.
        unsafe { link.byte_sub(offset_of!(Region<P>, by_address)).cast() }
    }
}
