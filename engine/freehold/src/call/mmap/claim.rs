//! The right to map what mmap was asked for: as the exclusive writer, or of a part.

use crate::call::mmap::Request;
use crate::space::{
    AddressSpace,
    counters::LimitDemand,
    locking::WriteGuard,
    map_flags::{MapFlags, PRIVATE, TYPE},
    range_writer::RangeWriterState,
};
use crate::{error::MmapError, file::Object, platform::Platform, vma::flags::VmFlags};
use core::cell::Cell;
use freehold_range::ClaimError;
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::{PageCount, UserRange};

/// The right to map, and where it goes if that was decided.
type Placed<'s, P> = (WriteGuard<'s, P>, Option<u64>);

impl<P: Platform> AddressSpace<P> {
    /// The right to map what is asked for, where there may be others, and where it goes if that was decided.
    /// `alone`: without a claim, for private anonymous memory that joins nothing. That is the commonest
    /// mapping, and takes one change of the tree.
    #[inline(always)]
    pub(super) fn lock_for_mmap<'s>(
        &'s self,
        room: &'s RangeWriterState,
        request: &Request<P>,
        fixed: Option<UserRange>,
        alone: bool,
    ) -> Result<Placed<'s, P>, MmapError> {
        if self.prefers_ranges()
            && let Some(claimed) = self.claim_for_mmap(room, request, fixed, alone)?
        {
            return Ok(claimed);
        }
        let guard = match fixed {
            Some(range) => self.write_exclusive_range(range)?,
            None => self.write_killable()?,
        };
        self.count_exclusive();
        Ok((guard, None))
    }

    /// The same as a range writer. `None`: it takes the whole.
    #[inline(always)]
    fn claim_for_mmap<'s>(
        &'s self,
        room: &'s RangeWriterState,
        request: &Request<P>,
        fixed: Option<UserRange>,
        alone: bool,
    ) -> Result<Option<Placed<'s, P>>, MmapError> {
        if request.object.file().is_some_and(|file| file.driver().is_some()) {
            return Ok(None);
        }
        let needs = || self.needs_of(request);
        if alone {
            let Some(guard) = self.enter_range_writer(room, needs)? else { return Ok(None) };
            // What is wrong with it is found out with the whole space standing still.
            let placed = guard.place(request).ok();
            return Ok(placed.map(|start| (guard, Some(start))));
        }
        let place = Cell::new(fixed.map(UserRange::start));
        let claimed = match fixed {
            Some(range) => self.try_claim(room, needs, |guard| guard.claim_replaced(range))?,
            None if request.flags.contains(MapFlags::FIXED) => return Ok(None),
            None => self.try_claim(room, needs, |guard| {
                let start = guard.place(request).map_err(|_| ClaimError::NeedsExclusive)?;
                place.set(Some(start));
                guard.claim_placement(UserRange::at(start, request.len))
            })?,
        };
        Ok(claimed.ok().map(|guard| (guard, place.get())))
    }

    /// What a mapping may add to sizes that have limits.
    fn needs_of(&self, request: &Request<P>) -> LimitDemand {
        let pages = PageCount::of_bytes(request.len);
        let flags = request.vm_flags | VmFlags::from_bits_retain(self.default_flags.load(Relaxed));
        let locked = flags.contains(VmFlags::LOCKED) || request.object.is_secret();
        // The mapping, and what is cut in two where it comes into the middle.
        let vmas = if request.flags.contains(MapFlags::FIXED) { 3 } else { 1 };
        LimitDemand { vmas, pages, locked: if locked { pages } else { PageCount::ZERO } }
    }
}

impl<P: Platform> Request<P> {
    /// The fixed range, if it is one. One that does not fit is refused in its turn.
    #[inline(always)]
    pub(super) fn fixed_range(&self) -> Option<UserRange> {
        if !self.flags.contains(MapFlags::FIXED) {
            return None;
        }
        let range = UserRange::try_new(self.addr, self.addr.wrapping_add(self.len))?;
        (!range.is_empty() && range.end() <= AddressSpace::<P>::TASK_SIZE).then_some(range)
    }

    /// Whether it is private anonymous memory wherever there is room.
    pub(super) fn is_plain(&self) -> bool {
        let anywhere = !self.flags.contains(MapFlags::FIXED);
        anywhere && matches!(self.object, Object::Anonymous) && self.flags.bits() & TYPE == PRIVATE
    }
}
