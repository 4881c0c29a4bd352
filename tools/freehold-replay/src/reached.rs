//! Pages of files that an address space may have mapped: what recorded faults and calls explain.

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
/// Bytes that a read fault maps at most.
pub(super) const AROUND: u64 = 16 * PAGE;
/// Advice that takes pages or brings them: DONTNEED, REMOVE, PAGEOUT, POPULATE_READ and _WRITE,
/// DONTNEED_LOCKED, GUARD_INSTALL.
const TAKES_OR_BRINGS: [u64; 7] = [4, 9, 21, 22, 23, 24, 102];
/// One that takes them if it can.
const PAGEOUT: u64 = 21;

/// Where a fault on a file will look for more pages to map.
pub(super) struct Around {
    /// What a read fault maps, as far as the file is long; empty for others.
    pub(super) window: Range<u64>,
    /// The fault's page will be the file's own, not a copy.
    pub(super) maps: bool,
    /// Where it may map blocks of shared memory; empty where there are none.
    pub(super) blocks: Range<u64>,
}

impl Around {
    /// What the fault brings along, as far as it is in the page cache.
    pub(super) fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    /// The page of a recorded read fault at `at` was there: an earlier fault here had mapped it with its own,
    /// where Linux did not find it in the page cache. What this fault maps around it comes by a fault on
    /// the next page that is missing. Whether there was one.
    pub(super) fn map_rest(&self, process: &Process, cpu: &mut Cpu<X86_4>, at: u64) -> bool {
        // Beyond that a fault would have another window.
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

/// How a page of a file came to be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// A recorded fault ended there: Linux had mapped it.
    Faulted,
    /// It came along with one, if it was in the page cache; or a call brought it.
    Along,
}

/// The pages of files that an address space may have mapped, by their numbers: what recorded faults explain,
/// until something takes the page. The plan keeps calls and the faults around them in order.
#[derive(Default)]
pub(super) struct Reached(Mutex<BTreeMap<u64, How>>);

impl Reached {
    /// A fault on a file's page at `at` ended well.
    pub(super) fn fault(&self, at: u64, around: &Around) {
        let mut pages = self.pages();
        for page in around.window.start / PAGE..around.window.end / PAGE {
            pages.entry(page).or_insert(How::Along);
        }
        if around.maps {
            pages.insert(at / PAGE, How::Faulted);
        }
    }

    /// A call was made: what it took away is not reached any more, and what it brought is.
    pub(super) fn called(&self, process: &Process, call: &Call) {
        let args = &call.args;
        match call.name {
            Munmap | Mlock | Mlock2 => self.follow(process, args[0], args[1]),
            Madvise if TAKES_OR_BRINGS.contains(&args[2]) => {
                self.follow(process, args[0], args[1]);
                if args[2] == PAGEOUT {
                    // What was not in use is mapped no more, even where it stays in memory.
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

    /// As far as `len` bytes from `at` on go, only what the engine has is reached, and all of that.
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
            pages.entry(page).or_insert(How::Along);
        });
    }

    /// What lies in `range` may be gone.
    pub(super) fn doubt(&self, range: &Range<u64>) {
        let mut pages = self.pages();
        let within = range.start / PAGE..range.end / PAGE;
        pages.range_mut(within).for_each(|(_, how)| *how = How::Along);
    }

    /// A fault has mapped all that the engine has in `blocks` now, and that nothing else explains.
    pub(super) fn with_blocks(&self, process: &Process, blocks: &Range<u64>) {
        if !blocks.is_empty() {
            self.follow(process, blocks.start, blocks.end - blocks.start);
        }
    }

    /// What of it a child has that was just forked.
    pub(super) fn forked(&self, child: &Process) -> Reached {
        let pages = self.pages();
        let kept =
            pages.iter().filter(|(page, _)| is_of_file(child, **page)).map(|(page, how)| (*page, *how));
        Reached(Mutex::new(kept.collect()))
    }

    /// Those of `pages`, ascending.
    pub(super) fn within(&self, pages: Range<u64>) -> BTreeMap<u64, How> {
        self.pages().range(pages).map(|(page, how)| (*page, *how)).collect()
    }

    fn pages(&self) -> MutexGuard<'_, BTreeMap<u64, How>> {
        lock(&self.0)
    }
}

/// Whether a page of a file is mapped at page number `page`.
fn is_of_file(process: &Process, page: u64) -> bool {
    let mut found = false;
    process.pagemap(page * PAGE..(page + 1) * PAGE, |present| found |= present.kind == PageKind::File);
    found
}
