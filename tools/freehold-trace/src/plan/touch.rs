//! The steps for which a step waits in its address space, and the notes that the step leaves for later steps.
//!
//! For each step on memory the planner does three things in this order: it gathers the earlier steps for
//! which the step waits (`gather`), changes the model, and notes the step in [`Order`](super::order::Order)
//! (`note`) so that later steps wait for it. For a fault, `touch` does all three. `events.rs` and
//! `syscall.rs` call these functions; the rules are in the table of `mod.rs`. If only one task runs in the
//! address space, nothing is gathered or noted. A rule that changes here needs a test in `tests.rs` that
//! checks the waits.

use super::area::{PAGE, flag, page_of};
use super::order::{CHUNK, Stamp};
use super::space::{Reach, Space};
use std::ops::Range;

/// Maximum distance in bytes at which a fault below a stack makes the stack grow: the usual limit on a
/// stack's size.
pub(super) const STACK_LIMIT: u64 = 8 << 20;
/// Maximum distance in bytes from the page of a fault in a file to other pages that the fault may also map.
pub(super) const AROUND: u64 = 15 * PAGE;
/// Minimum number of free bytes below a stack that grows, if the mapping below is accessible and is no stack.
const STACK_GAP: u64 = 256 * PAGE;

impl Space {
    /// Appends to `waits` the steps for which a fault at `address` waits, applies the fault to the model, and
    /// notes step `stamp`. `write` is true for a store, and `families` is the highest number of a family so
    /// far.
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
            // The fault may map a huge page, which covers the whole chunk.
            Some((_, flags, ..)) if flags & flag::HUGEPAGE != 0 => {
                let first = page & !(CHUNK - 1);
                waits.extend(self.order.changed(first..first.saturating_add(CHUNK)));
            }
            // The fault may map the pages around its page.
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

    /// Appends to `waits` the steps for which a call with this reach waits. Returns the VMAs that overlap or
    /// touch the reach, because the call may change them or merge with them. The caller passes this list to
    /// `note`. The list is named `beside`, here in the sense of adjacent addresses.
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
            // For the whole address space, `Planner::gather_whole` adds the last step of each task.
            Reach::Whole => {}
        }
        beside
    }

    /// Notes that step `stamp` changes the reach of a call. `beside` is the result of `gather`.
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
                // If the call cut or extended a VMA, the remaining parts contain the old first or last
                // address of the VMA.
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

    /// Returns the range by which a stack grows if a fault hits the unmapped `page`.
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

    /// Extends a stack downwards over the range `grown`.
    pub(super) fn grow_stack(&mut self, grown: &Range<u64>, stamp: Stamp) {
        let Some((start, mut stack)) = self.areas.take(grown.end) else { return };
        stack.offset = stack.offset.wrapping_sub(start - grown.start);
        stack.last = stamp;
        self.areas.put(grown.start, stack);
    }
}
