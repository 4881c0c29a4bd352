//! The pages of an address space that were accessed lately, as far as the recording shows accesses.
//!
//! A recording contains faults, and most accesses cause none. A page is therefore *hot* here if a recorded
//! access to it is at most a second old: a lower bound of the pages that the program used. `perform.rs` adds
//! accesses, and [`Heat::look`] tests which of these pages are in memory. Pages that the program has unmapped
//! or discarded since then do not count.

use super::HOT;
use crate::workers::lock;
use freehold::PageIndex;
use freehold::report::pagemap::{MarkerKind, PageEntry};
use freehold_machine::Process;
use freehold_trace::{Call, CallName};
use std::collections::{BTreeSet, VecDeque};
use std::ops::{ControlFlow, Range};
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

    /// Returns the number of hot pages at `time`, and the number of those that are in memory.
    pub(in super::super) fn look(&self, process: &Process, time: u64) -> (u64, u64) {
        let pages: BTreeSet<u64> = {
            let accesses = lock(&self.accesses);
            accesses.iter().filter(|(then, _)| then + HOT >= time).map(|(_, page)| *page).collect()
        };
        let known: Vec<bool> = pages.into_iter().filter_map(|page| is_in_memory(process, page)).collect();
        (known.len() as u64, known.into_iter().filter(|kept| *kept).count() as u64)
    }
}

/// Returns true if the page is in memory, and false if reclaim has taken it away. Returns `None` if the
/// program does not have the page any more.
fn is_in_memory(process: &Process, page: u64) -> Option<bool> {
    let mut entry = None;
    process.page_entries(page * PAGE..(page + 1) * PAGE, |run| {
        entry = Some(run.entry);
        ControlFlow::Break(())
    });
    match entry {
        Some(PageEntry::Page { .. }) => return Some(true),
        Some(PageEntry::Marker(MarkerKind::Swap)) => return Some(false),
        Some(PageEntry::Marker(_)) => return None,
        Some(PageEntry::Empty) | None => {}
    }
    let vma = process.find_vma(page * PAGE).filter(|vma| vma.start() <= page * PAGE)?;
    let mapping = vma.object().file()?.mapping().clone();
    let index = PageIndex::new(vma.pgoff_of(page * PAGE).get());
    drop(vma);
    Some(mapping.has_page(index))
}
