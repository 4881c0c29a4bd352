//! The VMAs of one address space, for a reader that follows a recording without planning it.
//!
//! The pictures of a recording (`freehold-replay/src/picture/`) use [`Vmas`]. Calls have the same effect as
//! on the planner's model, because [`Vmas`] and the planner both use `Space`. Nothing is ordered here: all
//! stamps are `Stamp::START`. Unknown memory is absent, and the identity of files does not matter. The tests
//! are in `vmas_tests.rs`. A new property needs a field of [`Vma`], which [`Vmas::within`] fills.

use super::area::{Area, Purpose, flag, page_of};
use super::calls::reach;
use super::order::Stamp;
use super::space::{AppliedCall, Reach, Space};
use super::touch::STACK_LIMIT;
use crate::{Call, Snapshot};
use std::ops::Range;

/// The number of every file, because the identity of files does not matter here.
const SOME_FILE: u32 = 0;
/// The kernel's name of the file whose private mappings are anonymous memory.
const ZEROES: &str = "/dev/zero";

/// The VMAs of an address space.
#[derive(Clone, Debug, Default)]
pub struct Vmas {
    space: Space,
    families: u32,
}

/// A VMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vma {
    /// The addresses.
    pub range: Range<u64>,
    /// `PROT_READ`, `PROT_WRITE`, `PROT_EXEC`.
    pub prot: u8,
    /// True if the VMA is shared.
    pub shared: bool,
    /// True if the VMA maps a file. Shared memory always maps a file.
    pub file: bool,
    /// The purpose of the VMA.
    pub purpose: Purpose,
}

impl Vmas {
    /// Replaces all VMAs by those of a snapshot. Memory that was mapped as a stack keeps that purpose,
    /// because a snapshot does not show the purpose.
    pub fn show(&mut self, snapshot: &Snapshot) {
        let old = std::mem::take(&mut self.space.areas);
        for shown in &snapshot.areas {
            let anonymous = matches!(shown.name.as_str(), "" | ZEROES | "[heap]" | "[stack]")
                || shown.name.starts_with("[anon");
            let area = Area::shown(shown, (!anonymous || shown.shared).then_some(SOME_FILE));
            let (mut at, range) = (shown.start, shown.start..shown.end);
            let stacks = old.within(&range);
            let stacks = stacks.filter(|(_, old)| area.is_anonymous() && old.purpose == Purpose::Stack);
            for (start, stack) in stacks {
                let (start, end) = (start.max(at), stack.end.min(area.end));
                self.put(at..start, &area);
                let purpose = if area.purpose == Purpose::Any { Purpose::Stack } else { area.purpose };
                self.put(start..end, &Area { purpose, ..area.clone() });
                at = end;
            }
            self.put(at..area.end, &area);
        }
    }

    /// Inserts a copy of `area` at `range`, unless the range is empty.
    fn put(&mut self, range: Range<u64>, area: &Area) {
        if range.start < range.end {
            self.space.areas.put(range.start, Area { end: range.end, ..area.clone() });
        }
    }

    /// Applies a call. `segment` is the size in bytes of the System V segment that shmat attaches. Returns
    /// the ranges where VMAs may have changed. Either range may be empty.
    pub fn call(&mut self, call: &Call, segment: u64) -> [Range<u64>; 2] {
        let changed = match reach(call, &self.space, segment) {
            Reach::Vmas(ranges) => ranges,
            Reach::Pages(_) | Reach::Whole => [0..0, 0..0],
        };
        self.space.apply(&mut AppliedCall {
            call,
            file: Some(SOME_FILE),
            access: None,
            zeroes: false,
            segment,
            userfaultfd: None,
            stamp: Stamp::START,
            families: &mut self.families,
        });
        changed
    }

    /// Applies a fault at `address`. Returns the range by which a stack has grown, which is empty if no stack
    /// has grown.
    pub fn touch(&mut self, address: u64) -> Range<u64> {
        let page = page_of(address);
        let next = self.space.areas.next(page).filter(|_| self.space.areas.find(page).is_none());
        let grows =
            next.filter(|(start, area)| area.flags & flag::GROWSDOWN != 0 && start - page <= STACK_LIMIT);
        let Some(grown) = grows.map(|(start, _)| page..start) else { return 0..0 };
        self.space.grow_stack(&grown, Stamp::START);
        grown
    }

    /// Returns the VMAs of a forked child.
    pub fn fork(&mut self) -> Vmas {
        Vmas { space: self.space.fork(&mut self.families), families: self.families }
    }

    /// Returns the VMAs with addresses in `range`, in ascending order.
    pub fn within(&self, range: &Range<u64>) -> impl Iterator<Item = Vma> {
        self.space.areas.within(range).map(|(start, area)| Vma {
            range: start..area.end,
            prot: area.prot,
            shared: area.shared,
            file: area.file.is_some(),
            purpose: area.purpose,
        })
    }
}

#[cfg(test)]
#[path = "vmas_tests.rs"]
mod tests;
