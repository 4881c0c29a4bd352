//! PAGEMAP_SCAN, the request of /proc/PID/pagemap for ranges of pages with equal properties. Programs that
//! save or copy their memory find the pages to save with it. The engine reports the contents of the page
//! tables (`freehold::report::pagemap`); this file derives Linux's categories, selects and merges.
//!
//! Linux collects regions in a buffer and copies it to the program when it is full. A scan here has the same
//! rounds, because a program sees in `walk_end` where the last full round ended. No lock is held while the
//! regions are copied. The program `pagemap.c` of the tests checks the request.
//!
//! A scan may also write-protect the pages that it finds, in VMAs in which a store ends the protection
//! (WP_ASYNC). The engine protects pages after it has reported them (`AddressSpace::protect_entries`).
#![expect(unsafe_code, reason = "declares that the structures of the request have no padding")]

use crate::platform::{Machine, Space, user};
use crate::sched::checkpoint;
use alloc::vec::Vec;
use core::mem::offset_of;
use core::ops::{ControlFlow, Range};
use freehold::error::Errno;
use freehold::report::maps::MapLine;
use freehold::report::pagemap::{EntryRun, MarkerKind, PageEntry, PageKind};
use freehold::vma::flags::VmFlags;
use freehold::{PAGE_SIZE, UserRange};
use linux_raw_sys::general::{page_region, pm_scan_arg};
use user::UserPtr;

/// Number of the request in calls of ioctl.
pub const PAGEMAP_SCAN: u64 = 0xc060_6610;

/// Flag of a scan: protects the pages that match, in VMAs with WP_ASYNC. Other VMAs are left out.
const WP_MATCHING: u64 = 1 << 0;
/// Flag of a scan: fails at a VMA without WP_ASYNC.
const CHECK_WPASYNC: u64 = 1 << 1;

/// Category: in a VMA with WP_ASYNC.
const WPALLOWED: u64 = 1 << 0;
/// Category: not write-protected by userfaultfd.
const WRITTEN: u64 = 1 << 1;
/// Category: a page of a file or of shared memory.
const FILE: u64 = 1 << 2;
/// Category: a present page.
const PRESENT: u64 = 1 << 3;
/// Category: an entry with something else than a page.
const SWAPPED: u64 = 1 << 4;
/// Category: the page of zeroes.
const PFNZERO: u64 = 1 << 5;
/// Category: a huge page.
const HUGE: u64 = 1 << 6;
/// Category: written since the soft-dirty bits were last cleared.
const SOFT_DIRTY: u64 = 1 << 7;
/// Category: a guarded page.
const GUARD: u64 = 1 << 8;
/// All categories.
const CATEGORIES: u64 = (1 << 9) - 1;

/// Number of small pages in a huge page of a pool.
const HUGE_PAGES: u64 = 512;
/// Number of regions after which a round ends.
const ROUND: usize = 512;

// SAFETY: all fields are numbers, and there is no padding between them.
unsafe impl user::Plain for pm_scan_arg {}
// SAFETY: as above.
unsafe impl user::Plain for page_region {}

/// Performs the request. `at` is the address of the structure. Returns the number of regions.
///
/// # Errors
///
/// EINVAL for a wrong structure, EPERM if a required WP_ASYNC is missing,
/// EINTR if the caller is killed, ENOMEM, EFAULT.
pub fn scan(space: &Space, at: u64) -> Result<u64, Errno> {
    let asked = UserPtr::<pm_scan_arg>::new(at).read()?;
    check(&asked)?;
    let mut regions = Vec::new();
    regions.try_reserve_exact(ROUND).map_err(|_| Errno::ENOMEM)?;
    let mut scan = Scan {
        end: asked.end.next_multiple_of(PAGE_SIZE),
        walk_end: asked.end.next_multiple_of(PAGE_SIZE),
        pages_left: if asked.max_pages == 0 { u64::MAX } else { asked.max_pages },
        asked,
        regions,
        unprotected: Vec::new(),
        unit: 1,
        written: 0,
    };
    let done = scan.perform(space);
    UserPtr::new(at.wrapping_add(offset_of!(pm_scan_arg, walk_end) as u64)).write(&scan.walk_end)?;
    done.map(|()| scan.written)
}

/// Checks the structure, in the order of Linux.
fn check(asked: &pm_scan_arg) -> Result<(), Errno> {
    let categories =
        [asked.category_inverted, asked.category_mask, asked.category_anyof_mask, asked.return_mask];
    if asked.size != size_of::<pm_scan_arg>() as u64
        || asked.flags & !(WP_MATCHING | CHECK_WPASYNC) != 0
        || categories.into_iter().any(|mask| mask & !CATEGORIES != 0)
        || !asked.start.is_multiple_of(PAGE_SIZE)
    {
        return Err(Errno::EINVAL);
    }
    user::check(asked.start, asked.end.wrapping_sub(asked.start) as usize)?;
    if asked.vec == 0 && asked.vec_len != 0 {
        return Err(Errno::EINVAL);
    }
    user::check(asked.vec, (asked.vec_len as usize).saturating_mul(size_of::<page_region>()))
}

/// The reason why a round ends before the end of the range.
enum Stop {
    /// The page at this address matches, and there is no room for it.
    Full(u64),
    /// The scan fails.
    Failed(Errno),
}

/// A scan.
struct Scan {
    asked: pm_scan_arg,
    /// End of the range.
    end: u64,
    /// The address that the program gets as the end of the scan.
    walk_end: u64,
    /// Number of pages that may still be found.
    pages_left: u64,
    /// The regions of this round.
    regions: Vec<page_region>,
    /// Pages that were found and that the scan has to protect.
    unprotected: Vec<EntryRun>,
    /// Number of pages that can only be protected together in the current VMA.
    unit: u64,
    /// Number of regions that the program has.
    written: u64,
}

impl Scan {
    /// Performs rounds until the end of the range, or until the program has as much as it asked for.
    fn perform(&mut self, space: &Space) -> Result<(), Errno> {
        let mut from = self.asked.start;
        loop {
            let round = self.round(space, from);
            if let Err(Stop::Full(at)) = round {
                self.walk_end = at;
            }
            self.copy_out()?;
            match round {
                Err(Stop::Full(at)) if self.pages_left > 0 && self.room() > 0 => from = at,
                Err(Stop::Failed(error)) => return Err(error),
                _ => return Ok(()),
            }
        }
    }

    /// Returns the number of regions that this round may find.
    fn room(&self) -> u64 {
        (self.asked.vec_len - self.written).min(ROUND as u64)
    }

    /// Copies the regions of this round to the program.
    fn copy_out(&mut self) -> Result<(), Errno> {
        for region in self.regions.drain(..) {
            UserPtr::new(self.asked.vec).add(self.written).write(&region)?;
            self.written += 1;
        }
        Ok(())
    }

    /// Performs a round from an address.
    fn round(&mut self, space: &Space, from: u64) -> Result<(), Stop> {
        let end = self.end;
        for line in space.maps(from).take_while(|line| line.start < end) {
            self.vma(space, &line, line.start.max(from)..line.end.min(end))?;
        }
        Ok(())
    }

    /// Scans a part of a VMA.
    fn vma(&mut self, space: &Space, line: &MapLine<Machine>, part: Range<u64>) -> Result<(), Stop> {
        checkpoint().map_err(Stop::Failed)?;
        if !line.wp_async && self.asked.flags & CHECK_WPASYNC != 0 {
            return Err(Stop::Failed(Errno::EPERM));
        }
        let protects = self.asked.flags & WP_MATCHING != 0;
        let is_left_out = protects && !line.wp_async || line.flags.contains(VmFlags::PFNMAP);
        if is_left_out || self.asked.vec_len == 0 && !protects {
            return Ok(());
        }
        let is_huge = line.flags.contains(VmFlags::HUGETLB);
        self.unit = if protects && is_huge { HUGE_PAGES } else { 1 };
        let of = |flag, category| if line.flags.contains(flag) { category } else { 0 };
        let of_vma = of(VmFlags::SOFTDIRTY, SOFT_DIRTY) | if line.wp_async { WPALLOWED } else { 0 };
        // Pages without a page table count as written only if userfaultfd could protect them.
        let without_table = of_vma | of(VmFlags::HUGETLB, HUGE) | of(VmFlags::UFFD_WP, WRITTEN);
        let gap = |start, end| EntryRun {
            range: UserRange::new(start, end),
            entry: PageEntry::Empty,
            write_protected: false,
            soft_dirty: false,
            huge: is_huge,
        };
        let (mut next, mut found) = (part.start, Ok(()));
        space.page_entries(part.clone(), |run| {
            let (end, of_run) = (run.range.end(), of_vma | categories(&run));
            found = checkpoint()
                .map_err(Stop::Failed)
                .and_then(|()| self.add(space, gap(next, run.range.start()), without_table))
                .and_then(|()| self.add(space, run, of_run));
            next = end;
            if found.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let found = found.and_then(|()| self.add(space, gap(next, part.end), without_table));
        self.protect(space).map_err(Stop::Failed)?;
        found
    }

    /// Protects the pages that were found since the last call.
    fn protect(&mut self, space: &Space) -> Result<(), Errno> {
        let protected = space.protect_entries(&self.unprotected).map_err(|error| error.errno());
        self.unprotected.clear();
        protected
    }

    /// Adds consecutive pages of equal categories, if they match.
    fn add(&mut self, space: &Space, run: EntryRun, categories: u64) -> Result<(), Stop> {
        let pages = run.range.addresses();
        if pages.is_empty() || !self.matches(categories) {
            return Ok(());
        }
        let protects = self.asked.flags & WP_MATCHING != 0;
        let mut end = pages.end;
        if self.asked.vec_len > 0 {
            let mut fit = self.pages_left.min((pages.end - pages.start) / PAGE_SIZE);
            // Leaves out a part of a huge page of a pool, as Linux does.
            let is_part = !(pages.start / PAGE_SIZE).is_multiple_of(self.unit);
            fit = if is_part { 0 } else { fit - fit % self.unit };
            if fit == 0 && self.unit > 1 {
                self.walk_end = pages.start;
                return Ok(());
            }
            end = pages.start + fit * PAGE_SIZE;
            let categories = categories & self.asked.return_mask;
            let is_full = self.regions.len() as u64 == self.room();
            match self.regions.last_mut() {
                _ if fit == 0 => return Err(Stop::Full(pages.start)),
                Some(last) if last.end == pages.start && last.categories == categories => last.end = end,
                _ if is_full => return Err(Stop::Full(pages.start)),
                _ => self.regions.push(page_region { start: pages.start, end, categories }),
            }
            self.pages_left -= fit;
        }
        if protects && !run.write_protected {
            if self.unprotected.len() == ROUND {
                self.protect(space).map_err(Stop::Failed)?;
            }
            self.unprotected.try_reserve(1).map_err(|_| Stop::Failed(Errno::ENOMEM))?;
            self.unprotected.push(EntryRun { range: run.range.with_end(end), ..run });
        }
        if end < pages.end { Err(Stop::Full(end)) } else { Ok(()) }
    }

    /// Returns true if the program asks for pages of these categories.
    fn matches(&self, categories: u64) -> bool {
        let categories = categories ^ self.asked.category_inverted;
        let any = self.asked.category_anyof_mask;
        categories & self.asked.category_mask == self.asked.category_mask
            && (any == 0 || categories & any != 0)
    }
}

/// Returns the categories of the pages of a run.
fn categories(run: &EntryRun) -> u64 {
    let entry = match run.entry {
        PageEntry::Empty => 0,
        PageEntry::Page { kind: PageKind::File, .. } => PRESENT | FILE,
        PageEntry::Page { kind: PageKind::Zero, .. } => PRESENT | PFNZERO,
        PageEntry::Page { kind: PageKind::Anon | PageKind::Special, .. } => PRESENT,
        PageEntry::Marker(MarkerKind::Guard) => SWAPPED | GUARD,
        PageEntry::Marker(_) => SWAPPED,
    };
    let written = if run.write_protected { 0 } else { WRITTEN };
    let soft_dirty = if run.soft_dirty { SOFT_DIRTY } else { 0 };
    entry | written | soft_dirty | if run.huge { HUGE } else { 0 }
}
