//! All regions of a machine without an MMU.
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

/// The regions that the address spaces of one machine without an MMU have in common. An embedder makes one,
/// and all its [`NoMmuSpace`](crate::nommu::NoMmuSpace)s with it.
pub struct Regions<P: Platform> {
    /// Linux's nommu_region_sem and its tree.
    all: Locked<P, IntervalTree<ByAddress<P>>>,
    engine: Counted<Engine<P>>,
}

impl<P: Platform> Shared for Regions<P> {}

/// How much there is of regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionCounts {
    /// Regions. Mappings of one text share one; every other mapping has its own.
    pub regions: u64,
    /// Pages in them. Those of a file that several mappings have in place count for each.
    pub pages: u64,
}

impl<P: Platform> Regions<P> {
    /// No regions yet.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(engine: &Counted<Engine<P>>) -> Result<Counted<Self>, NoMemory> {
        let all = Locked::new(Rank::NoMmuRegions, IntervalTree::new());
        Ok(Counted::try_new(Regions { all, engine: engine.clone() })?)
    }

    /// The engine whose frames they are made of.
    pub fn engine(&self) -> &Counted<Engine<P>> {
        &self.engine
    }

    /// Regions and their pages at this moment.
    ///
    /// # Locks
    ///
    /// The lock of all regions for reading.
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
    /// If something is wrong, with a description of it.
    pub fn check(&self) {
        let all = self.all.read();
        all.check();
        for region in all.iter() {
            // SAFETY: as in `counts`.
            let region = unsafe { region.as_ref() };
            assert!(region.is_of(self), "a region of somebody else");
            assert!(region.run.pages() > PageCount::ZERO, "a region without frames");
        }
    }

    pub(crate) fn edit(&self) -> Write<'_, P, IntervalTree<ByAddress<P>>> {
        self.all.write()
    }

    /// A region for one mapping alone.
    pub(crate) fn single(this: &Counted<Self>, run: Run<P>) -> Result<RegionUse<P>, NoMemory> {
        let region = Region::alone(this, run, Source::Single)?;
        region.link(&mut this.edit());
        Ok(region)
    }

    /// A region of pages that a file must not lose from now on. While `stay` is held it does not, so a
    /// truncation finds the region, or has taken pages away before `run` was looked for.
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

    /// A share of a copy of these pages, if there is one.
    ///
    /// # Errors
    ///
    /// There is one of some of them, and not of all: two copies of a page would differ once the file was
    /// written.
    pub(crate) fn text(
        this: &Counted<Self>,
        mapping: &Mapping<P>,
        pages: PageRange,
    ) -> Result<Option<RegionUse<P>>, MmapError> {
        let all = this.edit();
        this.find_text(&all, mapping, pages)
    }

    /// Offers a copy of pages of a file to all mappings that only read them. If another task was faster, its
    /// copy is used.
    ///
    /// # Errors
    ///
    /// As [`text`](Self::text), or no memory.
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
                // The one that is not needed goes after the lock.
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

    fn find_text(
        &self,
        _all: &Write<'_, P, IntervalTree<ByAddress<P>>>,
        mapping: &Mapping<P>,
        pages: PageRange,
    ) -> Result<Option<RegionUse<P>>, MmapError> {
        let mut mismatch = false;
        for region in mapping.regions.read().overlapping(pages.start.get(), pages.end.get() - 1) {
            // SAFETY: a file's tree has records of regions alone.
            let region = unsafe { Region::<P>::of_record(region) };
            // SAFETY: linked regions are live, and stay linked while the file's lock is held.
            let here = unsafe { region.as_ref() };
            let Source::Text(text) = &here.source else { continue };
            if !here.is_of(self) {
                continue;
            }
            if text.first <= pages.start && pages.end <= text.first + here.run.pages() {
                // SAFETY: it is linked, and the lock that governs it, which is ours, is held for writing.
                return Ok(Some(unsafe { RegionUse::another(region) }));
            }
            mismatch = true;
        }
        // Shared memory is better mapped in place; where that was impossible, copies may overlap.
        if mismatch && !mapping.is_shmem() { Err(MmapError::Invalid) } else { Ok(None) }
    }
}
