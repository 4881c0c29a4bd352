//! The order of steps that use pools of huge pages.
//!
//! All processes share the machine's pools: an mmap may fail because another process has not unmapped its
//! huge pages yet. If the recording contains the sizes of the pools, all steps that may take pages from a
//! pool or return pages to it keep the order of the recording, between address spaces too. These steps are
//! calls on memory with huge pages, faults in such memory, changes of the length of files with huge pages,
//! and exits and execs of processes that map huge pages.
//!
//! [`Pool`] is a part of the planner; other files use it through `Planner::use_pool` and similar functions in
//! `planner.rs`. The tests at the end show the waits.

use super::area::flag;
use super::order::Stamp;
use super::space::{HUGE, Reach, Space};
use crate::addresses::span;
use crate::{Call, CallName, Recording};

/// The order of steps that use the machine's pools.
#[derive(Default)]
pub(super) struct Pool {
    /// The last step that used a pool of huge pages. All pools share one order.
    last: Stamp,
}

impl Pool {
    /// Returns true if the recording contains the size of the pool of huge pages of `bytes` bytes.
    pub(super) fn is_known(recording: &Recording, bytes: u64) -> bool {
        recording.machine(&format!("pool-{}kB", bytes >> 10)).is_some()
    }

    /// Notes that step `stamp` uses a pool, and makes the step wait for the previous step that used a pool.
    /// Does nothing if the recording does not contain the size of the pool of 2 MiB pages.
    pub(super) fn use_in_order(&mut self, recording: &Recording, stamp: Stamp, waits: &mut Vec<Stamp>) {
        if Pool::is_known(recording, HUGE) {
            waits.push(std::mem::replace(&mut self.last, stamp));
        }
    }

    /// Forgets the steps so far: later steps do not wait for them.
    pub(super) fn forget_order(&mut self) {
        self.last = Stamp::START;
    }
}

impl Space {
    /// Returns true if huge pages of a pool are mapped at `at`.
    pub(super) fn has_pool_page(&self, at: u64) -> bool {
        self.areas.find(at).is_some_and(|(_, area)| area.flags & flag::HUGETLB != 0)
    }

    /// Returns true if huge pages of a pool are mapped anywhere.
    pub(super) fn has_pool_pages(&self) -> bool {
        self.areas.iter().any(|(_, area)| area.flags & flag::HUGETLB != 0)
    }

    /// Returns true if a call with this reach concerns huge pages of a pool. `maps` is true if the call maps
    /// such pages.
    pub(super) fn uses_pool(&self, reach: &Reach, maps: bool) -> bool {
        let ranges = match reach {
            Reach::Vmas(ranges) => ranges.clone(),
            Reach::Pages(range) => [range.clone(), 0..0],
            Reach::Whole => return false,
        };
        let mut areas = ranges.iter().flat_map(|range| self.areas.within(range));
        maps || areas.any(|(_, area)| area.flags & flag::HUGETLB != 0)
    }

    /// Notes that the call has mapped huge pages of a pool. `segment` is the size in bytes of the segment
    /// that shmat attached.
    pub(super) fn note_huge(&mut self, call: &Call, segment: u64, stamp: Stamp) {
        let bytes = if call.name == CallName::Shmat { segment } else { call.args[1] };
        let Some(at) = call.returned.value() else { return };
        self.areas.change(&span(at, bytes), true, stamp, |area| area.flags |= flag::HUGETLB);
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::tests::{planner_of, waits};

    /// The child uses the entire pool until its exit.
    #[test]
    fn mmap_of_huge_pages_waits_for_the_exit_of_another_user() {
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
    fn fault_in_huge_pages_waits_for_the_munmap_of_another_process() {
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
