//! The set of all regions of a machine without an MMU.
//!
//! The set finds a copy that a new mapping can share, and counts regions and pages. `region.rs` describes one
//! region, and `state/file_regions.rs` describes the tree that contains the regions of one file.
//!
//! One lock (nommu_region_sem) guards the tree of addresses and the user counts of all regions. In the lock
//! order this lock comes after the space's lock and before the i_mmap lock of a file. No page is read, zeroed
//! or copied under this lock.
//!
//! `mmap.rs` creates and finds regions, and `munmap.rs` cuts them. `nommu` (`shuttle_engine`) tests mappings
//! that are made and removed concurrently.
#![expect(unsafe_code, reason = "regions are linked by pointers")]

use super::{
    region::{ByAddress, FilePages, Region, RegionUse, Source},
    state::locked::{Locked, Write},
};
use crate::{
    counted::{Counted, Shared},
    engine::Engine,
    error::{MmapError, NoMemory},
    file::{Mapping, in_place::PagesStay},
    platform::Platform,
};
use freehold_range::IntervalTree;
use freehold_sync::Rank;
use freehold_vmspace::{PageCount, PageRange, Run};

/// The regions that all address spaces of one machine without an MMU share. An embedder creates one instance
/// and passes it to each of its [`NoMmuSpace`](crate::nommu::NoMmuSpace)s.
pub struct Regions<P: Platform> {
    /// Linux's nommu_region_sem and the tree that it guards.
    all: Locked<P, IntervalTree<ByAddress<P>>>,
    engine: Counted<Engine<P>>,
}

impl<P: Platform> Shared for Regions<P> {}

/// Counts of regions and of their pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionCounts {
    /// Number of regions. Mappings of one text share a region; every other mapping has its own region.
    pub regions: u64,
    /// Number of pages in all regions. Pages of a file that several mappings use in place count once per
    /// mapping.
    pub pages: u64,
}

impl<P: Platform> Regions<P> {
    /// Creates a set without regions.
    ///
    /// # Errors
    ///
    /// Fails if no memory is left.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::nommu::{RegionCounts, Regions};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let regions = Regions::new(&engine).unwrap();
    /// assert_eq!(regions.counts(), RegionCounts::default());
    /// ```
    pub fn new(engine: &Counted<Engine<P>>) -> Result<Counted<Self>, NoMemory> {
        let all = Locked::new(Rank::NoMmuRegions, IntervalTree::new());
        Ok(Counted::try_new(Regions { all, engine: engine.clone() })?)
    }

    /// Returns the engine whose frames the regions use.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{counted::Counted, nommu::Regions};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let regions = Regions::new(&engine).unwrap();
    /// assert!(Counted::ptr_eq(regions.engine(), &engine));
    /// ```
    pub fn engine(&self) -> &Counted<Engine<P>> {
        &self.engine
    }

    /// Returns the current counts of regions and of their pages.
    ///
    /// # Locks
    ///
    /// The lock of all regions for reading.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, nommu::{NoMmuSpace, RegionCounts, Regions}, space::{MapFlags, Prot}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let regions = Regions::new(&engine).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// let [a, b] = [(); 2].map(|()| NoMmuSpace::new(&regions).unwrap());
    /// a.mmap(0, PAGE_SIZE, rw, private, None, 0).unwrap();
    /// b.mmap(0, 2 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// assert_eq!(regions.counts(), RegionCounts { regions: 2, pages: 3 });
    /// ```
    pub fn counts(&self) -> RegionCounts {
        let mut counts = RegionCounts::default();
        for region in self.all.read().iter() {
            // SAFETY: linked regions are live, and stay linked while the lock is held.
            let pages = unsafe { region.as_ref() }.run.pages().get();
            counts = RegionCounts { regions: counts.regions + 1, pages: counts.pages + pages };
        }
        counts
    }

    /// Verifies the tree.
    ///
    /// # Locks
    ///
    /// The lock of all regions for reading.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is violated. The message names the violation.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, nommu::{NoMmuSpace, Regions}, space::{MapFlags, Prot}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let regions = Regions::new(&engine).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// let space = NoMmuSpace::new(&regions).unwrap();
    /// space.mmap(0, PAGE_SIZE, rw, private, None, 0).unwrap();
    /// regions.check();
    /// drop(space);
    /// assert_eq!(regions.counts().regions, 0);
    /// ```
    pub fn check(&self) {
        let all = self.all.read();
        all.check();
        for region in all.iter() {
            // SAFETY: linked regions are live, and stay linked while the lock is held.
            let region = unsafe { region.as_ref() };
            assert!(region.is_of(self), "a region belongs to another set of regions");
            assert!(region.run.pages() > PageCount::ZERO, "a region has no frames");
        }
    }

    /// Takes the lock of all regions for writing.
    pub(crate) fn edit(&self) -> Write<'_, P, IntervalTree<ByAddress<P>>> {
        self.all.write()
    }

    /// Creates a region for one mapping.
    pub(crate) fn single(this: &Counted<Self>, run: Run<P>) -> Result<RegionUse<P>, NoMemory> {
        let region = Region::alone(this, run, Source::Single)?;
        region.link(&mut this.edit());
        Ok(region)
    }

    /// Creates a region of pages that the file must keep. The file cannot lose pages while `stay` is held. A
    /// truncation therefore finds the region, or has removed the pages before `run` was looked up.
    pub(crate) fn shared(
        this: &Counted<Self>,
        stay: &PagesStay<'_, P>,
        run: Run<P>,
        pages: FilePages<P>,
    ) -> Result<RegionUse<P>, NoMemory> {
        debug_assert!(stay.is_of(&pages.mapping), "pages of another file");
        let region = Region::alone(this, run, Source::Shared(pages))?;
        region.link(&mut this.edit());
        Ok(region)
    }

    /// Returns a reference to a copy that contains these pages, if there is one.
    ///
    /// # Errors
    ///
    /// Fails if a copy contains some of the pages but not all. Two copies of one page would differ after a
    /// write to the file.
    pub(crate) fn text(
        this: &Counted<Self>,
        mapping: &Mapping<P>,
        pages: PageRange,
    ) -> Result<Option<RegionUse<P>>, MmapError> {
        let all = this.edit();
        this.find_text(&all, mapping, pages)
    }

    /// Makes `run`, a copy of pages of a file, available to all read-only mappings of these pages. If another
    /// task made such a copy first, returns that copy.
    ///
    /// # Errors
    ///
    /// Fails for the reasons of [`text`](Self::text), or if no memory is left.
    pub(crate) fn offer_text(
        this: &Counted<Self>,
        run: Run<P>,
        pages: FilePages<P>,
    ) -> Result<RegionUse<P>, MmapError> {
        let region = Region::alone(this, run, Source::Text(pages))?;
        let mut all = this.edit();
        let found = match region.file_pages() {
            Some((mapping, pages)) => this.find_text(&all, mapping, pages),
            None => Ok(None),
        };
        match found {
            Ok(None) => region.link(&mut all),
            Ok(Some(found)) => {
                // The copy that is not needed is dropped after the lock is released.
                drop(all);
                return Ok(found);
            }
            Err(error) => {
                drop(all);
                return Err(error);
            }
        }
        drop(all);
        Ok(region)
    }

    /// Finds a copy that contains these pages. The caller holds the lock of all regions for writing.
    fn find_text(
        &self,
        _all: &Write<'_, P, IntervalTree<ByAddress<P>>>,
        mapping: &Mapping<P>,
        pages: PageRange,
    ) -> Result<Option<RegionUse<P>>, MmapError> {
        let mut mismatch = false;
        for region in mapping.regions.read().overlapping(pages.start.get(), pages.end.get() - 1) {
            // SAFETY: all records in a file's tree are fields of regions.
            let region = unsafe { Region::<P>::of_record(region) };
            // SAFETY: linked regions are live, and stay linked while the file's i_mmap lock is held.
            let here = unsafe { region.as_ref() };
            let Source::Text(text) = &here.source else { continue };
            if !here.is_of(self) {
                continue;
            }
            if text.first <= pages.start && pages.end <= text.first + here.run.pages() {
                // SAFETY: the region is linked, and the caller holds the lock of all regions for writing.
                return Ok(Some(unsafe { RegionUse::another(region) }));
            }
            mismatch = true;
        }
        // Shared memory is usually mapped in place. Copies of shared memory exist only where mapping in place
        // was impossible, and such copies may overlap.
        if mismatch && !mapping.is_shmem() { Err(MmapError::Invalid) } else { Ok(None) }
    }
}
