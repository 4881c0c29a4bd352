//! The right to resize or move what mremap was asked for: as the writer of the whole, or of a part.
//!
//! A mapping that is resized where it is needs its VMA, and what goes or the hole behind. A move needs the
//! source and the target, which are two spans: it is the writer's.

use super::{AddressSpace, counters::Needs, locking::WriteGuard, mremap::Remap, part::PartRoom};
use crate::platform::Platform;
use freehold_range::Refused;
use freehold_sync::Killed;
use freehold_vmspace::{PageCount, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// The right to do what is asked for. As the writer of the whole, at a moment when none of the addresses
    /// concerned is still closing.
    pub(super) fn write_for_remap<'s>(
        &'s self,
        room: &'s PartRoom,
        request: &Remap,
    ) -> Result<WriteGuard<'s, P>, Killed> {
        let claim = |guard: &WriteGuard<'s, P>| guard.claim_for_remap(request);
        let closing =
            |guard: &WriteGuard<'s, P>| !request.ranges().into_iter().all(|range| guard.make_way(range));
        match request.has_target() {
            false => self.write_claimed(room, || request.needs(), claim, closing),
            true => self.write_open(closing),
        }
    }
}

impl Remap {
    /// What it may add to sizes that have limits, if the mapping stays where it is and is not locked.
    fn needs(&self) -> Needs {
        match self.grows() {
            true => Needs { pages: PageCount::of_bytes(self.growth()), ..Needs::default() },
            false => Needs::CUTS,
        }
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Claims the mapping, and what goes or where it grows, if it stays where it is.
    fn claim_for_remap(&self, request: &Remap) -> Result<(), Refused> {
        if request.grows() {
            self.claim_extension(request)?;
        } else if request.new_len == request.old_len {
            let page = UserRange::clipped(request.addr, crate::PAGE_SIZE);
            self.part_map().claim(page.start(), page.end(), true, false)?;
        } else if self.space.unmaps_parts() {
            // What is cut are the ends of the tail; the VMA that starts the mapping touches it, or it takes
            // the whole.
            let tail = request.old_len - request.new_len;
            self.claim_range(UserRange::clipped(request.addr + request.new_len, tail))?;
        } else {
            return Err(Refused::Whole);
        }
        // Of huge pages it may be more than that.
        match self.find(request.addr).is_some_and(|vma| vma.huge_page_size().is_none()) {
            true => Ok(()),
            false => Err(self.unclaim(Refused::Whole)),
        }
    }

    /// Claims the hole behind the VMA that ends with the mapping.
    fn claim_extension(&self, request: &Remap) -> Result<(), Refused> {
        let (_, end) = self.space.mapped_at(request.addr).ok_or(Refused::Whole)?;
        let extension = UserRange::clipped(end, request.growth());
        if end - request.addr != request.old_len || extension.end() > AddressSpace::<P>::TASK_SIZE {
            return Err(Refused::Whole);
        }
        self.claim_hole(extension, |_| 0)?;
        match self.find(request.addr) {
            Some(vma) => self.reserve_locked(vma.flags(), extension.pages()),
            None => Err(self.unclaim(Refused::Filled)),
        }
    }
}
