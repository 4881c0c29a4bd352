//! A region: contiguous frames, the kind of their contents, and the number of mappings that use them. The
//! head of `mod.rs` explains regions and the order of their locks.
//!
//! | region | in the file's tree | users | the file may lose its pages |
//! | --- | --- | --- | --- |
//! | *single*: anonymous memory, a writable copy, or read-only pages in place | no | one | yes: the frames stay until they are unmapped |
//! | *text*: a read-only copy | yes | all read-only mappings of some of its pages | yes: the region is a copy |
//! | *shared*: a file's own pages | yes | one; mappings share the frames, not the region | no: ETXTBSY |
//!
//! | field | written under | read under |
//! | --- | --- | --- |
//! | `by_address`, `users` | the regions' lock W | `by_address`: the same lock R; `users`: W |
//! | `by_page` | the file's i_mmap lock W, inside the regions' lock W | i_mmap R |
//! | `run` | regions W and the space's lock W, by the only user of a single region | regions R, or the space's lock R of a user |
//! | `source`, `regions` | never | without a lock |
//!
//! `regions.rs` has the set of all regions. For a new mapping, `regions.rs` reuses a linked region
//! ([`RegionUse::another`]), or creates a region ([`Region::alone`]) and links it ([`RegionUse::link`]).
//! `munmap.rs` cuts a single region ([`RegionUse::change`]). `state/file_regions.rs` has the part of a region
//! that a file uses.
//!
//! A mapping holds a `RegionUse`. Dropping the last `RegionUse` of a region takes the regions' lock, destroys
//! the region and frees its frames, so a mapping is dropped only after the lock of its space is released
//! (`area.rs`). A linked region keeps its address and its keys: `change` unlinks it before it changes `run`.
//!
//! `nommu` (`engine/freehold/tests`) tests calls, and `nommu` (`shuttle_engine`) tests concurrent calls.
#![expect(unsafe_code, reason = "regions are linked by pointers and freed by their last user")]

use super::{regions::Regions, state::file_regions::RegionRecord};
use crate::{counted::Counted, error::NoMemory, file::Mapping, platform::Platform};
use allocator_api2::boxed::Box;
use core::{marker::PhantomData, mem::offset_of, ops::Deref, ptr::NonNull};
use freehold_range::{IntervalAdapter, IntervalLink, IntervalTree};
use freehold_sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold_vmspace::{PageIndex, PageRange, Run};

/// Contents of a region's frames.
pub(crate) enum Source<P: Platform> {
    /// Frames of one mapping: anonymous memory, a writable copy, or pages of a file that are only read.
    Single,
    /// A copy of a file's pages that all read-only mappings of these pages share.
    Text(FilePages<P>),
    /// A file's own pages in one shared mapping. The file must not lose these pages.
    Shared(FilePages<P>),
}

/// Pages of a file from `first` on. There are as many pages as the region has frames.
pub(crate) struct FilePages<P: Platform> {
    pub mapping: Counted<Mapping<P>>,
    pub first: PageIndex,
}

/// Contiguous frames that one or several mappings use; the head of this file explains the kinds.
pub(crate) struct Region<P: Platform> {
    /// Link in the tree of all regions; guarded by the lock of that tree.
    by_address: IntervalLink,
    /// Link in the tree of the file's regions, unless `Single`; guarded by the file's i_mmap lock.
    by_page: RegionRecord,
    /// Number of mappings that use the region; guarded by the regions' lock.
    users: AtomicU64,
    /// Frames of the region. Changed only by the single user of a `Single` region, under the regions' lock
    /// for writing.
    pub run: Run<P>,
    /// Contents of the frames. Constant.
    pub source: Source<P>,
    /// The set of all regions. Constant. Must be the last field: fields are dropped in order, and the frames
    /// must be freed before this reference is dropped.
    regions: Counted<Regions<P>>,
}

impl<P: Platform> Region<P> {
    /// Creates a region that has one user and is not in a tree.
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

    /// Returns the file and its pages in this region, if the region is in the file's tree.
    pub fn file_pages(&self) -> Option<(&Counted<Mapping<P>>, PageRange)> {
        match &self.source {
            Source::Single => None,
            Source::Text(pages) | Source::Shared(pages) => {
                Some((&pages.mapping, PageRange::at(pages.first, self.run.pages())))
            }
        }
    }

    /// Returns the region that contains `record`.
    ///
    /// # Safety
    ///
    /// The record must be one that [`RegionUse::link`] inserted into the tree of a file.
    pub unsafe fn of_record(record: NonNull<RegionRecord>) -> NonNull<Self> {
        // SAFETY: the caller guarantees that the record is the field `by_page` of a region.
        unsafe { record.byte_sub(offset_of!(Region<P>, by_page)).cast() }
    }

    /// Returns true if the lock of `regions` guards this region.
    pub fn is_of(&self, regions: &Regions<P>) -> bool {
        core::ptr::eq(&*self.regions, regions)
    }
}

/// A counted reference of one mapping to a region. Dropping the last reference destroys the region and frees
/// its frames.
///
/// # Invariants
///
/// `region` is live, and its `users` includes this reference.
pub(crate) struct RegionUse<P: Platform> {
    region: NonNull<Region<P>>,
}

// SAFETY: any thread may use and free a region. Locks guard the links and the count of the region.
unsafe impl<P: Platform> Send for RegionUse<P> {}
// SAFETY: any thread may use and free a region. Locks guard the links and the count of the region.
unsafe impl<P: Platform> Sync for RegionUse<P> {}

impl<P: Platform> RegionUse<P> {
    /// Returns the region's record in the tree of its file.
    fn record(&self) -> NonNull<RegionRecord> {
        // SAFETY: `by_page` is a field of the region, which is live by the type's invariant.
        unsafe { self.region.byte_add(offset_of!(Region<P>, by_page)).cast() }
    }

    /// Inserts the region into the trees.
    ///
    /// # Locks
    ///
    /// The caller holds the lock of all regions for writing. Takes the file's i_mmap lock for writing.
    pub fn link(&self, all: &mut IntervalTree<ByAddress<P>>) {
        let frames = self.run.numbers();
        if frames.is_empty() {
            return;
        }
        // SAFETY: the region stays at its address until its last user has removed it from the trees.
        unsafe { all.insert(self.region, frames.start, frames.end - 1) };
        if let Some((mapping, pages)) = self.file_pages() {
            let mut of_file = mapping.regions.edit();
            // SAFETY: the record is part of the region, which stays until its last user has removed it from
            // the trees.
            unsafe { of_file.insert(self.record(), pages.start.get(), pages.end.get() - 1) };
        }
    }

    /// Returns another reference to a region that is in the trees.
    ///
    /// # Safety
    ///
    /// The region must be linked, and the caller must hold the lock of all regions for writing.
    pub unsafe fn another(region: NonNull<Region<P>>) -> Self {
        // SAFETY: a linked region has users, and is destroyed only under the lock that the caller holds.
        let users = unsafe { &region.as_ref().users };
        // Relaxed here and below: the regions' lock orders all accesses.
        users.store(users.load(Relaxed) + 1, Relaxed);
        RegionUse { region }
    }

    /// Changes the frames of a region that has no other user. Afterwards the region is in the tree if it has
    /// frames.
    ///
    /// # Locks
    ///
    /// The lock of all regions for writing.
    pub fn change<R>(&mut self, f: impl FnOnce(&mut Run<P>) -> R) -> R {
        assert!(
            matches!(self.source, Source::Single),
            "a region that several mappings may use must not change"
        );
        let regions = self.regions.clone();
        let mut all = regions.edit();
        // SAFETY: the region is live, and `all` is the only tree of addresses that can contain it.
        if unsafe { all.contains(self.region) } {
            // SAFETY: the region is in this tree, as checked above.
            unsafe { all.remove(self.region) };
        }
        // SAFETY: this is the only reference. The region is not in the tree of addresses any more, and a
        // `Single` region is not in the tree of a file.
        let result = f(unsafe { &mut self.region.as_mut().run });
        self.link(&mut all);
        result
    }
}

impl<P: Platform> Deref for RegionUse<P> {
    type Target = Region<P>;
    fn deref(&self) -> &Region<P> {
        // SAFETY: the region is live by the type's invariant, and changes only through `&mut self` of the
        // only reference.
        unsafe { self.region.as_ref() }
    }
}

impl<P: Platform> Drop for RegionUse<P> {
    /// Drops one reference to the region.
    ///
    /// # Locks
    ///
    /// The lock of all regions for writing, and under it the file's i_mmap lock for writing. Frames and files
    /// are released after both locks.
    fn drop(&mut self) {
        let regions = self.regions.clone();
        let mut all = regions.edit();
        let left = self.users.load(Relaxed) - 1;
        self.users.store(left, Relaxed);
        if left > 0 {
            return;
        }
        // SAFETY: the region is live, and `all` is the only tree of addresses that can contain it.
        if unsafe { all.contains(self.region) } {
            if let Some((mapping, _)) = self.file_pages() {
                let mut of_file = mapping.regions.edit();
                // SAFETY: `link` inserts a region into both trees under one hold of the regions' lock, so the
                // record is in the file's tree as well.
                unsafe { of_file.remove(self.record()) };
            }
            // SAFETY: the region is in this tree, as checked above.
            unsafe { all.remove(self.region) };
        }
        drop(all);
        // SAFETY: this was the last reference, and no tree contains the region. `alone` leaked the box.
        drop(unsafe { Box::from_raw(self.region.as_ptr()) });
    }
}

/// An adapter that finds the link of a region in the tree of all regions.
pub(crate) struct ByAddress<P>(PhantomData<fn() -> P>);

// SAFETY: the link lies at a fixed offset inside the region, which stays at its address. Only trees of this
// adapter use the link.
unsafe impl<P: Platform> IntervalAdapter for ByAddress<P> {
    type Object = Region<P>;

    fn link(object: NonNull<Region<P>>) -> NonNull<IntervalLink> {
        // SAFETY: `by_address` is a field of the object, so its offset lies inside the object.
        unsafe { object.byte_add(offset_of!(Region<P>, by_address)).cast() }
    }

    fn object(link: NonNull<IntervalLink>) -> NonNull<Region<P>> {
        // SAFETY: every link in a tree of this adapter is the field `by_address` of a region.
        unsafe { link.byte_sub(offset_of!(Region<P>, by_address)).cast() }
    }
}
