//! Acquires the right to resize or move a mapping, as the exclusive writer or as a range writer.
//!
//! To resize a mapping in place, a range writer claims the VMA of the mapping, and either the part to be
//! unmapped or the hole behind the VMA. To move a mapping that has no room to grow, a range writer claims the
//! VMA and a hole elsewhere. Moves to an address that the caller names need the exclusive writer. Moves of
//! some mappings also need the exclusive writer, because such a move changes more than page-table entries.
//! These mappings are huge pages of a pool, segments, special mappings, and memory registered with a
//! userfaultfd.
//!
//! The limits are reserved before the range is claimed (`limit_demand`). The limit on locked pages is
//! reserved after the claim, because only the claimed VMA shows whether it is locked. Every failed claim
//! releases all claims of the call. `tests/mremap/range_writers.rs` compares moves of range writers with
//! those of the exclusive writer, and `tests/range_writers.rs` tests claims that conflict.

use crate::{
    call::mremap::Remap,
    file::Object,
    platform::Platform,
    space::{
        AddressSpace, locking::WriteGuard, placement_request::PlacementRequest,
        range_writer::RangeWriterState, state::counters::LimitDemand,
    },
    vma::{Vma, flags::VmFlags},
};
use freehold_range::{ClaimError, Entry};
use freehold_sync::Killed;
use freehold_vmspace::{PageCount, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// Acquires the right to perform the request. The exclusive writer waits until none of the addresses is
    /// closing.
    pub(super) fn lock_for_mremap<'s>(
        &'s self,
        state: &'s RangeWriterState,
        request: &Remap,
    ) -> Result<(WriteGuard<'s, P>, Destination), Killed> {
        let claim = |guard: &mut WriteGuard<'s, P>| guard.claim_for_mremap(request);
        let ready = |guard: &WriteGuard<'s, P>| {
            let clear = request.ranges().into_iter().all(|range| guard.clear_for_write(range));
            clear.then_some(Destination::Open)
        };
        match request.has_target() {
            false => self.claim_or_exclusive_when(state, || request.limit_demand(), claim, ready),
            true => self.write_exclusive_when(ready),
        }
    }
}

/// The place of a mapping that grows.
pub(super) enum Destination {
    /// The mapping stays if it can grow in place, and otherwise moves to any free place.
    Open,
    /// The mapping moves to this address. The mapping cannot grow in place, and the hole at the address is
    /// claimed.
    Claimed(u64),
}

impl Remap {
    /// Returns the VMAs and pages to reserve against the limits before the claim. Locked pages are reserved
    /// after the claim.
    fn limit_demand(&self) -> LimitDemand {
        match (self.grows(), self.may_move()) {
            // Source and target exist at the same time. Linux requires room for four VMAs; the source is
            // split into three at most.
            (true, true) => {
                LimitDemand { vmas: 4, pages: PageCount::of_bytes(self.new_len), ..LimitDemand::default() }
            }
            (true, false) => {
                LimitDemand { pages: PageCount::of_bytes(self.growth()), ..LimitDemand::default() }
            }
            (false, _) => LimitDemand::CUTS,
        }
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Claims the mapping and one more range: the part to be unmapped, the hole to grow into, or the target
    /// of the move.
    fn claim_for_mremap(&self, request: &Remap) -> Result<Destination, ClaimError> {
        let mut destination = Destination::Open;
        if request.grows() {
            match self.claim_extension(request) {
                Err(ClaimError::NeedsExclusive) if request.may_move() => {
                    destination = Destination::Claimed(self.claim_move(request)?);
                }
                claimed => claimed?,
            }
        } else if request.new_len == request.old_len {
            let page = UserRange::clipped(request.addr, crate::PAGE_SIZE);
            self.claims().claim(page.start(), page.end(), true, false)?;
        } else if self.space.range_writers_unmap() {
            // Only VMAs at the ends of the tail are split. The first VMA of the mapping must touch the tail;
            // otherwise the request needs the exclusive writer.
            let tail = request.old_len - request.new_len;
            self.claim_range(UserRange::clipped(request.addr + request.new_len, tail))?;
        } else {
            return Err(ClaimError::NeedsExclusive);
        }
        // A mapping of huge pages may need more than the claimed range.
        match self.find(request.addr).is_some_and(|vma| vma.huge_page_size().is_none()) {
            true => Ok(destination),
            false => Err(self.release_claims(ClaimError::NeedsExclusive)),
        }
    }

    /// Claims the hole behind the mapping, if the mapping ends where its VMA ends.
    fn claim_extension(&self, request: &Remap) -> Result<(), ClaimError> {
        let (_, end) = self.space.vma_bounds(request.addr).ok_or(ClaimError::NeedsExclusive)?;
        let extension = UserRange::clipped(end, request.growth());
        if end - request.addr != request.old_len || extension.end() > AddressSpace::<P>::TASK_SIZE {
            return Err(ClaimError::NeedsExclusive);
        }
        self.claim_hole(extension, |_| 0)?;
        match self.find(request.addr) {
            Some(vma) => self.reserve_locked_limit(vma.flags(), extension.pages()),
            None => Err(self.release_claims(ClaimError::NotAHole)),
        }
    }

    /// Claims the mapping to be moved and the hole for its target. Returns the start of the target.
    #[inline(never)]
    fn claim_move(&self, request: &Remap) -> Result<u64, ClaimError> {
        let source = UserRange::clipped(request.addr, request.old_len);
        if source.is_empty() {
            return Err(ClaimError::NeedsExclusive);
        }
        // The search is run once before any claim is held, because it may insert the boundary of the arena
        // that it searches.
        let _ = self.find_placement(&PlacementRequest::new(0, request.new_len));
        self.claims().claim(source.start(), source.end(), false, true)?;
        self.claim_target(request).map_err(|why| self.release_claims(why))
    }

    /// Claims a hole for the moved mapping, whose VMA is already claimed. Returns the start of the hole.
    fn claim_target(&self, request: &Remap) -> Result<u64, ClaimError> {
        let Some(vma) = self.find(request.addr).filter(|vma| range_writer_may_move(vma, request)) else {
            return Err(ClaimError::NeedsExclusive);
        };
        // The source is claimed and cannot change any more. The mapping could not grow before the claim, but
        // may be able to grow now.
        let extension = UserRange::clipped(vma.end(), request.growth());
        if vma.end() - request.addr == request.old_len {
            self.expect_blocked(extension)?;
        }
        let at = self.place_target(vma, request, 0).map_err(|_| ClaimError::NeedsExclusive)?;
        let target = UserRange::at(at, request.new_len);
        let kept = |above: &Entry| self.guard_bytes(above);
        self.claims().claim_additional_hole(target.start(), target.end(), kept)?;
        if target.start() < extension.end() && extension.start() < target.end() {
            return Err(ClaimError::NotAHole);
        }
        self.reserve_locked_limit(vma.flags(), target.pages())?;
        Ok(target.start())
    }

    /// Succeeds if a VMA lies in the range, or if the range extends beyond user space. Fails with
    /// `NeedsExclusive` if a reservation lies in the range, because the exclusive writer waits for the end of
    /// the reservation.
    fn expect_blocked(&self, range: UserRange) -> Result<(), ClaimError> {
        self.right.with_next_of_any_writer(range.start(), |found| {
            match found.filter(|found| found.start < range.end()) {
                Some(found) if self.slot(&found).vma().is_some() => Ok(()),
                Some(_) => Err(ClaimError::NeedsExclusive),
                None if range.end() > AddressSpace::<P>::TASK_SIZE => Ok(()),
                None => Err(ClaimError::NotAHole),
            }
        })
    }
}

/// Returns true if a range writer may move `vma`. Otherwise the exclusive writer decides.
fn range_writer_may_move<P: Platform>(vma: &Vma<P>, request: &Remap) -> bool {
    let is_plain = match vma.object() {
        Object::Anonymous => true,
        Object::File(file) => file.segment().is_none() && file.driver().is_none(),
        Object::Zeroes(_) | Object::Special(_) => false,
    };
    let seldom = VmFlags::UFFD | VmFlags::HUGETLB | VmFlags::SEALED;
    is_plain && !vma.flags().intersects(seldom) && request.old_len <= vma.end() - request.addr
}
