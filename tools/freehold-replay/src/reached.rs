//! Pages of files that an address space may have mapped. A recorded fault or call *explains* such a page: the
//! event mapped the page, or may have mapped it together with another page.
//!
//! [`Reached`] belongs to one address space, and has a lock of its own because the tasks of the address space
//! run concurrently. `perform.rs` updates it after each fault and call, `opened.rs` after a change of a file.
//! `resident.rs` compares snapshots with these pages; `touched.rs` keeps the pages that recorded events have
//! touched. Linux must have a page that is `Faulted`, and may lack a page that came `Along` ([`MappedBy`]).
//! The tests about pages of files in `tests/small.rs` check both.

use super::TASK_SIZE;
use super::workers::lock;
use freehold::fault::Access;
use freehold::report::pagemap::PageKind;
use freehold_machine::{Cpu, Process};
use freehold_pagetable::X86_4;
use freehold_trace::Call;
use freehold_trace::CallName::{Madvise, Mlock, Mlock2, Mlockall, Mmap, Mremap, Munmap, Shmat, Shmdt};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

const PAGE: u64 = 4096;
/// Largest number of bytes that a read fault maps.
pub(super) const AROUND: u64 = 16 * PAGE;
/// Advice that frees or brings in pages: DONTNEED, REMOVE, PAGEOUT, POPULATE_READ and _WRITE,
/// DONTNEED_LOCKED, GUARD_INSTALL.
const TAKES_OR_BRINGS: [u64; 7] = [4, 9, 21, 22, 23, 24, 102];
/// Advice that frees pages only where possible.
const PAGEOUT: u64 = 21;

/// The pages that a fault on a file may map in addition to its own.
pub(super) struct Around {
    /// The range that a read fault maps, up to the end of the file. Empty for other faults.
    pub(super) window: Range<u64>,
    /// The fault maps the file's own page, not a copy.
    pub(super) maps: bool,
    /// The range in which the fault may map blocks of shared memory. Empty if the fault maps no blocks.
    pub(super) blocks: Range<u64>,
}

impl Around {
    /// Returns the range that the fault maps, as far as the pages are in the page cache.
    pub(super) fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    /// Handles a recorded read fault at `at` if the engine has the page already. In this case an earlier
    /// fault mapped the page in the engine, but not on Linux, because the page was not in Linux's page cache.
    /// Maps the missing pages of the fault's window, by a fault on the first of them. Returns true if a page
    /// was missing and is now mapped.
    pub(super) fn map_rest(&self, process: &Process, cpu: &mut Cpu<X86_4>, at: u64) -> bool {
        // Beyond this block a fault would have another window.
        let block = at & !(AROUND - 1);
        let range = self.window.start.max(block)..self.window.end.min(block + AROUND);
        let mut missing = range.start;
        process.pagemap(range.clone(), |present| {
            if present.range.start() <= missing {
                missing = present.range.end().max(missing);
            }
        });
        missing < range.end && process.touch(cpu, missing, Access::READ).is_ok()
    }
}

/// The way in which a page of a file came to be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MappedBy {
    /// A recorded fault ended at the page, so Linux had mapped it.
    Faulted,
    /// A call brought the page in, or a fault on another page mapped this page if it was in the page cache.
    Along,
}

/// The pages of files that an address space may have mapped, by page number. Recorded faults explain each
/// page until an event frees it. The plan keeps the order between calls and the faults around them.
#[derive(Default)]
pub(super) struct Reached(Mutex<BTreeMap<u64, MappedBy>>);

impl Reached {
    /// Records that a fault on a file's page at `at` succeeded.
    pub(super) fn fault(&self, at: u64, around: &Around) {
        let mut pages = self.pages();
        for page in around.window.start / PAGE..around.window.end / PAGE {
            pages.entry(page).or_insert(MappedBy::Along);
        }
        if around.maps {
            pages.insert(at / PAGE, MappedBy::Faulted);
        }
    }

    /// Updates the pages after a call: removes the pages that the call freed and adds those that it brought
    /// in.
    pub(super) fn called(&self, process: &Process, call: &Call) {
        let args = &call.args;
        match call.name {
            Munmap | Mlock | Mlock2 => self.follow(process, args[0], args[1]),
            Madvise if TAKES_OR_BRINGS.contains(&args[2]) => {
                self.follow(process, args[0], args[1]);
                if args[2] == PAGEOUT {
                    // A PAGEOUT unmaps pages that were not in use, even if they stay in memory.
                    let end = args[0].saturating_add(args[1]).min(TASK_SIZE).next_multiple_of(PAGE);
                    self.doubt(&(args[0].min(end)..end));
                }
            }
            Mmap | Mremap => {
                self.follow(process, args[0], args[1]);
                let len = if call.name == Mmap { args[1] } else { args[2] };
                self.follow(process, call.returned.value().unwrap_or(args[4]), len);
            }
            Shmat | Shmdt | Mlockall => self.follow(process, 0, TASK_SIZE),
            _ => {}
        }
    }

    /// Sets the pages in `len` bytes from `at` to the pages that the engine has there: removes all others,
    /// and adds the missing ones.
    pub(super) fn follow(&self, process: &Process, at: u64, len: u64) {
        let end = at.saturating_add(len).min(TASK_SIZE).next_multiple_of(PAGE);
        let range = (at & !(PAGE - 1)).min(end)..end;
        let mut there = BTreeSet::new();
        process.pagemap(range.clone(), |present| {
            if present.kind == PageKind::File {
                there.extend(present.range.start() / PAGE..present.range.end() / PAGE);
            }
        });
        let mut pages = self.pages();
        let known = range.start / PAGE..range.end / PAGE;
        let gone: Vec<u64> =
            pages.range(known).map(|(page, _)| *page).filter(|page| !there.contains(page)).collect();
        gone.iter().for_each(|page| {
            pages.remove(page);
        });
        there.into_iter().for_each(|page| {
            pages.entry(page).or_insert(MappedBy::Along);
        });
    }

    /// Records that pages in `range` may be gone.
    pub(super) fn doubt(&self, range: &Range<u64>) {
        let mut pages = self.pages();
        let within = range.start / PAGE..range.end / PAGE;
        pages.range_mut(within).for_each(|(_, how)| *how = MappedBy::Along);
    }

    /// Adds all pages that the engine has in `blocks`. The fault has mapped these pages, and no other event
    /// explains them.
    pub(super) fn with_blocks(&self, process: &Process, blocks: &Range<u64>) {
        if !blocks.is_empty() {
            self.follow(process, blocks.start, blocks.end - blocks.start);
        }
    }

    /// Returns the pages that a child has after a fork.
    pub(super) fn forked(&self, child: &Process) -> Reached {
        let pages = self.pages();
        let kept =
            pages.iter().filter(|(page, _)| is_of_file(child, **page)).map(|(page, how)| (*page, *how));
        Reached(Mutex::new(kept.collect()))
    }

    /// Returns the entries within `pages`, ascending.
    pub(super) fn within(&self, pages: Range<u64>) -> BTreeMap<u64, MappedBy> {
        self.pages().range(pages).map(|(page, how)| (*page, *how)).collect()
    }

    fn pages(&self) -> MutexGuard<'_, BTreeMap<u64, MappedBy>> {
        lock(&self.0)
    }
}

/// Returns true if a page of a file is mapped at page number `page`.
fn is_of_file(process: &Process, page: u64) -> bool {
    let mut found = false;
    process.pagemap(page * PAGE..(page + 1) * PAGE, |present| found |= present.kind == PageKind::File);
    found
}
