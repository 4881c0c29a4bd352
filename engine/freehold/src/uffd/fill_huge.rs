//! Huge pages of pools that the pager supplies, whole, one under each hold of the VMA's lock.
//!
//! What a fault would do to the page is done by the fault's own steps (`hugetlb/fault/place.rs`,
//! `file/kinds/huge.rs`): a page of a mapping of one's own is taken under the fault mutex of its place,
//! in place of its reservation, and copied to before anything is locked that processors wait for; a page of
//! the file becomes the file's under the lock of the table that maps it, as a small one does. If the pool has
//! to wait for a page that is coming back, every lock is let go of before.
//!
//! A VMA that is registered shares no tables, so what is put is seen by its own space alone.

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

/// Why a page was not put.
pub(super) enum Obstacle {
    Error(UffdError),
    /// It is worth another try afterwards.
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
    /// Puts the page at `place`, of the call's range.
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
            // As on Linux: a pager that wants zeroes copies them.
            Source::Zeroes => Err(UffdError::Invalid.into()),
        }
    }

    /// Nothing is in the way; and there is a table for the entry.
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

    /// A page of a private mapping.
    fn put_own_huge(&self, place: &HugePlace<'_, P>, bytes: &[u8]) -> Result<(), Obstacle> {
        // Both until the page is mapped or has gone back: nobody else makes one for this place, nor renews
        // its reservation.
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

    /// The page becomes the file's, and is mapped.
    fn put_shared_huge(&self, place: &HugePlace<'_, P>, bytes: &[u8]) -> Result<(), Obstacle> {
        self.find_vacant(place, &self.space.keep_tables(place.vma))?;
        let contents = |platform: &P, pfn| write_frames(platform, pfn, bytes);
        // What the file has already is in the way.
        let mut put = Err(UffdError::Present);
        let publish = |new: &mut NewPage<'_>| put = self.publish_huge(place, new);
        match place.mapping().insert_huge_page(place.index, contents, publish) {
            Ok(()) => Ok(put?),
            Err(NotMade::Failed(error)) => Err(UffdError::from(error).into()),
            Err(NotMade::Returning(seen)) => Err(Obstacle::Wait(WaitFor::HugePage(place.size, seen))),
        }
    }

    /// As `publish` for small pages. There is a table: it is this VMA's own, which nobody takes away while
    /// the VMA is locked.
    fn publish_huge(&self, place: &HugePlace<'_, P>, new: &mut NewPage<'_>) -> Result<(), UffdError> {
        self.still_fills()?;
        let leaf = self.space.lock_place(place).ok_or(UffdError::OutOfMemory)?;
        if !self.is_vacant(place.vma, leaf.pte(), place.level()) || !new.publish() {
            return Err(UffdError::Present);
        }
        // The invalidate lock keeps it there.
        self.map_cached_huge(place, leaf, new.pfn(), || true).map_err(|_| UffdError::OutOfMemory)
    }

    /// Maps the page that the file has; that it has none comes before what is in the way, as on Linux.
    fn put_cached_huge(&self, place: &HugePlace<'_, P>) -> Result<(), UffdError> {
        // As in `put_many`.
        let rcu = P::rcu_read();
        self.still_fills()?;
        let found = place.mapping().find(&rcu, place.index).ok_or(UffdError::BadAddress)?;
        // The table is kept, so it is there.
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
        // No processor remembers a marker.
        leaf.replace(Pte::leaf(place.level(), pfn, self.file_rights(place.vma)), &mut NotCached);
        Ok(())
    }

    /// Fills a slot in which nothing is in the way.
    fn put_leaf(&self, place: &HugePlace<'_, P>, pte: Pte<P::Format>) -> Result<(), UffdError> {
        // As in `put_many`.
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

/// Fills the frames from `first` on.
fn write_frames<P: Platform>(platform: &P, first: Pfn, bytes: &[u8]) {
    let pages = bytes.chunks_exact(PAGE_SIZE as usize);
    pages.zip(0..).for_each(|(page, n)| platform.write_frame(first.add(n), 0, page));
}
