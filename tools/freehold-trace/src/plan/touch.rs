//! What a step must wait for in its address space, and what later steps may have to know of it.

use super::area::{PAGE, flag, page_of};
use super::order::{CHUNK, Stamp};
use super::space::{Reach, Space};
use std::ops::Range;

/// How far below a stack a fault may make it grow: the usual limit on its size, in bytes.
pub(super) const STACK_LIMIT: u64 = 8 << 20;
/// Bytes before a fault's page, and behind it, in which pages of a file may come with it.
pub(super) const AROUND: u64 = 15 * PAGE;
/// Free bytes that stay below a stack.
const STACK_GAP: u64 = 256 * PAGE;

impl Space {
    /// A fault at `address`: what it must wait for goes into `waits`, and what it does into the model.
    pub(super) fn touch(
        &mut self,
        address: u64,
        write: bool,
        stamp: Stamp,
        families: &mut u32,
        waits: &mut Vec<Stamp>,
    ) {
        let page = page_of(address);
        let write = write || self.is_supplied(page);
        let grown = self.stack_growth(page);
        if self.is_alone(waits) {
            if let Some(grown) = grown {
                self.grow_stack(&grown, stamp);
            }
            if write {
                self.first_write(page, stamp, families);
            }
            return;
        }
        waits.push(self.order.whole);
        if let Some(grown) = grown {
            waits.extend(self.areas.touching(&grown).map(|(_, area)| area.last));
            waits.extend(self.order.changed(grown.start.saturating_sub(1)..grown.end));
            self.grow_stack(&grown, stamp);
            self.order.note_change(&grown, stamp);
        }
        let area = self.areas.find(page).map(|(start, area)| {
            (start..area.end, area.flags, area.shared, area.family_by, area.file.is_some())
        });
        match &area {
            // A huge page may come, which lies in all of this.
            Some((_, flags, ..)) if flags & flag::HUGEPAGE != 0 => {
                let first = page & !(CHUNK - 1);
                waits.extend(self.order.changed(first..first.saturating_add(CHUNK)));
            }
            // Pages around it may come with it.
            Some((range, _, _, _, true)) => {
                let first = page.saturating_sub(AROUND).max(range.start);
                waits.extend(self.order.changed(first..page.saturating_add(PAGE + AROUND).min(range.end)));
            }
            _ => waits.extend(self.order.changed_at(page)),
        }
        if let Some((range, _, shared, family_by, _)) = area.filter(|_| write) {
            if self.needs_family(page) {
                waits.extend(self.areas.touching(&range).map(|(_, area)| area.last));
                self.first_write(page, stamp, families);
                self.areas.touching(&range).for_each(|(_, area)| area.last = stamp);
            } else if !shared {
                waits.push(family_by);
            }
        }
        self.order.note_fault(page, stamp);
    }

    /// Which steps a call must wait for, into `waits`; returns the VMAs that it may merge with.
    pub(super) fn gather(&mut self, reach: &Reach, waits: &mut Vec<Stamp>) -> Vec<Range<u64>> {
        let mut beside = Vec::new();
        if self.is_alone(waits) {
            return beside;
        }
        waits.push(self.order.whole);
        match reach {
            Reach::Vmas(ranges) => {
                for range in ranges.iter().filter(|range| !range.is_empty()) {
                    for (start, area) in self.areas.touching(range) {
                        waits.push(area.last);
                        beside.push(start..area.end);
                    }
                    let around = range.start.saturating_sub(1)..range.end.saturating_add(1);
                    waits.extend(self.order.changed(around));
                    waits.extend(self.order.faulted(range));
                }
            }
            Reach::Pages(range) => {
                waits.extend(self.order.changed(range.clone()));
                waits.extend(self.order.faulted(range));
            }
            // The planner itself looks at every task.
            Reach::Whole => {}
        }
        beside
    }

    /// Marks what a call has changed; `beside` is what `gather` returned.
    pub(super) fn note(&mut self, reach: &Reach, beside: Vec<Range<u64>>, stamp: Stamp) {
        if self.members.len() == 1 {
            return;
        }
        match reach {
            Reach::Vmas(ranges) => {
                for range in ranges.iter().filter(|range| !range.is_empty()) {
                    self.order.note_change(range, stamp);
                    self.areas.touching(range).for_each(|(_, area)| area.last = stamp);
                }
                // What is left of a VMA that was cut or extended lies at its old ends.
                for at in beside.into_iter().flat_map(|range| [range.start, range.end - 1]) {
                    if let Some(area) = self.areas.find_mut(at) {
                        area.last = stamp;
                    }
                }
            }
            Reach::Pages(range) => self.order.note_change(range, stamp),
            Reach::Whole => self.order.note_whole(stamp),
        }
    }

    /// What the stack grows by that a fault at `page`, where nothing is mapped, makes grow.
    fn stack_growth(&self, page: u64) -> Option<Range<u64>> {
        if self.areas.find(page).is_some() {
            return None;
        }
        let (start, stack) = self.areas.next(page)?;
        let grows = stack.flags & flag::GROWSDOWN != 0 && stack.end - page <= STACK_LIMIT;
        let clear = self.areas.prev(page).is_none_or(|(_, below)| {
            below.prot == 0
                || below.flags & flag::GROWSDOWN != 0
                || page.saturating_sub(below.end) >= STACK_GAP
        });
        (grows && clear).then_some(page..start)
    }

    pub(super) fn grow_stack(&mut self, grown: &Range<u64>, stamp: Stamp) {
        let Some((start, mut stack)) = self.areas.take(grown.end) else { return };
        stack.offset = stack.offset.wrapping_sub(start - grown.start);
        stack.last = stamp;
        self.areas.put(grown.start, stack);
    }
}
