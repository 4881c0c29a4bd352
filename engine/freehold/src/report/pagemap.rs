//! The reports /proc/PID/pagemap and PAGEMAP_SCAN: the contents of the page tables of a range, the present
//! pages and their kinds, the frame or the swap slot of one page, and the write protection of reported pages.
//!
//! Each VMA is read under its own lock (`with_next_vma` in `maps.rs`), and each page table under the table's
//! lock. Runs of pages are collected in a small buffer on the stack, and `sink` gets them after the locks are
//! released, because `sink` may write to the memory of a program. `reports::maps`, `reports::entries`,
//! `uffd::protect_async`, `swapped::shown` and `every_call::edges::reports_round_ranges_to_whole_pages`
//! (`engine/freehold/tests`) test this file.

use crate::space::AddressSpace;
use crate::{
    PAGE_SIZE, Pfn, VirtAddr,
    error::UffdError,
    platform::Platform,
    swap::{SwapEntry, SwapId},
    wait::Rounds,
};
use arrayvec::ArrayVec;
use core::ops::{ControlFlow, Range};
use freehold_pagetable::Level;
pub use freehold_vmspace::{EntryRun, MarkerKind, PageEntry, PageKind};
use freehold_vmspace::{HugePageSize, SwapMark, UserRange};

/// Number of runs that are collected under the locks before `sink` receives them. Each run takes 24 bytes of
/// a kernel stack.
const RUNS: usize = 32;
const _: () = assert!(size_of::<EntryRun>() == 24);
/// Number of pages that are protected in one hold of the VMA's lock.
const BATCH: u64 = 512;

/// Consecutive present pages of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// The addresses of the pages.
    pub range: UserRange,
    /// The kind of the pages.
    pub kind: PageKind,
    /// True if one entry maps the pages: a huge page, or the requested part of a huge page.
    pub huge: bool,
}

impl<P: Platform> AddressSpace<P> {
    /// Passes the contents of the page tables in `range` to `sink`, in ascending order, until `sink` breaks.
    /// Equal consecutive entries form a run, and pages of different page tables belong to different runs.
    /// Pages of a VMA that have no page table are left out. A page that lies only partly in the range is
    /// included.
    ///
    /// # Locks
    ///
    /// For each VMA, the VMA's lock or the mmap lock for reading; under it each page table's lock while that
    /// table is read. No lock is held while `sink` runs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use core::ops::ControlFlow;
    /// # use freehold::{PAGE_SIZE, call::Advice, fault::Access, space::*};
    /// # use freehold::report::pagemap::{MarkerKind, PageEntry, PageKind};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 3 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// space.madvise(at + 2 * PAGE_SIZE, PAGE_SIZE, Advice::GuardInstall).unwrap();
    /// let mut entries = Vec::new();
    /// space.page_entries(at..at + 3 * PAGE_SIZE, |run| {
    ///     entries.push(run.entry);
    ///     ControlFlow::Continue(())
    /// });
    /// let page = PageEntry::Page { kind: PageKind::Anon, exclusive: true };
    /// assert_eq!(entries, [page, PageEntry::Empty, PageEntry::Marker(MarkerKind::Guard)]);
    /// ```
    pub fn page_entries(&self, range: Range<u64>, mut sink: impl FnMut(EntryRun) -> ControlFlow<()>) {
        let end = range.end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(Self::TASK_SIZE);
        let mut at = range.start & !(PAGE_SIZE - 1);
        let mut runs = ArrayVec::<EntryRun, RUNS>::new();
        while at < end {
            let next = self.with_next_vma(at, |_, part| {
                let (first, last) = (part.start().max(at), part.end().min(end));
                match first < last {
                    true => self.vm.entries(UserRange::new(first, last), &mut runs).max(at),
                    false => last.max(at),
                }
            });
            if runs.drain(..).try_for_each(&mut sink).is_break() {
                return;
            }
            match next {
                Some(next) if next > at => at = next,
                _ => return,
            }
        }
    }

    /// Passes the present pages in `range` to `sink`, in ascending order. Adjacent small pages of one kind in
    /// one page table form one run. A page that lies only partly in the range is included.
    ///
    /// # Locks
    ///
    /// Takes the locks of [`page_entries`](Self::page_entries).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at + PAGE_SIZE, Access::WRITE).unwrap();
    /// let mut present = 0;
    /// space.pagemap(at..at + 4 * PAGE_SIZE, |_| present += 1);
    /// assert_eq!(present, 1);
    /// ```
    pub fn pagemap(&self, range: Range<u64>, mut sink: impl FnMut(Present)) {
        let mut last: Option<Present> = None;
        self.page_entries(range, |EntryRun { range, entry, huge, .. }| {
            let PageEntry::Page { kind, .. } = entry else { return ControlFlow::Continue(()) };
            match &mut last {
                // Runs that differ only in other respects are one run here.
                Some(last)
                    if last.range.end() == range.start()
                        && (last.kind, last.huge) == (kind, huge)
                        && !range.start().is_multiple_of(Level::Pmd.span()) =>
                {
                    last.range = last.range.with_end(range.end());
                }
                _ => {
                    if let Some(before) = last.replace(Present { range, kind, huge }) {
                        sink(before);
                    }
                }
            }
            ControlFlow::Continue(())
        });
        if let Some(last) = last {
            sink(last);
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Write-protects the pages of `runs`, which [`page_entries`](Self::page_entries) has reported
    /// (PM_SCAN_WP_MATCHING). Leaves out VMAs in which a store does not end the protection
    /// ([`Features::WP_ASYNC`](crate::uffd::Features::WP_ASYNC)), and pages whose entries have changed since
    /// the report: they stay unprotected, and the next report shows them as such.
    /// A run of `PageEntry::Empty` may also stand for pages without a page table.
    ///
    /// Splits huge pages of anonymous memory. Leaves out a huge page of a pool if a run contains only a part
    /// of it.
    ///
    /// # Errors
    ///
    /// Fails with `OutOfMemory` if there is no memory for page tables, or with `Killed` if a fatal signal
    /// arrives. Some pages are protected then.
    ///
    /// # Locks
    ///
    /// The locks of [`page_entries`](Self::page_entries), for a batch of pages at a time. The caller holds no
    /// lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use core::ops::ControlFlow;
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let uffd = Userfaultfd::new(&space, UffdConfig::new().features(Features::WP_ASYNC)).unwrap();
    /// uffd.register(at, 4 * PAGE_SIZE, RegisterMode::WP).unwrap();
    /// let written = || {
    ///     let mut runs = Vec::new();
    ///     space.page_entries(at..at + 4 * PAGE_SIZE, |run| {
    ///         runs.extend((!run.write_protected).then_some(run));
    ///         ControlFlow::Continue(())
    ///     });
    ///     runs
    /// };
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// space.protect_entries(&written()).unwrap();
    /// assert!(written().is_empty());
    /// space.handle_fault(at + PAGE_SIZE, Access::WRITE).unwrap();
    /// assert_eq!(written()[0].range.start(), at + PAGE_SIZE);
    /// ```
    pub fn protect_entries(&self, runs: &[EntryRun]) -> Result<(), UffdError> {
        let mut rounds = Rounds::new();
        let protected = runs.iter().try_for_each(|run| self.protect_run(run, &mut rounds));
        // Flushes entries that other tasks have changed but not flushed yet: no store to the pages succeeds
        // without a fault after this call has returned.
        self.vm.table_gather().finish();
        protected
    }

    fn protect_run(&self, run: &EntryRun, rounds: &mut Rounds) -> Result<(), UffdError> {
        let mut at = run.range.start();
        while at < run.range.end() {
            rounds.again::<P>()?;
            let next = self.with_next_vma(at, |vma, part| {
                let level = vma.huge_page_size().map_or(Level::Pte, HugePageSize::level);
                let batch = part.start().saturating_add(BATCH * level.span());
                let end = part.end().min(run.range.end()).min(batch);
                if part.start() < end && vma.is_wp_async() {
                    self.vm.protect_reported(UserRange::new(part.start(), end), run, level)?;
                }
                Ok::<_, UffdError>(end.max(at))
            });
            match next {
                Some(next) => at = next?,
                None => break,
            }
        }
        Ok(())
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Returns the frame of the page at `addr`, if a page is mapped there (the PFN of /proc/PID/pagemap). The
    /// page may move to another frame as soon as the call returns. Functions that act on a frame, such as
    /// [`Engine::migrate`](crate::engine::Engine::migrate), therefore check what the frame holds.
    ///
    /// # Locks
    ///
    /// The VMA's lock, or the mmap lock, for reading.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// assert_eq!(space.frame_at(at), None);
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// let child = space.fork().unwrap();
    /// assert_eq!(child.frame_at(at), space.frame_at(at));
    /// child.handle_fault(at, Access::WRITE).unwrap();
    /// assert_ne!(child.frame_at(at), space.frame_at(at), "the child has its own copy");
    /// ```
    pub fn frame_at(&self, addr: u64) -> Option<Pfn> {
        let mut found = None;
        self.with_next_vma(addr, |_, part| {
            if part.contains(addr) {
                let address = VirtAddr::new(addr & !(PAGE_SIZE - 1));
                found = self.vm.frame_at(address);
            }
            part.end()
        });
        found
    }

    /// Returns the swap device and the number of the slot of the page at `addr`, if the page is swapped out
    /// (the swap type and offset of /proc/PID/pagemap). The page may come back as soon as the call returns,
    /// and the slot may then get another page.
    ///
    /// # Locks
    ///
    /// The locks of [`frame_at`](Self::frame_at).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, reclaim::ReclaimRequest, remote::AccessMode, space::*};
    /// # use freehold_machine::MemorySwap;
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let id = engine.swap_on(MemorySwap::new(64), 0).unwrap();
    /// space.write_memory(at, b"swapped", AccessMode::Plain).unwrap();
    /// assert_eq!(space.swap_slot_at(at), None);
    /// engine.reclaim(&ReclaimRequest::pages(1));
    /// let (device, slot) = space.swap_slot_at(at).unwrap();
    /// assert!(device == id && slot < 64);
    /// ```
    pub fn swap_slot_at(&self, addr: u64) -> Option<(SwapId, u64)> {
        let mut found = None;
        self.with_next_vma(addr, |_, part| {
            if part.contains(addr) {
                let (pte, _) = self.vm.read_entry(VirtAddr::new(addr & !(PAGE_SIZE - 1)));
                found = SwapMark::of_entry(pte).map(|mark| SwapEntry::from_payload(mark.slot));
            }
            part.end()
        });
        found.map(|entry| (entry.device(), entry.slot()))
    }
}
