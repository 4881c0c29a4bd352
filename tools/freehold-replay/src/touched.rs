//! Pages that recorded faults and calls have touched, in an address space or in its ancestors before the
//! fork.
//!
//! The kernel also takes faults that are not recorded, for O_DIRECT, futexes, vmsplice or /proc/PID/mem.
//! Therefore a page that only Linux has is a difference only if a recorded event has touched it:
//!
//! | a page | a difference if |
//! | --- | --- |
//! | of anonymous memory | a fault has touched it, here or before the fork |
//! | private, in a mapping of a file | a fault has written to it, here or before the fork |
//! | of a file | a fault here has touched it, or has touched another page and may have mapped this page too. Touches before the fork do not count, because a fork does not copy the entry |
//! | any | a call had to bring it in |
//!
//! An unmapped page no longer counts as touched, and a moved page stays touched at its new address. A
//! discarded page stays touched, because Linux had to discard it too. After a process_madvise with unrecorded
//! ranges, any page may be gone. After an unrecorded file has become shorter, any page of a file may be gone.
//!
//! A fork may or may not have copied a page that another thread brought in or freed while the fork ran. Such
//! a page is *unsure* in the child: the page may be present or absent until a store to it, or until a call
//! that frees it.
//!
//! [`Touched`] belongs to one address space (`image.rs`) and has a lock of its own. `perform.rs` updates it
//! after faults, calls and forks; `compare.rs` and `resident.rs` query it. If a touched page is missing here,
//! a difference stays hidden. If a page is recorded here although no event has touched it, the comparison
//! reports a false difference. A call that brings in pages needs an arm in [`Touched::called`], and a call
//! that frees pages needs an arm in `Touched::gone`.

use super::TASK_SIZE;
use super::maps::lines_in;
use super::runs::Runs;
use super::workers::lock;
use freehold::vma::flags::VmFlags;
use freehold_machine::Process;
use freehold_trace::plan::Unsure;
use freehold_trace::{Call, CallName};
use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

const PAGE: u64 = 4096;
/// Number of pages in a block, which has one bit for each page.
const BLOCK: u64 = 64;
const MAP_FIXED: u64 = 0x10;
const MAP_POPULATE: u64 = 0x8000;
const MAP_NONBLOCK: u64 = 0x1_0000;
const MCL_CURRENT: u64 = 1;
const POPULATE: [u64; 2] = [22, 23];
/// Advice that frees pages immediately.
const DISCARD: [u64; 2] = [4, 24];

/// The way in which a page was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    Read,
    Written,
    /// A fault on another page mapped this page, or may have mapped it.
    Along,
}

/// The kind of page in a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// A page of anonymous memory.
    Anonymous,
    /// A private page in a mapping of a file.
    Copy,
    /// A page of a file itself.
    File,
}

/// The touched pages.
#[derive(Default)]
pub(super) struct Touched(Mutex<Both>);

/// Pages touched in this address space, and pages touched in its ancestors before the fork.
#[derive(Default)]
struct Both {
    here: Pages,
    before: Pages,
}

/// Touched pages, and pages about which the recording leaves a doubt.
#[derive(Clone, Default)]
struct Pages {
    /// Touched pages by block number, with one bit mask for each way.
    blocks: BTreeMap<u64, [u64; 3]>,
    /// Numbers of the pages that calls had to bring in.
    ranges: Vec<Range<u64>>,
    /// A call has freed pages at unknown addresses.
    lacks: bool,
    /// Page numbers at which a file may have lost pages since they were last touched.
    cut: Vec<Range<u64>>,
    /// Page numbers that a fork may or may not have copied.
    unsure: Vec<Range<u64>>,
    /// Page numbers that may or may not belong to huge pages.
    unsure_size: Vec<Range<u64>>,
}

/// The state of some pages, which `Pages::take` has removed. After an mremap, `Pages::put` stores the state
/// at other page numbers.
struct Taken {
    blocks: Vec<(u64, [u64; 3])>,
    ranges: Vec<Range<u64>>,
    unsure: Vec<Range<u64>>,
    unsure_size: Vec<Range<u64>>,
}

impl Touched {
    /// Records that a fault on the pages of these addresses succeeded. The range must be small.
    pub(super) fn pages(&self, addresses: Range<u64>, how: Touch) {
        let Both { here, before } = &mut *self.lock();
        if how == Touch::Written {
            let numbers = addresses.start / PAGE..addresses.end.div_ceil(PAGE);
            let doubts = [&mut here.cut, &mut before.cut, &mut here.unsure, &mut before.unsure];
            let doubts = doubts.into_iter().filter(|doubt| !doubt.is_empty());
            doubts.for_each(|doubt| without(doubt, &numbers));
        }
        let blocks = &mut here.blocks;
        for page in addresses.start / PAGE..addresses.end.div_ceil(PAGE) {
            blocks.entry(page / BLOCK).or_default()[how as usize] |= 1 << (page % BLOCK);
        }
    }

    /// Records a call. The pages that the call had to bring in count as touched. `locked` returns the parts
    /// of a range that are locked now, except the parts that are locked on fault.
    pub(super) fn called(&self, call: &Call, locked: impl FnOnce(Range<u64>) -> Vec<Range<u64>>) {
        self.gone(call);
        let Some(value) = call.returned.value() else { return };
        let [at, len, third, flags, ..] = call.args;
        let whole = |start: u64| iter::once(start..start.saturating_add(len)).collect();
        let brought: Vec<Range<u64>> = match call.name {
            CallName::Mmap if flags & (MAP_POPULATE | MAP_NONBLOCK) == MAP_POPULATE => whole(value),
            CallName::Madvise if POPULATE.contains(&third) => whole(at),
            CallName::Mmap => locked(value..value.saturating_add(len)),
            CallName::Mlock | CallName::Mlock2 => locked(at..at.saturating_add(len)),
            CallName::Mremap if third > len => locked(value.saturating_add(len)..value.saturating_add(third)),
            CallName::Mlockall if at & MCL_CURRENT != 0 => locked(0..TASK_SIZE),
            CallName::ProcessMadvise if call.transfer.is_none() && DISCARD.contains(&flags) => {
                return self.lock().here.lacks = true;
            }
            _ => return,
        };
        let pages = brought.into_iter().map(|range| range.start / PAGE..range.end.div_ceil(PAGE));
        self.lock().here.ranges.extend(pages);
    }

    /// Removes the state of the pages that the call has freed.
    fn gone(&self, call: &Call) {
        let [at, len, third, flags, to, _] = call.args;
        let done = call.returned.value();
        match call.name {
            CallName::Munmap if done.is_some() => self.forget(at, len),
            // Even a refused call may have unmapped pages.
            CallName::Mmap if flags & MAP_FIXED != 0 => self.forget(at, len),
            CallName::Mmap => done.map_or((), |to| self.forget(to, len)),
            CallName::Madvise if done.is_some() && DISCARD.contains(&third) => self.is_sure(at, len),
            CallName::Mremap => match done {
                Some(to) if to == at => self.forget(at.saturating_add(third), len.saturating_sub(third)),
                Some(to) => self.move_pages(at, len, to, third),
                None => self.forget(to, third),
            },
            _ => {}
        }
    }

    /// Moves the state of `len` bytes at `at` to `to`, limited to `new` bytes.
    fn move_pages(&self, at: u64, len: u64, to: u64, new: u64) {
        self.forget(to, new);
        let from = at / PAGE..at.saturating_add(len.min(new)).div_ceil(PAGE);
        let mut both = self.lock();
        let Both { here, before } = &mut *both;
        for pages in [here, before] {
            let moved = pages.take(&from);
            pages.put(moved, (to / PAGE).wrapping_sub(at / PAGE));
        }
        drop(both);
        self.forget(at, len);
    }

    /// Removes all state of a range that was unmapped or replaced.
    fn forget(&self, at: u64, len: u64) {
        let pages = at / PAGE..at.saturating_add(len).div_ceil(PAGE);
        let mut both = self.lock();
        both.here.take(&pages);
        both.before.take(&pages);
    }

    /// Ends all doubts about pages that a call has discarded.
    fn is_sure(&self, at: u64, len: u64) {
        let pages = at / PAGE..at.saturating_add(len).div_ceil(PAGE);
        let Both { here, before } = &mut *self.lock();
        let doubts = [&mut here.unsure, &mut before.unsure, &mut here.unsure_size, &mut before.unsure_size];
        doubts.into_iter().filter(|doubt| !doubt.is_empty()).for_each(|doubt| without(doubt, &pages));
    }

    /// Records pages whose presence or size the recording does not determine.
    pub(super) fn is_unsure(&self, of: &Unsure) {
        let here = &mut self.lock().here;
        let (doubt, range) = match of {
            Unsure::Pages(range) => (&mut here.unsure, range),
            Unsure::Size(range) => (&mut here.unsure_size, range),
        };
        doubt.push(range.start / PAGE..range.end.div_ceil(PAGE));
    }

    /// Returns the numbers of the pages that may or may not be present.
    pub(super) fn unsure(&self) -> Runs {
        let both = self.lock();
        ascending([&both.here.unsure, &both.before.unsure])
    }

    /// Returns the numbers of the pages that may or may not be huge.
    pub(super) fn unsure_size(&self) -> Runs {
        let Both { here, before } = &*self.lock();
        ascending([&here.unsure, &before.unsure, &here.unsure_size, &before.unsure_size])
    }

    /// Records that pages of a file, and copies of them, may be gone in this range of addresses.
    pub(super) fn cut(&self, range: &Range<u64>) {
        self.lock().here.cut.push(range.start / PAGE..range.end.div_ceil(PAGE));
    }

    /// Returns true if the page with number `page` may be gone because its file lost it.
    pub(super) fn may_be_cut(&self, page: u64) -> bool {
        let both = self.lock();
        both.here.cut.iter().chain(&both.before.cut).any(|range| range.contains(&page))
    }

    /// Returns true if a recorded fault has written to the page with number `page`, here or before the fork.
    pub(super) fn was_written(&self, page: u64) -> bool {
        let both = self.lock();
        [&both.here, &both.before].iter().any(|pages| pages.has(page, &[Touch::Written]))
    }

    /// Returns true if a recorded fault has written to one of these page numbers since the fork.
    pub(super) fn was_written_here(&self, pages: &Range<u64>) -> bool {
        let both = self.lock();
        let mut blocks = both.here.blocks.range(pages.start / BLOCK..pages.end.div_ceil(BLOCK));
        blocks.any(|(_, block)| block[Touch::Written as usize] != 0)
    }

    /// Returns the state of a child after a fork.
    pub(super) fn forked(&self) -> Touched {
        let parent = self.lock();
        let mut before = parent.before.clone();
        before.add(&parent.here);
        Touched(Mutex::new(Both { here: Pages::default(), before }))
    }

    /// Returns true if, after the recorded events, a page of kind `of` must be present at page number `page`.
    pub(super) fn contains(&self, page: u64, of: Of) -> bool {
        let both = self.lock();
        both.here.contains(page, of) || of != Of::File && both.before.contains(page, of)
    }

    /// Returns true if a call may have freed pages at addresses that are not recorded.
    pub(super) fn may_lack_pages(&self) -> bool {
        let both = self.lock();
        both.here.lacks || both.before.lacks
    }

    fn lock(&self) -> MutexGuard<'_, Both> {
        lock(&self.0)
    }
}

impl Pages {
    fn contains(&self, page: u64, of: Of) -> bool {
        let ways: &[Touch] = match of {
            Of::Anonymous => &[Touch::Read, Touch::Written],
            Of::Copy => &[Touch::Written],
            Of::File => &[Touch::Read, Touch::Written, Touch::Along],
        };
        self.has(page, ways) || self.ranges.iter().any(|range| range.contains(&page))
    }

    /// Returns true if a fault has touched the page in one of these ways.
    fn has(&self, page: u64, ways: &[Touch]) -> bool {
        let block = self.blocks.get(&(page / BLOCK));
        block.is_some_and(|block| ways.iter().any(|&how| block[how as usize] >> (page % BLOCK) & 1 != 0))
    }

    /// Adds the state of `other`.
    fn add(&mut self, other: &Pages) {
        for (block, pages) in &other.blocks {
            let own = self.blocks.entry(*block).or_default();
            own.iter_mut().zip(pages).for_each(|(own, pages)| *own |= pages);
        }
        self.ranges.extend_from_slice(&other.ranges);
        self.lacks |= other.lacks;
        self.cut.extend_from_slice(&other.cut);
        self.unsure.extend_from_slice(&other.unsure);
        self.unsure_size.extend_from_slice(&other.unsure_size);
    }

    /// Removes and returns the state of the page numbers `pages`: blocks, and ranges that calls brought in.
    fn take(&mut self, pages: &Range<u64>) -> Taken {
        let mut taken = Vec::new();
        for (number, block) in self.blocks.range_mut(pages.start / BLOCK..pages.end.div_ceil(BLOCK)) {
            let first = number * BLOCK;
            let mask = |end: u64| if end >= BLOCK { u64::MAX } else { (1 << end) - 1 };
            let within = mask(pages.end.saturating_sub(first)) & !mask(pages.start.saturating_sub(first));
            taken.push((*number, block.map(|bits| bits & within)));
            *block = block.map(|bits| bits & !within);
        }
        let cut = |range: &Range<u64>| range.start.max(pages.start)..range.end.min(pages.end);
        let take = |ranges: &mut Vec<Range<u64>>| {
            let taken = ranges.iter().map(cut).filter(|range| range.start < range.end).collect();
            without(ranges, pages);
            taken
        };
        let ranges = take(&mut self.ranges);
        let (unsure, unsure_size) = (take(&mut self.unsure), take(&mut self.unsure_size));
        without(&mut self.cut, pages);
        Taken { blocks: taken, ranges, unsure, unsure_size }
    }

    /// Puts back what [`take`](Self::take) took out, shifted by `by` pages.
    fn put(&mut self, Taken { blocks, ranges, unsure, unsure_size }: Taken, by: u64) {
        for (number, block) in blocks {
            for bit in 0..BLOCK {
                for (how, bits) in block.iter().enumerate() {
                    if bits >> bit & 1 != 0 {
                        let page = (number * BLOCK + bit).wrapping_add(by);
                        self.blocks.entry(page / BLOCK).or_default()[how] |= 1 << (page % BLOCK);
                    }
                }
            }
        }
        let moved = |range: Range<u64>| range.start.wrapping_add(by)..range.end.wrapping_add(by);
        self.ranges.extend(ranges.into_iter().map(moved));
        self.unsure.extend(unsure.into_iter().map(moved));
        self.unsure_size.extend(unsure_size.into_iter().map(moved));
    }
}

/// Returns the parts of `range` that are locked, except the parts that are locked on fault.
pub(super) fn locked(process: &Process, range: Range<u64>) -> Vec<Range<u64>> {
    let lines = lines_in(process, range.clone());
    let locked = lines.filter(|line| line.flags & VmFlags::LOCK_MASK == VmFlags::LOCKED);
    locked.map(|line| line.start.max(range.start)..line.end.min(range.end)).collect()
}

/// Returns the pages of all ranges, ascending.
fn ascending<const N: usize>(lists: [&Vec<Range<u64>>; N]) -> Runs {
    let mut all: Vec<_> = lists.into_iter().flatten().cloned().collect();
    all.sort_unstable_by_key(|range| range.start);
    let mut end = 0;
    let behind = all.into_iter().filter_map(|range| {
        let rest = range.start.max(end)..range.end;
        end = end.max(range.end);
        (!rest.is_empty()).then_some(rest)
    });
    behind.collect()
}

/// Removes `gone` from ranges.
fn without(ranges: &mut Vec<Range<u64>>, gone: &Range<u64>) {
    let parts =
        |range: &Range<u64>| [range.start..range.end.min(gone.start), range.start.max(gone.end)..range.end];
    let left: Vec<_> = ranges.iter().flat_map(parts).filter(|range| range.start < range.end).collect();
    *ranges = left;
}

#[cfg(test)]
mod tests {
    use super::*;
    use freehold_trace::Returned;

    #[test]
    fn fork_keeps_touched_anonymous_pages_and_drops_file_pages() {
        let parent = Touched::default();
        parent.pages(0..PAGE, Touch::Read);
        parent.pages(PAGE..2 * PAGE, Touch::Written);
        parent.pages(2 * PAGE..4 * PAGE, Touch::Along);
        let has =
            |touched: &Touched, of| (0..5).filter(|&page| touched.contains(page, of)).collect::<Vec<_>>();
        assert_eq!(has(&parent, Of::Anonymous), [0, 1]);
        assert_eq!(has(&parent, Of::Copy), [1]);
        assert_eq!(has(&parent, Of::File), [0, 1, 2, 3]);
        let grandchild = parent.forked().forked();
        assert_eq!(has(&grandchild, Of::Anonymous), [0, 1]);
        assert_eq!(has(&grandchild, Of::File), [0; 0]);
        assert!(!grandchild.may_lack_pages());
        parent.lock().here.lacks = true;
        assert!(parent.forked().forked().may_lack_pages() && !grandchild.may_lack_pages());
        grandchild.pages(4 * PAGE..4 * PAGE + 1, Touch::Read);
        assert_eq!(has(&grandchild, Of::File), [4]);
    }

    fn call(name: CallName, args: [u64; 6], returned: Returned) -> Call {
        Call { name, args, returned, file: None, transfer: None, beside: Vec::new() }
    }

    /// Stands for a call that locked nothing.
    fn nothing(_: Range<u64>) -> Vec<Range<u64>> {
        Vec::new()
    }

    #[test]
    fn pages_locked_after_a_call_count_as_touched() {
        let touched = Touched::default();
        let locked = |range: Range<u64>| iter::once(range.start..range.end.min(3 * PAGE)).collect();
        let all = |how| call(CallName::Mlockall, [how, 0, 0, 0, 0, 0], Returned::Value(0));
        let has = || (0..9).filter(|&page| touched.contains(page, Of::Copy)).collect::<Vec<_>>();
        // MCL_FUTURE alone brings in no pages.
        touched.called(&all(2), locked);
        assert_eq!(has(), [0; 0]);
        touched.called(&all(1), locked);
        assert_eq!(has(), [0, 1, 2]);
        let map = |at| call(CallName::Mmap, [0, PAGE, 3, 0x22, 0, 0], Returned::Value(at));
        touched.called(&map(5 * PAGE), nothing);
        touched.called(&map(6 * PAGE), |range| vec![range]);
        let grown = call(CallName::Mremap, [6 * PAGE, PAGE, 2 * PAGE, 1, 0, 0], Returned::Value(6 * PAGE));
        touched.called(&grown, |range| vec![range]);
        assert_eq!(has(), [0, 1, 2, 6, 7]);
    }

    #[test]
    fn unmapped_pages_no_longer_count_as_touched() {
        let touched = Touched::default();
        let has = || (0..200).filter(|&page| touched.contains(page, Of::Copy)).collect::<Vec<_>>();
        touched.pages(60 * PAGE..68 * PAGE, Touch::Written);
        let lock = call(CallName::Mlock, [100 * PAGE, 4 * PAGE, 0, 0, 0, 0], Returned::Value(0));
        touched.called(&lock, |range| vec![range]);
        touched
            .called(&call(CallName::Munmap, [62 * PAGE, 3 * PAGE, 0, 0, 0, 0], Returned::Value(0)), nothing);
        touched.called(&call(CallName::Munmap, [60 * PAGE, 1, 0, 0, 0, 0], Returned::Error(22)), nothing);
        assert_eq!(has(), [60, 61, 65, 66, 67, 100, 101, 102, 103]);
        // Two of four pages move. The other two pages are unmapped.
        let to = 130 * PAGE;
        touched.called(
            &call(CallName::Mremap, [65 * PAGE, 4 * PAGE, 2 * PAGE, 3, to, 0], Returned::Value(to)),
            nothing,
        );
        touched.called(
            &call(CallName::Mremap, [100 * PAGE, 3 * PAGE, 3 * PAGE, 3, 0, 0], Returned::Value(0)),
            nothing,
        );
        assert_eq!(has(), [0, 1, 2, 60, 61, 103, 130, 131]);
    }

    #[test]
    fn doubt_about_a_page_ends_with_a_store_a_discard_or_an_unmap() {
        let parent = Touched::default();
        parent.is_unsure(&Unsure::Pages(10 * PAGE..16 * PAGE));
        parent.is_unsure(&Unsure::Size(12 * PAGE..18 * PAGE));
        let child = parent.forked();
        child.pages(10 * PAGE..10 * PAGE + 1, Touch::Written);
        child.pages(11 * PAGE..11 * PAGE + 1, Touch::Read);
        child.called(&call(CallName::Munmap, [12 * PAGE, PAGE, 0, 0, 0, 0], Returned::Value(0)), nothing);
        child.called(&call(CallName::Madvise, [13 * PAGE, PAGE, 4, 0, 0, 0], Returned::Value(0)), nothing);
        let moved = [15 * PAGE, 2 * PAGE, 2 * PAGE, 3, 30 * PAGE, 0];
        child.called(&call(CallName::Mremap, moved, Returned::Value(30 * PAGE)), nothing);
        let pages = |runs: Runs| runs.runs().flatten().collect::<Vec<_>>();
        assert_eq!(pages(parent.unsure()), [10, 11, 12, 13, 14, 15]);
        assert_eq!(pages(parent.unsure_size()), [10, 11, 12, 13, 14, 15, 16, 17]);
        assert_eq!(pages(child.unsure()), [11, 14, 30]);
        assert_eq!(pages(child.unsure_size()), [11, 14, 17, 30, 31]);
    }

    #[test]
    fn page_that_a_file_may_have_lost_is_sure_after_a_write() {
        let parent = Touched::default();
        parent.cut(&(10 * PAGE..14 * PAGE));
        let child = parent.forked();
        child.pages(11 * PAGE..11 * PAGE + 1, Touch::Written);
        child.called(&call(CallName::Munmap, [13 * PAGE, PAGE, 0, 0, 0, 0], Returned::Value(0)), nothing);
        let cut = |touched: &Touched| (9..15).filter(|&page| touched.may_be_cut(page)).collect::<Vec<_>>();
        assert_eq!((cut(&parent), cut(&child)), (vec![10, 11, 12, 13], vec![10, 12]));
    }
}
