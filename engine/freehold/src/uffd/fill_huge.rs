//! Huge pages of pools that the pager supplies. One page is supplied during each hold of the VMA's lock.
//!
//! The steps are those of a fault (`hugetlb/fault/place.rs`, `file/kinds/huge.rs`). A page of a private
//! mapping is taken from the pool under the fault mutex of its offset, and uses the reservation of this
//! offset. The page is filled before any spin lock is taken. A shared page is added to the file under the
//! lock of the table that maps it, like a small page. If the operation must wait until a page returns to the
//! pool, it releases all locks first.
//!
//! A registered VMA shares no tables, so only its own space sees the new entries.
//!
//! `uffd::pools` (`engine/freehold/tests`) compares the counts of the pool after each scenario, so a lost
//! page or reservation makes this test fail.

use super::{
    fill::{Filler, Source, within_file},
    protect::is_whole,
};
use crate::{
    PAGE_SIZE, Pfn,
    error::UffdError,
    fault::WaitFor,
    file::{FillError, NewPage},
    hugetlb::{
        fault::place::{HugePlace, Lacking},
        sharing::SharedTablesGuard,
        state::huge_file::NotMade,
    },
    platform::Platform,
};
use freehold_pagetable::{LeafGuard, MarkerKind, NotCached, Pte};
use freehold_vmspace::{UserRange, frame::NotMapped};

/// Reason for which a page was not put.
pub(super) enum Obstacle {
    Error(UffdError),
    /// The operation can be retried after this event.
    Wait(WaitFor),
}

impl From<UffdError> for Obstacle {
    fn from(error: UffdError) -> Self {
        Obstacle::Error(error)
    }
}

impl From<Lacking> for Obstacle {
    fn from(lacking: Lacking) -> Self {
        match lacking {
            Lacking::Pages | Lacking::Memory => Obstacle::Error(UffdError::OutOfMemory),
            Lacking::Yet(what) => Obstacle::Wait(what),
        }
    }
}

impl<P: Platform> Filler<'_, P> {
    /// Puts the page at `place`. `range` is the whole range of the call.
    pub(super) fn put_huge(&self, place: &HugePlace<'_, P>, range: UserRange) -> Result<(), Obstacle> {
        if !is_whole(place.vma, range) {
            return Err(UffdError::Invalid.into());
        }
        match self.source {
            Source::Bytes(bytes) => {
                let offset = (place.address.get() - range.start()) as usize;
                let bytes = &bytes[offset..offset + place.size.bytes() as usize];
                match place.is_private() {
                    true => self.put_own_huge(place, bytes),
                    false => self.put_shared_huge(place, bytes),
                }
            }
            Source::Cached => {
                let kept = self.space.keep_tables(place.vma);
                self.space.hugetlb_table(place, &kept).map_err(UffdError::from)?;
                Ok(self.put_cached_huge(place)?)
            }
            Source::Poison => {
                let kept = self.space.keep_tables(place.vma);
                self.find_vacant(place, &kept)?;
                Ok(self.put_leaf(place, Pte::marker(MarkerKind::Poison, 0))?)
            }
            // As on Linux, ZEROPAGE fails here. A pager that needs zeroes uses COPY.
            Source::Zeroes => Err(UffdError::Invalid.into()),
        }
    }

    /// Checks that a page may be put at `place`, and makes sure that the table for its entry exists.
    fn find_vacant(
        &self,
        place: &HugePlace<'_, P>,
        kept: &SharedTablesGuard<'_, P>,
    ) -> Result<(), UffdError> {
        self.space.hugetlb_table(place, kept)?;
        let (found, level) = self.space.vm.peek(place.address);
        match level == place.level() && self.is_vacant(place.vma, found, level) {
            true => within_file(place.vma, place.address.get()),
            false => Err(UffdError::Present),
        }
    }

    /// Puts a page of a private mapping.
    fn put_own_huge(&self, place: &HugePlace<'_, P>, bytes: &[u8]) -> Result<(), Obstacle> {
        // The mutex and the tables are held until the page is mapped or freed. No other task can make a page
        // for this place or renew its reservation during that time.
        let _maker = self.space.fault_mutex(place);
        let kept = self.space.keep_tables(place.vma);
        self.find_vacant(place, &kept)?;
        let own = self.space.own_page(place)?;
        write_frames(self.space.platform(), own.pfn, bytes);
        let put = self.put_leaf(place, Pte::leaf(place.level(), own.pfn, self.own_rights(place.vma)));
        if put.is_err() {
            self.space.discard_own(place, own);
        }
        Ok(put?)
    }

    /// Makes the page a page of the file, and maps it.
    fn put_shared_huge(&self, place: &HugePlace<'_, P>, bytes: &[u8]) -> Result<(), Obstacle> {
        self.find_vacant(place, &self.space.keep_tables(place.vma))?;
        let contents = |platform: &P, pfn| write_frames(platform, pfn, bytes);
        // The result if the file already has a page. `publish` is not called in this case.
        let mut put = Err(UffdError::Present);
        let publish = |new: &mut NewPage<'_>| put = self.publish_huge(place, new);
        match place.mapping().insert_huge_page(place.index, place.vma.policy(), contents, publish) {
            Ok(()) => Ok(put?),
            Err(NotMade::Failed(error)) => Err(UffdError::from(error).into()),
            Err(NotMade::Returning(seen)) => Err(Obstacle::Wait(WaitFor::HugePage(place.size, seen))),
        }
    }

    /// Does the work of `publish` for a huge page. The table exists: it belongs only to this VMA and stays
    /// while the VMA is locked.
    fn publish_huge(&self, place: &HugePlace<'_, P>, new: &mut NewPage<'_>) -> Result<(), UffdError> {
        self.still_fills()?;
        let leaf = self.space.lock_place(place).ok_or(UffdError::OutOfMemory)?;
        if !self.is_vacant(place.vma, leaf.pte(), place.level()) || !new.publish() {
            return Err(UffdError::Present);
        }
        // The invalidate lock keeps the page in the cache.
        self.map_cached_huge(place, leaf, new.pfn(), || true).map_err(|_| UffdError::OutOfMemory)
    }

    /// Maps the page that the file has. As on Linux, a missing page is reported before an obstacle at the
    /// entry.
    fn put_cached_huge(&self, place: &HugePlace<'_, P>) -> Result<(), UffdError> {
        // In a read section, as in `put_many`.
        let rcu = P::rcu_read();
        self.still_fills()?;
        let found = place.mapping().find(&rcu, place.index).ok_or(UffdError::BadAddress)?;
        // The caller keeps the table in place, so it exists.
        let leaf = self.space.lock_place(place).ok_or(UffdError::OutOfMemory)?;
        if !self.is_vacant(place.vma, leaf.pte(), place.level()) {
            return Err(UffdError::Present);
        }
        let found_pfn = found.pfn();
        let put = self.map_cached_huge(place, leaf, found_pfn, || found.is_still());
        drop(rcu);
        put.map_err(|error| match error {
            NotMapped::TooManyReferences => UffdError::OutOfMemory,
            NotMapped::Gone => UffdError::BadAddress,
            NotMapped::Stale => {
                self.space.engine.memory().put_frame(found_pfn);
                UffdError::BadAddress
            }
        })
    }

    fn map_cached_huge(
        &self,
        place: &HugePlace<'_, P>,
        mut leaf: LeafGuard<'_, P::Format, P>,
        pfn: Pfn,
        is_still: impl FnOnce() -> bool,
    ) -> Result<(), NotMapped> {
        self.space.platform().frame(pfn).try_map_cached(is_still)?;
        // CPUs do not cache markers.
        leaf.replace(Pte::leaf(place.level(), pfn, self.file_rights(place.vma)), &mut NotCached);
        Ok(())
    }

    /// Sets the entry of `place`, if a page may be put there.
    fn put_leaf(&self, place: &HugePlace<'_, P>, pte: Pte<P::Format>) -> Result<(), UffdError> {
        // In a read section, as in `put_many`.
        let _rcu = P::rcu_read();
        self.still_fills()?;
        let mut leaf = self.space.lock_place(place).ok_or(UffdError::OutOfMemory)?;
        within_file(place.vma, place.address.get())?;
        if !self.is_vacant(place.vma, leaf.pte(), place.level()) {
            return Err(UffdError::Present);
        }
        leaf.replace(pte, &mut NotCached);
        Ok(())
    }
}

impl From<FillError> for UffdError {
    fn from(error: FillError) -> Self {
        match error {
            FillError::NoMemory | FillError::NoSpace | FillError::NoHugePages => UffdError::OutOfMemory,
            FillError::Killed => UffdError::Killed,
            _ => UffdError::BadAddress,
        }
    }
}

/// Writes `bytes` to the frames from `first` on.
fn write_frames<P: Platform>(platform: &P, first: Pfn, bytes: &[u8]) {
    let pages = bytes.chunks_exact(PAGE_SIZE as usize);
    pages.zip(0..).for_each(|(page, n)| platform.write_frame(first.add(n), 0, page));
}
