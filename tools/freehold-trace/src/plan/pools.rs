//! The order of steps that use pools of huge pages.
//!
//! All processes share the machine's pools: an mmap may fail if another process has not unmapped its huge
//! pages yet. So where the recording tells how many pages the pools had, all steps that may take pages from a
//! pool or return some keep the order of the recording, between address spaces too. These are calls about
//! memory of huge pages, faults in it, changes of the length of its files, and exits and execs of processes
//! that map it.

use super::area::flag;
use super::calls::{Reach, Space};
use super::mapped::HUGE;
use super::order::Stamp;
use super::{Planner, calls};
use crate::{Call, CallName};

impl Planner {
    /// Keeps the order of a fault among the steps that use a pool, if address space `number` has huge pages
    /// at `at`.
    pub(super) fn fault_in_pool(&mut self, number: u32, at: u64, stamp: Stamp) {
        let area = self.spaces.get(&number).and_then(|space| space.areas.find(at));
        if area.is_some_and(|(_, area)| area.flags & flag::HUGETLB != 0) {
            self.use_pool(stamp);
        }
    }

    /// Keeps the order of a call that maps huge pages, if `maps`, or concerns some.
    pub(super) fn call_in_pool(&mut self, space: &Space, reach: &Reach, maps: bool, stamp: Stamp) {
        let ranges = match reach {
            Reach::Vmas(ranges) => ranges.clone(),
            Reach::Pages(range) => [range.clone(), 0..0],
            Reach::Whole => return,
        };
        let mut areas = ranges.iter().flat_map(|range| space.areas.within(range));
        if maps || areas.any(|(_, area)| area.flags & flag::HUGETLB != 0) {
            self.use_pool(stamp);
        }
    }

    /// Keeps the order of the next step of `task`, by which it leaves its address space.
    pub(super) fn leave_pool(&mut self, task: u32) {
        let space = self.space_of(task).and_then(|number| self.spaces.get(&number));
        let has_some = |space: &Space| space.areas.iter().any(|(_, area)| area.flags & flag::HUGETLB != 0);
        if space.is_some_and(|space| has_some(space)) {
            self.use_pool(self.stamp(task));
        }
    }

    /// Keeps the order of a step that changes `file`.
    pub(super) fn change_in_pool(&mut self, file: u32, stamp: Stamp) {
        if self.huge.contains_key(&file) {
            self.use_pool(stamp);
        }
    }

    fn use_pool(&mut self, stamp: Stamp) {
        if self.knows_pool(HUGE) {
            self.scratch.push(std::mem::replace(&mut self.pool, stamp));
        }
    }

    /// Notes that what the call has mapped are huge pages.
    pub(super) fn note_huge(&self, space: &mut Space, call: &Call, segment: u64, stamp: Stamp) {
        let bytes = if call.name == CallName::Shmat { segment } else { call.args[1] };
        let Some(at) = call.returned.value() else { return };
        space.areas.change(&calls::span(at, bytes), true, stamp, |area| area.flags |= flag::HUGETLB);
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::tests::{planner_of, waits};

    /// The child has all of the pool until it exits.
    #[test]
    fn a_mapping_of_huge_pages_waits_for_another_process_that_had_some() {
        let child = "7 0 1 N 2 2 0
8 0 2 mmap 0 400000 3 40022 -1 0 = 7e0000000000
9 0 2 F 7e0000000000 6 x1
10 0 2 X g
11 0 1 mmap 0 400000 3 40022 -1 0 = 7e0000000000
12 0 1 mmap 0 400000 3 22 -1 0 = 7d0000000000
";
        for (pool, waits_for) in [("# machine pool-2048kB 2 0\n", vec![(2, 2)]), ("# \n", vec![])] {
            let mut planner = planner_of(2, &format!("{pool}{child}"), "");
            let segment = planner.next_segment().expect("something");
            assert_eq!(waits(&segment, 8), waits_for);
            assert_eq!(waits(&segment, 9), []);
        }
    }

    #[test]
    fn a_fault_in_huge_pages_waits_for_the_munmap_of_another_process() {
        let mut planner = planner_of(
            2,
            "# machine pool-2048kB 2 0
7 0 1 mmap 0 400000 3 40022 -1 0 = 7e0000000000
8 0 1 N 2 2 0
9 0 2 munmap 7e0000000000 400000 = 0
10 0 1 F 7e0000000000 7 x1
11 0 2 F 11000 6 x1
",
            "",
        );
        let segment = planner.next_segment().expect("something");
        assert_eq!(waits(&segment, 7), [(2, 0)]);
        assert_eq!(waits(&segment, 8), []);
    }
}
