//! The pages of an address space that were accessed lately, as far as the recording shows accesses.
//!
//! A recording contains faults, and most accesses cause none. A page is therefore *hot* here if a recorded
//! access to it is at most a second old: a lower bound of the pages that the program used. `perform.rs` adds
//! accesses, and [`Heat::hot`] tests which of these pages are in memory. Pages that the program has unmapped
//! or discarded since then do not count.
//!
//! The hot pages of all processes may need more memory than there is. [`Hot::fit`] is therefore the number of
//! hot pages that exact LRU, which knows all recorded accesses, would have in memory.

use super::HOT;
use crate::workers::lock;
use freehold::PageIndex;
use freehold::report::pagemap::{MarkerKind, PageEntry, PageKind};
use freehold_machine::Process;
use freehold_trace::{Call, CallName};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{ControlFlow, Range};
use std::ptr;
use std::sync::Mutex;

const PAGE: u64 = 4096;
const MADV_FREE: u64 = 8;

/// The accesses of the last second, and the pages that may be lost.
#[derive(Default)]
pub(in super::super) struct Heat {
    /// Times in the recording, and page numbers, in the order of the replay.
    accesses: Mutex<VecDeque<(u64, u64)>>,
    /// The pages that the last sample of accesses was taken to mean.
    pub(super) sample: Mutex<BTreeSet<u64>>,
    /// The pages that the program has freed lazily, which may go without a write.
    lazy: Mutex<Vec<Range<u64>>>,
}

impl Heat {
    /// Adds an access at this time to the page of `address`.
    pub(in super::super) fn access(&self, time: u64, address: u64) {
        let mut accesses = lock(&self.accesses);
        while accesses.front().is_some_and(|(then, _)| then + HOT < time) {
            accesses.pop_front();
        }
        accesses.push_back((time, address / PAGE));
    }

    /// Returns the numbers of the pages with recorded accesses since this time, at most [`HOT`] ago.
    pub(super) fn accessed_since(&self, time: u64) -> BTreeSet<u64> {
        lock(&self.accesses).iter().filter(|(then, _)| *then >= time).map(|(_, page)| *page).collect()
    }

    /// Records the pages that a call frees lazily.
    pub(in super::super) fn called(&self, call: &Call) {
        let [at, len, advice, ..] = call.args;
        if call.name == CallName::Madvise && advice == MADV_FREE {
            lock(&self.lazy).push(at / PAGE..at.saturating_add(len).div_ceil(PAGE));
        }
    }

    /// Returns true if the page with this number may have been freed lazily, here or before a fork.
    pub(in super::super) fn may_be_lazy(&self, page: u64) -> bool {
        lock(&self.lazy).iter().any(|range| range.contains(&page))
    }

    /// Takes over the lazily freed pages of the parent after a fork.
    pub(in super::super) fn inherit(&self, parent: &Heat) {
        lock(&self.lazy).clone_from(&lock(&parent.lazy));
    }

    /// Returns the pages of `process` that are hot at `time`.
    pub(in super::super) fn hot(&self, process: &Process, time: u64) -> Vec<HotPage> {
        let mut last = BTreeMap::<u64, u64>::new();
        for (then, page) in lock(&self.accesses).iter().filter(|(then, _)| then + HOT >= time) {
            last.insert(*page, *then);
        }
        last.into_iter().filter_map(|(page, last)| HotPage::find(process, page, last)).collect()
    }
}

/// A page that was accessed lately, and that the program still has.
pub(in super::super) struct HotPage {
    /// The time of the last access in the recording.
    last: u64,
    /// The place of the page. The places of two pages are equal only if the pages are the same.
    place: Place,
    /// True if the page is in memory.
    kept: bool,
}

/// The place of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// A page of the file with this address.
    File(usize, u64),
    /// The anonymous page in the frame with this number.
    Frame(u64),
    /// A swapped page, at this page of the process with this address.
    Swap(usize, u64),
}

impl HotPage {
    /// Finds the page with this number. Returns `None` if the program does not have the page any more.
    fn find(process: &Process, page: u64, last: u64) -> Option<HotPage> {
        let mut entry = PageEntry::Empty;
        process.page_entries(page * PAGE..(page + 1) * PAGE, |run| {
            entry = run.entry;
            ControlFlow::Break(())
        });
        let (place, kept) = match entry {
            PageEntry::Page { kind: PageKind::File, .. } | PageEntry::Empty => {
                let vma = process.find_vma(page * PAGE).filter(|vma| vma.start() <= page * PAGE)?;
                let mapping = vma.object().file()?.mapping().clone();
                let index = PageIndex::new(vma.pgoff_of(page * PAGE).get());
                drop(vma);
                let kept = entry != PageEntry::Empty || mapping.has_page(index);
                (Place::File(ptr::from_ref(&*mapping).addr(), index.get()), kept)
            }
            PageEntry::Page { .. } => (Place::Frame(process.frame_at(page * PAGE)?.get()), true),
            PageEntry::Marker(MarkerKind::Swap) => {
                (Place::Swap(ptr::from_ref(&**process.space()).addr(), page), false)
            }
            PageEntry::Marker(_) => return None,
        };
        Some(HotPage { last, place, kept })
    }
}

impl HotPage {
    /// Returns true if the page is hot at `time`.
    pub(super) fn is_hot(&self, time: u64) -> bool {
        self.last + HOT >= time
    }

    /// Returns true if the page is a page of a file.
    pub(super) fn is_of_file(&self) -> bool {
        matches!(self.place, Place::File(..))
    }
}

/// Numbers of hot pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hot {
    /// Hot pages that were looked at.
    pub pages: u64,
    /// The pages of these that were in memory.
    pub kept: u64,
    /// The pages of these that are in memory if memory always holds the pages with the latest accesses.
    pub fit: u64,
    /// The largest number of hot pages at a time, with those of processes that have ended.
    pub most: u64,
}

impl Hot {
    /// Counts the hot pages `pages` of a process. `all` are the hot pages of all processes, and `frames` is
    /// the number of pages that fit into memory.
    pub(super) fn count<'p>(
        pages: &'p [HotPage],
        all: impl Iterator<Item = &'p HotPage>,
        frames: u64,
    ) -> Hot {
        let mut places = BTreeMap::<Place, u64>::new();
        for page in all.chain(pages) {
            places.entry(page.place).and_modify(|last| *last = page.last.max(*last)).or_insert(page.last);
        }
        let most = places.len() as u64;
        let mut latest: Vec<(u64, Place)> = places.into_iter().map(|(place, last)| (last, place)).collect();
        latest.sort_unstable_by(|a, b| b.cmp(a));
        let fitting: BTreeSet<Place> =
            latest.into_iter().take(frames as usize).map(|(_, place)| place).collect();
        Hot {
            pages: pages.len() as u64,
            kept: pages.iter().filter(|page| page.kept).count() as u64,
            most,
            fit: pages.iter().filter(|page| fitting.contains(&page.place)).count() as u64,
        }
    }

    /// Adds other numbers.
    pub(super) fn add(&mut self, other: Hot) {
        self.pages += other.pages;
        self.kept += other.kept;
        self.fit += other.fit;
        self.most = self.most.max(other.most);
    }
}
