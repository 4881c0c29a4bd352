//! The order of steps in different address spaces that share huge pages after a fork.
//!
//! A store to a huge page that a fork has shared keeps the page huge if no other address space maps it any
//! more. Otherwise the store splits the page and copies 4 KiB. The plan therefore keeps the order between
//! such stores and steps that remove the page from other address spaces:
//!
//! ```text
//! parent   store, fork, waitpid ............ store: the page is still huge
//! child                store: split   exit
//! ```
//!
//! | step | waits for |
//! | --- | --- |
//! | a store to a present page that may be huge; a call on memory that may be huge | the last such store or call in that block; earlier ends of address spaces of the kin |
//! | the end of an address space (exit, exec) | the last such store or call in each of its blocks |
//!
//! The number of a block of 2 MiB is made of the address that the memory had at its first write, because a
//! process may move memory. If an end and a store overlap in time, the recording does not determine whether
//! the page stays huge. The size of the page is then *unsure* (`Unsure::Size`) and is not compared.
//!
//! [`Kins`] is a part of the planner; `events.rs`, `run.rs` and `syscall.rs` call it. The tests are in
//! `kin_tests.rs`.

use super::area::{Area, PAGE, flag, page_of};
use super::order::{CHUNK, Stamp};
use super::processes::{Fault, Processes, Task};
use super::segment::SegmentBuilder;
use super::space::{Reach, Space};
use super::step::{StepKind, Unsure};
use crate::{Recording, Thp};
use rustc_hash::FxHashMap as HashMap;
use std::collections::VecDeque;
use std::ops::Range;

/// Maximum number of recent stores per kin that are kept. If the end of an address space is read later, that
/// end may overlap these stores in time.
const REMEMBERED: usize = 256;
/// Time in nanoseconds from an exit until the address space counts as torn down, if the recording does not
/// show the teardown.
const SLACK: u64 = 1_000_000_000;

/// Address spaces that descend from one address space by fork, and may share huge pages.
#[derive(Debug, Default)]
struct Kin {
    /// The last store or call in each block, by the number of the block (`keys`).
    stores: HashMap<u64, Stamp>,
    /// The last steps in address spaces of the kin that have ended.
    ends: Vec<Stamp>,
    /// The most recent stores.
    recent: VecDeque<Store>,
    /// Processes whose exit has begun and whose teardown is not recorded yet, each with the time of the exit
    /// in nanoseconds.
    leaving: Vec<(u32, u64)>,
}

/// A store to a block, kept in case an address space of the kin ends at the same time.
#[derive(Debug)]
struct Store {
    /// The time at which the store had ended, in nanoseconds.
    to: u64,
    task: u32,
    space: u32,
    block: Range<u64>,
}

/// All kins by number.
#[derive(Debug, Default)]
pub(super) struct Kins {
    by_number: HashMap<u32, Kin>,
    last: u32,
    /// True if the recording shows when address spaces are torn down. Set at the first such event.
    tells_ends: bool,
    /// True if memory may have huge pages without MADV_HUGEPAGE. `None` until the setting has been read from
    /// the recording.
    always: Option<bool>,
    /// True if there may be blocks smaller than 2 MiB.
    small: bool,
}

impl Kins {
    /// Forgets the steps so far: later steps do not wait for them.
    pub(super) fn forget_order(&mut self) {
        for kin in self.by_number.values_mut() {
            kin.stores.clear();
            kin.ends.clear();
        }
    }

    /// Notes the teardown of an address space of a process.
    pub(super) fn torn_down(&mut self, process: u32) {
        self.tells_ends = true;
        self.by_number.values_mut().for_each(|kin| kin.leaving.retain(|(leaving, _)| *leaving != process));
    }
}

/// An address space whose last task is about to leave: the number of the kin, and the last steps in the
/// address space.
pub(super) struct Leaves {
    kin: u32,
    steps: Vec<Stamp>,
}

impl Kins {
    /// Returns true if the area may have pages larger than 4 KiB.
    pub(super) fn may_be_huge(&self, area: &Area) -> bool {
        let asked = area.flags & flag::HUGEPAGE != 0;
        area.is_anonymous() && area.flags & flag::NOHUGEPAGE == 0 && (asked || self.always != Some(false))
    }

    /// Returns the block that a fault at the page `at` may map. The page is in `area`, which starts at
    /// `start`.
    pub(super) fn block(&self, start: u64, area: &Area, at: u64) -> Range<u64> {
        let first = at & !(CHUNK - 1);
        let block = first.max(start)..(first + CHUNK).min(area.end);
        let whole = block.end - block.start == CHUNK || self.small;
        if whole && self.may_be_huge(area) { block } else { at..at + PAGE }
    }

    /// Reads from the recording which sizes huge pages of anonymous memory may have. If the setting is not
    /// recorded, any value is possible.
    pub(super) fn ask_for_huge_pages(&mut self, recording: &Recording) {
        if self.always.is_some() {
            return;
        }
        let all = recording.machine("thp").and_then(Thp::of_name);
        let sizes = (2..9).filter_map(|order| recording.thp_of_size(4096 << order, all));
        let sizes: Vec<Thp> = sizes.filter(|thp| *thp != Thp::Never).collect();
        let always = all.is_none_or(|all| all == Thp::Always) || sizes.contains(&Thp::Always);
        (self.always, self.small) = (Some(always), !sizes.is_empty());
    }

    /// Puts `parent` and its copy `child` into the same kin, if they may share huge pages.
    pub(super) fn join_kin(&mut self, processes: &mut Processes, parent: u32, child: u32) {
        let Some(space) = processes.spaces.get(&parent) else { return };
        if !space.areas.iter().any(|(start, area)| self.has_blocks(start, area)) {
            return;
        }
        let mut kin = space.kin;
        if kin == 0 {
            self.last += 1;
            kin = self.last;
            self.by_number.insert(kin, Kin::default());
        }
        for number in [parent, child] {
            if let Some(space) = processes.spaces.get_mut(&number) {
                space.kin = kin;
            }
        }
    }

    /// Returns true if the area was written, may have huge pages, and contains an aligned block of 2 MiB.
    fn has_blocks(&self, start: u64, area: &Area) -> bool {
        let room = start.checked_next_multiple_of(CHUNK).is_some_and(|first| first + CHUNK <= area.end);
        room && area.family != 0 && self.may_be_huge(area)
    }

    /// Plans the order of a fault in address space `number`, if the fault stores to a page that a fork may
    /// have shared. Returns the block if the recording does not determine whether its page stays huge.
    pub(super) fn store_in_kin(
        &mut self,
        processes: &mut Processes,
        waits: &mut Vec<Stamp>,
        number: u32,
        stamp: Stamp,
        fault: &Fault,
    ) -> Option<Range<u64>> {
        let space = processes.spaces.get(&number).filter(|space| space.kin != 0)?;
        if !(fault.code.write() && fault.code.present()) {
            return None;
        }
        let kin = space.kin;
        let at = page_of(fault.address);
        let (start, area) = space.areas.find(at)?;
        let first = at & !(CHUNK - 1);
        let block = first..first + CHUNK;
        if block.start < start || block.end > area.end || !self.has_blocks(start, area) {
            return None;
        }
        let keys = keys(start, area, &block);
        let own = processes.tasks.get_mut(&stamp.task)?;
        self.wait_in_kin(kin, keys, own, stamp, waits);
        let kin = self.by_number.get_mut(&kin)?;
        kin.leaving.retain(|(_, since)| since + SLACK > fault.to);
        if kin.recent.len() == REMEMBERED {
            kin.recent.pop_front();
        }
        let doubtful = !kin.leaving.is_empty();
        kin.recent.push_back(Store { to: fault.to, task: stamp.task, space: number, block: block.clone() });
        doubtful.then_some(block)
    }

    /// Plans the order of a call on memory that may have huge pages.
    pub(super) fn call_in_kin(
        &mut self,
        own: Option<&mut Task>,
        waits: &mut Vec<Stamp>,
        space: &Space,
        reach: &Reach,
        stamp: Stamp,
    ) {
        let Some(own) = own else { return };
        let ranges = match reach {
            Reach::Vmas(ranges) => ranges.clone(),
            Reach::Pages(range) => [range.clone(), 0..0],
            Reach::Whole => return,
        };
        for range in ranges.iter().filter(|range| space.kin != 0 && !range.is_empty()) {
            let areas = space.areas.within(range).filter(|(start, area)| self.has_blocks(*start, area));
            let blocks: Vec<u64> = areas
                .flat_map(|(start, area)| {
                    let first = range.start.max(start) & !(CHUNK - 1);
                    keys(start, area, &(first.max(start)..range.end.min(area.end)))
                })
                .collect();
            self.wait_in_kin(space.kin, blocks.into_iter(), own, stamp, waits);
        }
    }

    /// Adds to `waits` the steps for which a store or call on the blocks `keys` waits. Notes `stamp`, the
    /// step of the store or call, as the last step of these blocks. `own` is the task that makes the step.
    fn wait_in_kin(
        &mut self,
        kin: u32,
        keys: impl Iterator<Item = u64>,
        own: &mut Task,
        stamp: Stamp,
        waits: &mut Vec<Stamp>,
    ) {
        let Some(kin) = self.by_number.get_mut(&kin) else { return };
        let mut any = false;
        for key in keys {
            any = true;
            waits.extend(kin.stores.insert(key, stamp));
        }
        if any {
            waits.extend(&kin.ends[own.exits_known.min(kin.ends.len())..]);
            own.exits_known = kin.ends.len();
        }
    }

    /// Plans the end of an address space whose last task leaves by an exit (`exits` is true) or by an exec
    /// that began at `from`. The end waits for the stores of the kin. Returns `None` if the address space
    /// does not end or belongs to no kin.
    pub(super) fn leave_kin(
        &mut self,
        processes: &mut Processes,
        builder: &mut SegmentBuilder,
        (line, task): (u32, u32),
        from: u64,
        exits: bool,
    ) -> Option<Leaves> {
        let number = processes.space_of(task)?;
        let space =
            processes.spaces.get(&number).filter(|space| space.kin != 0 && space.members == [task])?;
        let kin = space.kin;
        let areas = space.areas.iter().filter(|(start, area)| self.has_blocks(*start, area));
        let blocks: Vec<u64> =
            areas.flat_map(|(start, area)| keys(start, area, &(start..area.end))).collect();
        let mut steps = space.order.departed.clone();
        steps.push(space.order.whole);
        let process = processes.process_of(task).filter(|_| exits && self.tells_ends);
        let own = self.by_number.get_mut(&kin)?;
        let overlaps = |store: &&Store| store.to > from && store.space != number;
        let doubtful: Vec<_> = own
            .recent
            .iter()
            .filter(overlaps)
            .map(|store| (store.task, store.space, store.block.clone()))
            .collect();
        own.leaving.extend(process.map(|process| (process, from)));
        let stores: Vec<Stamp> = blocks.iter().filter_map(|key| own.stores.get(key)).copied().collect();
        for (other, space, block) in doubtful {
            if processes.space_of(other) == Some(space) {
                builder.push(processes, other, line, StepKind::Unsure(Unsure::Size(block)));
            }
        }
        builder.waits.extend(stores);
        Some(Leaves { kin, steps })
    }

    /// Notes that the address space has ended, with the last step of the task that left it.
    pub(super) fn left_kin(&mut self, processes: &mut Processes, task: u32, leaves: Option<Leaves>) {
        let Some(Leaves { kin, mut steps }) = leaves else { return };
        let next = processes.tasks.get(&task).map_or(0, |own| own.next);
        steps.extend(next.checked_sub(1).map(|index| Stamp { task, index }));
        if let Some(own) = processes.tasks.get_mut(&task) {
            own.exits_known = 0;
        }
        if processes.spaces.values().all(|space| space.kin != kin) {
            self.by_number.remove(&kin);
        } else if let Some(own) = self.by_number.get_mut(&kin) {
            own.ends.extend(steps);
        }
    }
}

/// Returns the numbers of the blocks of `range`, in the area that starts at `start`.
fn keys(start: u64, area: &Area, range: &Range<u64>) -> std::ops::RangeInclusive<u64> {
    let linear = |at: u64| area.offset.wrapping_add(at.wrapping_sub(start));
    let (first, last) = (linear(range.start) / CHUNK, linear(range.end.max(range.start + 1) - 1) / CHUNK);
    first..=last.max(first)
}

#[cfg(test)]
#[path = "kin_tests.rs"]
mod tests;
