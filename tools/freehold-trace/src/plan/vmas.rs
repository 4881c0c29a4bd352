//! The VMAs of one address space by themselves, for a reader that follows a recording and plans nothing.
//!
//! Calls do to them what they do to the plan's. Of memory that nothing has told of there is none here.

use super::area::{Area, Purpose, flag, page_of};
use super::calls::reach;
use super::order::Stamp;
use super::space::{Doing, Reach, Space};
use super::touch::STACK_LIMIT;
use crate::{Call, Snapshot};
use std::ops::Range;

/// How a file is called whose number is not asked for.
const SOME_FILE: u32 = 0;
/// How the kernel calls a file whose private memory has none.
const ZEROES: &str = "/dev/zero";

/// The VMAs of an address space.
#[derive(Clone, Debug, Default)]
pub struct Vmas {
    space: Space,
    families: u32,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vma {
    /// Its addresses.
    pub range: Range<u64>,
    /// `PROT_READ`, `PROT_WRITE`, `PROT_EXEC`.
    pub prot: u8,
    /// It is shared.
    pub shared: bool,
    /// It maps a file; memory that is shared always does.
    pub file: bool,
    /// What it is for.
    pub purpose: Purpose,
}

impl Vmas {
    /// Those that the kernel's list shows take the place of all that were known. The list has no word for
    /// what was mapped to be a stack: such memory stays one.
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

    fn put(&mut self, range: Range<u64>, area: &Area) {
        if range.start < range.end {
            self.space.areas.put(range.start, Area { end: range.end, ..area.clone() });
        }
    }

    /// Does what the call did; `segment`: how many bytes shmat attaches. Where VMAs may be others now.
    pub fn call(&mut self, call: &Call, segment: u64) -> [Range<u64>; 2] {
        let changed = match reach(call, &self.space, segment) {
            Reach::Vmas(ranges) => ranges,
            Reach::Pages(_) | Reach::Whole => [0..0, 0..0],
        };
        self.space.apply(&mut Doing {
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

    /// A fault at `address`. The addresses that a stack has grown by.
    pub fn touch(&mut self, address: u64) -> Range<u64> {
        let page = page_of(address);
        let next = self.space.areas.next(page).filter(|_| self.space.areas.find(page).is_none());
        let grows =
            next.filter(|(start, area)| area.flags & flag::GROWSDOWN != 0 && start - page <= STACK_LIMIT);
        let Some(grown) = grows.map(|(start, _)| page..start) else { return 0..0 };
        self.space.grow_stack(&grown, Stamp::START);
        grown
    }

    /// What a forked child gets.
    pub fn fork(&mut self) -> Vmas {
        Vmas { space: self.space.fork(&mut self.families), families: self.families }
    }

    /// Those with addresses in `range`, ascending.
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
