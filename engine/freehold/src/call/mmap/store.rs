//! The last part of prepare, and the commit and settle of mmap: removes the old mappings and inserts the new
//! one.
//!
//! The caller (`call/mmap/mod.rs`) holds the right to change the range, and has chosen the address and the
//! flags. Every step that can fail comes before the first change. There is one exception: the mapping is of a
//! removed segment and replaces the last VMAs that map this segment. The call then unmaps these VMAs, which
//! destroys the segment, and fails. The old VMAs are passed to the caller, which retires them after it has
//! released its locks.
//!
//! `driver.rs` calls functions of this file to store mappings of drivers. `hugetlb-promise-last` and
//! `segment-ends` in `xtask/mutants` name the tests for the order of the steps.

use super::request::MmapRequest;
use crate::{
    PAGE_SIZE,
    committed::Charge,
    error::MmapError,
    file::{Object, kinds::huge::Reserving},
    hugetlb::state::reserves::PendingReservation,
    platform::Platform,
    space::{
        AddressSpace,
        change::{
            deferred_retire::DeferredRetire,
            split_merge::NewMapping,
            unmap::{Gathered, UnmapRange},
        },
        limits::ReplacedPages,
        locking::WriteGuard,
        map_flags::MapFlags,
    },
    vma::{
        Vma,
        flags::VmFlags,
        merge::{Attrs, can_append, can_prepend},
    },
};
use freehold_range::{ClaimError, Filled};
use freehold_vmspace::{PageCount, UserRange};

/// Result of an attempt to store a mapping without a claim.
pub(super) enum Stored {
    /// The mapping is stored.
    Done {
        /// True if its pages must be populated.
        populate: bool,
    },
    /// The addresses are not free.
    Occupied,
    /// Another range writer has claimed a VMA next to the mapping.
    Contended,
    /// The mapping merges with VMAs that must be claimed, or there is no memory or no slot for a new entry of
    /// the tree.
    NeedsClaim,
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Gathers the mappings to be replaced, if the request has a fixed address, and checks the limits. After
    /// success, the gathered mappings may be removed.
    pub(super) fn gather_replaced(
        &self,
        request: &MmapRequest<P>,
        range: UserRange,
    ) -> Result<(Option<Gathered<'_, 's, P>>, Charge<'s, P>), MmapError> {
        let gathered = match request.flags.contains(MapFlags::FIXED) {
            true => Some(self.gather(&UnmapRange::trusted::<P>(range))?),
            false => None,
        };
        let replaced = gathered.as_ref().map(Gathered::replaced).unwrap_or_default();
        let charge = self.check_limits(request, replaced)?;
        Ok((gathered, charge))
    }

    /// Checks the limits for the mapping, and charges its pages if they count as committed.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn check_limits(
        &self,
        request: &MmapRequest<P>,
        replaced: ReplacedPages,
    ) -> Result<Charge<'s, P>, MmapError> {
        let pages = PageCount::of_bytes(request.len);
        if !self.may_expand(request.vm_flags, pages, replaced) {
            return Err(MmapError::Limit);
        }
        self.charge(request.vm_flags, pages, replaced).map_err(|_| MmapError::Limit)
    }

    /// Stores the mapping in place of existing ones. Returns true if it must be populated.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(super) fn store_mapping(
        &self,
        request: &MmapRequest<P>,
        range: UserRange,
        reserving: Option<&Reserving<'_, P>>,
        replaced: &mut DeferredRetire<'s, P>,
    ) -> Result<bool, MmapError> {
        if request.flags.contains(MapFlags::FIXED) || request.unit > PAGE_SIZE {
            return self.store_over(request, range, reserving, replaced);
        }
        let charge = self.check_limits(request, ReplacedPages::default())?;
        let attrs = request.attrs();
        let new = self.prepare_new(range, &attrs)?;
        let vma = self.insert(range, new, &attrs);
        Ok(self.count_stored(request, charge, Some(vma)))
    }

    /// Stores a mapping of huge pages of a pool, or one that may replace existing mappings.
    #[inline(never)]
    fn store_over(
        &self,
        request: &MmapRequest<P>,
        range: UserRange,
        reserving: Option<&Reserving<'_, P>>,
        replaced: &mut DeferredRetire<'s, P>,
    ) -> Result<bool, MmapError> {
        let (mut gathered, charge) = self.gather_replaced(request, range)?;
        if let Some(ending) = gathered.take_if(|gathered| gathered.ends_segment(&request.object)) {
            // The old VMAs are unmapped before the new one is created, and the removed segment is destroyed
            // with its last VMA. There is then no segment that could be mapped.
            replaced.add(ending.unmap());
            return Err(MmapError::Invalid);
        }
        if request.unit > PAGE_SIZE && !request.pgoff.byte().is_multiple_of(request.unit) {
            return Err(MmapError::Invalid);
        }
        let reserved = self.space.reserve_huge_pages(request)?;
        let reserves = reserved.as_ref().map(|reserved| &reserved.reserves);
        let attrs = Attrs { reserves, ..request.attrs() };
        let new = self.prepare_new(range, &attrs)?;
        if let Some(reserving) = reserving {
            // The last step that can fail.
            request.reserve(reserving)?;
        }
        let vma = match gathered {
            Some(gathered) => self.replace_gathered(gathered, range, new, &attrs, replaced),
            None => self.insert(range, new, &attrs),
        };
        if let Some(reserved) = reserved {
            reserved.hand_over();
        }
        Ok(self.count_stored(request, charge, Some(vma)))
    }

    /// Stores private anonymous memory as a range writer without a claim, if it merges with no neighbour or
    /// extends one neighbour whose bounds are [simple to change](WriteGuard::resize_latched).
    pub(super) fn store_unclaimed(
        &self,
        request: &MmapRequest<P>,
        range: UserRange,
    ) -> Result<Stored, MmapError> {
        let charge = self.check_limits(request, ReplacedPages::default())?;
        let attrs = request.attrs();
        let vma = self.alloc(range, &attrs)?;
        let joins = |side: &Vma<P>| match side.start() < range.start() {
            true => can_append(side, &attrs),
            false => can_prepend(&attrs, range.end() - range.start(), side),
        };
        let extend = |side: &Vma<P>, whole: UserRange| {
            let pgoff = if side.start() == whole.start() { side.pgoff() } else { attrs.pgoff };
            self.resize_latched(side, (whole, pgoff), attrs.flags & VmFlags::STICKY, || true)
        };
        match self.insert_unclaimed(vma, joins, extend) {
            Ok(Filled::Inserted) => self.space.counters.count_vmas(self, 1),
            Ok(Filled::Extended) => {}
            Ok(Filled::NeedsClaim) => return Ok(Stored::NeedsClaim),
            Err(ClaimError::NotAHole) => return Ok(Stored::Occupied),
            Err(ClaimError::Contended) => return Ok(Stored::Contended),
            Err(ClaimError::NeedsExclusive | ClaimError::NoMemory) => return Ok(Stored::NeedsClaim),
        }
        Ok(Stored::Done { populate: self.count_stored(request, charge, None) })
    }

    /// Replaces the gathered VMAs by the new one. A lookup sees either the old VMAs or the new one.
    pub(super) fn replace_gathered<'g>(
        &'g self,
        gathered: Gathered<'g, 's, P>,
        range: UserRange,
        new: NewMapping<'g, P>,
        attrs: &Attrs<'_, P>,
        gone: &mut DeferredRetire<'s, P>,
    ) -> &'g Vma<P> {
        // No step can fail from here on. The old pages are unmapped before the new VMA is inserted, because
        // the first fault in the new VMA must find the range empty. This fault can occur immediately, because
        // the new VMA may merge with a neighbour that is not locked.
        gathered.zap_in_place();
        let vma = self.insert(range, new, attrs);
        gone.add(gathered.commit_replaced());
        vma
    }

    /// Updates the counters for the stored mapping. `vma` is `None` for a mapping that was stored without a
    /// claim: other writers may already be changing its VMA. Returns true if the mapping must be populated.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    pub(super) fn count_stored(
        &self,
        request: &MmapRequest<P>,
        charge: Charge<'_, P>,
        vma: Option<&Vma<P>>,
    ) -> bool {
        let (space, pages) = (self.space, PageCount::of_bytes(request.len));
        charge.keep();
        space.counters.count_mapped(self, request.vm_flags, pages);
        let locked = request.vm_flags.contains(VmFlags::LOCKED);
        let unlockable = VmFlags::DROPPABLE | VmFlags::SPECIAL | VmFlags::HUGETLB;
        if locked && (request.vm_flags.intersects(unlockable) || request.object.is_direct()) {
            // VMAs of these kinds cannot have the lock flags that mlockall requests for new mappings, so the
            // flags are removed here. As on Linux, the new VMA had the flags until here, and so did not merge
            // with VMAs without the flags. The mapping is populated although it loses the flags.
            let vma = vma.expect("memory that is stored without a claim can be locked");
            self.lock_vma(vma).set_flags(vma.flags() - VmFlags::LOCK_MASK);
        } else if locked {
            space.counters.count_locked(self, pages);
        }
        locked || (request.flags.contains(MapFlags::POPULATE) && !request.flags.contains(MapFlags::NONBLOCK))
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Reserves pages for a private mapping of huge pages.
    pub(super) fn reserve_huge_pages(
        &self,
        request: &MmapRequest<P>,
    ) -> Result<Option<PendingReservation<P>>, MmapError> {
        let Object::File(file) = &request.object else { return Ok(None) };
        let without = VmFlags::MAYSHARE | VmFlags::NORESERVE;
        match file.mapping().huge_page_size().filter(|_| !request.vm_flags.intersects(without)) {
            Some(size) => {
                match PendingReservation::new(self.engine.memory(), size, request.len / size.bytes())? {
                    None => Err(MmapError::NoHugePages),
                    reserved => Ok(reserved),
                }
            }
            None => Ok(None),
        }
    }
}
