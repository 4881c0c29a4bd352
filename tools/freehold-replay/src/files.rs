//! Pages of files: what is taken to be in the page cache, and what recorded faults say of what is mapped.
//!
//! A read fault on a file maps, with its page, those around it that are in the page cache. No recording tells
//! what was there: taken is that everything was, up to the file's end, but of shared memory, of which only
//! that is there what somebody touched. So the engine has what Linux had or more. What Linux had at least is
//! known, too, the page of each recorded fault; and what at most: what is around them.

use super::TASK_SIZE;
use super::workers::lock;
use super::world::World;
use freehold::PageIndex;
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
/// Bytes that a page table maps.
const TABLE: u64 = 512 * PAGE;

/// Where a fault on a file will look for more pages to map.
pub(super) struct Around {
    /// What a read fault maps, as far as the file is long; empty for others.
    window: Range<u64>,
    /// The fault's page will be the file's own, not a copy.
    maps: bool,
    /// Where it may map blocks of shared memory; empty where there are none.
    pub(super) blocks: Range<u64>,
}

/// Brings what is around `at` into the page cache, if that is a file. Before the fault, so that its time is
/// the engine's.
pub(super) fn read_ahead(world: &World, process: &Process, at: u64, access: Access) -> Option<Around> {
    let page = at & !(PAGE - 1);
    let vma = process.find_vma(page)?;
    let file = vma.object().file()?.clone();
    if file.mapping().huge_page_size().is_some() {
        return None;
    }
    let maps = !access.write || vma.flags().contains(freehold::vma::flags::VmFlags::SHARED);
    let start = (page & !(AROUND - 1)).max(vma.start());
    let table_end = (page & !(TABLE - 1)) + TABLE;
    let mut window = start..(start + AROUND).min(vma.end()).min(table_end);
    let first = vma.pgoff_of(start).get();
    let has_blocks = file.mapping().is_shmem() && world.has_blocks();
    let blocks = match has_blocks {
        true => (table_end - TABLE).max(vma.start())..table_end.min(vma.end()),
        false => 0..0,
    };
    drop(vma);
    if access.write {
        return Some(Around { window: 0..0, maps, blocks });
    }
    let length = world.length(&file).unwrap_or(u64::MAX).max(first);
    window.end = window.end.min(start.saturating_add((length - first).saturating_mul(PAGE)));
    let mapping = file.mapping();
    if !mapping.is_shmem() {
        for index in first..first + (window.end - start) / PAGE {
            // What cannot be filled is absent, which the comparison shows.
            if !mapping.has_page(PageIndex::new(index)) {
                let _ = mapping.fill(PageIndex::new(index));
            }
        }
    }
    Some(Around { window, maps, blocks })
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
