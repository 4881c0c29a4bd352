//! Faults on a file at an empty entry.
//!
//! The fault looks the page up in the page cache without a lock, in a read section of RCU. Then, under the
//! lock of the page table, it raises the reference count of the frame, checks that the cache still has the
//! page, and maps the page. A truncation that locks the table later finds the entry. A truncation that locked
//! the table earlier has hidden the page (`file/change/truncate.rs`). A page must not be mapped without the
//! check under the lock. For private copies, `c26_c37_frame_stays_until_a_fault_has_copied_it` tests this
//! check.
//!
//! `resolve` in `mod.rs` calls this file while a lock keeps the VMA unchanged. If the page is not in the
//! cache, the fault returns `FaultOutcome::Fill`, and the page is added without locks (`file/fill.rs`). A
//! read maps cached pages around the page too. `shmem_mthp.rs` decides which blocks of shared memory are
//! mapped together, and `cow.rs` handles stores to pages that are mapped read-only. Pages with breakpoints
//! (`uprobe/`) are mapped as private copies that contain the breakpoints.

use super::{
    Access, FaultError, FaultOutcome, WRITTEN,
    mthp::addresses,
    shmem_mthp::{whole_block, with_blocks},
    vma_pte_flags, written,
};
use crate::{
    PAGE_SIZE, Pfn, VirtAddr,
    counted::Counted,
    error::NoMemory,
    file::{AccessOrder, File, Need, Object, Wanted},
    platform::Platform,
    space::{AddressSpace, held_lock::HeldLock},
    uprobe::state as probe_state,
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Format, Pte, PteFlags, PteTable};
use freehold_vmspace::{PageIndex, PageRange, UserRange};

/// Size in bytes of the window of a read fault, in which cached pages are mapped together: see [`window`].
const AROUND: u64 = 16 * PAGE_SIZE;

impl<P: Platform> AddressSpace<P> {
    /// Maps the cached pages around the page for a read. Maps the page writable for a write to a shared
    /// mapping, and maps a copy for a write to a private mapping. `table` is the table for `page`.
    #[inline(never)]
    pub(super) fn file_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        held: HeldLock<'_, '_, P>,
        table: PteTable<'_, P::Format, P>,
    ) -> FaultOutcome<P> {
        let Object::File(file) = vma.object() else { return FaultOutcome::Retry };
        let private = access.write && !vma.flags().contains(VmFlags::SHARED) || self.is_probed(vma, page);
        // The VMA gets an anon_vma even if there is no page to copy, because later merges depend on it.
        if private && let Err(step) = self.prepare_anon(vma, held) {
            return step.into();
        }
        let index = vma.pgoff_of(page);
        if index >= file.mapping().end() {
            return FaultOutcome::Failed(FaultError::Bus { addr: page });
        }
        if private {
            return self.private_write(vma, file, page, table);
        }
        if access.write {
            self.shared_write(vma, file, page, table)
        } else {
            self.read_around(vma, file, page, table)
        }
    }

    /// Maps the page, and every cached page in the window around it, without write permission. The first
    /// store then faults, and marks the page dirty or copies it.
    fn read_around(
        &self,
        vma: &Vma<P>,
        file: &Counted<File<P>>,
        page: u64,
        table: PteTable<'_, P::Format, P>,
    ) -> FaultOutcome<P> {
        let mapping = file.mapping();
        let (index, rights) = (vma.pgoff_of(page), vma_pte_flags(vma.flags()));
        // Neighbours count as accessed only when a task uses them. Otherwise reclaim keeps pages that no task
        // needs, and takes those that tasks use. Without hardware that sets the bit, their first use would
        // fault.
        let is_set_later = P::Format::HARDWARE_FLAGS.contains(PteFlags::ACCESSED);
        let around = if is_set_later { rights - PteFlags::ACCESSED } else { rights };
        // As on Linux, direct files and secret memory map no pages around the faulting one. The same holds if
        // a userfaultfd must be notified of each page.
        let alone =
            mapping.is_mapped_singly() || vma.flags().intersects(VmFlags::UFFD_MINOR | VmFlags::UFFD_WP);
        let window = if alone { UserRange::page(page) } else { window(vma, page, &table) };
        let rcu = P::rcu_read();
        // The page itself is looked up first. Otherwise this attempt would map only the page's neighbours,
        // and a second attempt would be needed for the page.
        if mapping.find(&rcu, index).is_none_or(|found| found.is_marked()) {
            return self.fill_outcome(vma, file, page);
        }
        let window = if alone { window } else { with_blocks(vma, file, &rcu, window, &table) };
        let Some(mut fill) = self.vm.fill_cached(table) else { return FaultOutcome::Retry };
        let indices = PageRange::new(vma.pgoff_of(window.start()), vma.pgoff_of(window.end() - 1) + 1);
        let probes = shown_probes(vma, file, &rcu);
        let mut crowded = false;
        mapping.find_each(&rcu, indices, |at, found| {
            // An access to a page with the mark must fault, because it starts readahead.
            if probes.is_some_and(|probes| probes.wants(at)) || found.is_marked() && at != index {
                return;
            }
            let address = VirtAddr::new(window.start() + (at - indices.start).bytes());
            let rights = if at == index { rights } else { around };
            // Existing entries stay: pages, private copies, markers.
            if fill.is_vacant(address) && fill.put(address, found.pfn(), rights, || found.is_still()).is_err()
            {
                crowded |= at == index;
            }
        });
        let vacant = fill.is_vacant(VirtAddr::new(page));
        fill.finish(rcu);
        match vacant {
            true if crowded => FaultOutcome::OUT_OF_MEMORY,
            true => FaultOutcome::Retry,
            false => FaultOutcome::Done,
        }
    }

    /// Maps the cached pages of `range`, which lies in one table, without write permission. Returns false if
    /// an entry holds a private copy or a marker, and then changes nothing. Also returns false if a frame has
    /// too many references.
    pub(crate) fn map_window(&self, vma: &Vma<P>, range: UserRange) -> Result<bool, NoMemory> {
        let Object::File(file) = vma.object() else { return Ok(false) };
        let first = VirtAddr::new(range.start());
        let mut all = true;
        let indices = PageRange::new(vma.pgoff_of(range.start()), vma.pgoff_of(range.end() - 1) + 1);
        let rights = vma_pte_flags(vma.flags());
        let (rcu, mut fill) = loop {
            let table = self.vm.pte_table_alloc(first).map_err(|_| NoMemory)?;
            let rcu = P::rcu_read();
            // If the table was reclaimed since the lookup, the loop allocates a new one.
            if let Some(fill) = self.vm.fill_cached(table) {
                break (rcu, fill);
            }
        };
        if !fill.is_cached(range.va()) {
            fill.finish(rcu);
            return Ok(false);
        }
        file.mapping().find_each(&rcu, indices, |at, found| {
            let address = VirtAddr::new(range.start() + (at - indices.start).bytes());
            if fill.is_vacant(address) {
                all &= fill.put(address, found.pfn(), rights, || found.is_still()).is_ok();
            }
        });
        fill.finish(rcu);
        Ok(all)
    }

    /// Maps the page with write permission and marks it dirty, in its frame and in the file. Write-back
    /// clears the mark before it removes the right to write from the entry, so the mark is set under the lock
    /// of the table.
    fn shared_write(
        &self,
        vma: &Vma<P>,
        file: &Counted<File<P>>,
        page: u64,
        table: PteTable<'_, P::Format, P>,
    ) -> FaultOutcome<P> {
        let index = vma.pgoff_of(page);
        let rcu = P::rcu_read();
        let Some(found) = file.mapping().find(&rcu, index).filter(|found| !found.is_marked()) else {
            return self.fill_outcome(vma, file, page);
        };
        if !file.mapping().permits_stores(&rcu, index) {
            return permission_outcome(file, index);
        }
        let block = whole_block(vma, file, &rcu, page, &table);
        let Some(mut fill) = self.vm.fill_cached(table) else { return FaultOutcome::Retry };
        let address = VirtAddr::new(page);
        if !fill.is_vacant(address) {
            fill.finish(rcu);
            return FaultOutcome::Retry;
        }
        let block = block.filter(|block| addresses(*block).all(|at| fill.is_vacant(at)));
        let rights = vma_pte_flags(vma.flags()) | WRITTEN;
        let permits = || found.is_still() && file.mapping().permits_stores(&rcu, index);
        let outcome = match fill.put(address, found.pfn(), rights, permits) {
            Ok(true) => {
                file.mapping().mark_granted(&rcu, index);
                FaultOutcome::Done
            }
            Ok(false) => FaultOutcome::Retry,
            Err(NoMemory) => FaultOutcome::OUT_OF_MEMORY,
        };
        // Only shared memory has blocks, whose pages need no marks.
        if let (FaultOutcome::Done, Some(block)) = (&outcome, block) {
            let first = vma.pgoff_of(block.start());
            let indices = PageRange::new(first, vma.pgoff_of(block.end() - 1) + 1);
            file.mapping().find_each(&rcu, indices, |at, found| {
                if at != index {
                    let address = VirtAddr::new(block.start() + (at - first).bytes());
                    // A page that cannot be counted, or that has just left the cache, is not mapped here. A
                    // later fault serves an access to that page.
                    let _ = fill.put(address, found.pfn(), rights, || found.is_still());
                }
            });
        }
        fill.finish(rcu);
        outcome
    }

    /// Returns the outcome of a fault on a page that is not in the cache, or that is in the cache and has the
    /// mark of readahead.
    #[cold]
    fn fill_outcome(&self, vma: &Vma<P>, file: &Counted<File<P>>, page: u64) -> FaultOutcome<P> {
        let marked = file.mapping().has_page(vma.pgoff_of(page));
        let need = if marked { Need::NextWindow } else { Need::Page };
        FaultOutcome::Fill(file.clone(), Wanted { need, ..self.wanted(vma, file, page) })
    }

    /// Returns true if the page must show breakpoints, and is therefore copied for any access. The answer is
    /// a hint, because probes may be added or removed concurrently.
    pub(super) fn is_probed(&self, vma: &Vma<P>, page: u64) -> bool {
        let Object::File(file) = vma.object() else { return false };
        probe_state::are_put(vma.flags()) && file.mapping().probes().wants::<P>(vma.pgoff_of(page))
    }

    /// Puts the breakpoints that the page must show into a copy of it.
    pub(super) fn put_probes(&self, vma: &Vma<P>, page: u64, copy: Pfn) {
        let rcu = P::rcu_read();
        if let Object::File(file) = vma.object()
            && let Some(probes) = shown_probes(vma, file, &rcu)
        {
            probes.put(self.platform(), vma.pgoff_of(page), copy);
        }
    }

    /// Maps a copy of the page and never the page itself. The VMA has an anon_vma.
    fn private_write(
        &self,
        vma: &Vma<P>,
        file: &Counted<File<P>>,
        page: u64,
        table: PteTable<'_, P::Format, P>,
    ) -> FaultOutcome<P> {
        let index = vma.pgoff_of(page);
        if file.mapping().find(&P::rcu_read(), index).is_none_or(|found| found.is_marked()) {
            return self.fill_outcome(vma, file, page);
        }
        let Ok(copy) = self.vm.alloc_anon(false, vma.anon_page(page)) else {
            return FaultOutcome::OUT_OF_MEMORY;
        };
        let step = self.map_copy(vma, file, page, copy, table);
        self.vm.count_or_discard(copy, matches!(step, FaultOutcome::Done));
        step
    }

    /// Fills `copy` and maps it. Any outcome except `Done` means that `copy` was not mapped.
    fn map_copy(
        &self,
        vma: &Vma<P>,
        file: &File<P>,
        page: u64,
        copy: Pfn,
        table: PteTable<'_, P::Format, P>,
    ) -> FaultOutcome<P> {
        let (mapping, index) = (file.mapping(), vma.pgoff_of(page));
        // `original` is declared before the guard and therefore dropped after it. `original` may be the last
        // reference to its frame.
        let Some(original) = mapping.get_page(index) else { return FaultOutcome::Retry };
        let rcu = P::rcu_read();
        let found = mapping.find(&rcu, index).filter(|found| found.pfn() == *original);
        let Some(found) = found else { return FaultOutcome::Retry };
        self.platform().copy_frame(copy, *original);
        if let Some(probes) = shown_probes(vma, file, &rcu) {
            probes.put(self.platform(), index, copy);
        }
        let rights = vma_pte_flags(vma.flags()) | written(vma.flags());
        let Some(mut guard) = table.lock_linked() else { return FaultOutcome::Retry };
        // A truncation also removes copies. If a truncation locked this table earlier, the truncation has
        // hidden the page.
        match found.is_still() && guard.install(VirtAddr::new(page), Pte::page(copy, rights)).is_ok() {
            true => FaultOutcome::Done,
            false => FaultOutcome::Retry,
        }
    }
}

/// Returns the probes that pages of `vma` must show. A task that adds probes waits for read sections, and
/// then finds the pages that were mapped within `rcu`.
fn shown_probes<'f, P: Platform>(
    vma: &Vma<P>,
    file: &'f File<P>,
    rcu: &'f P::RcuGuard,
) -> Option<&'f probe_state::List> {
    probe_state::are_put(vma.flags()).then(|| file.mapping().probes().read::<P>(rcu))?
}

/// Returns the range that a read fault maps together with `page`. The range starts at `page` rounded down to
/// a multiple of `AROUND`, or at the start of the VMA, whichever is higher. The range has `AROUND` bytes,
/// limited by the end of the VMA and of the table.
fn window<P: Platform>(vma: &Vma<P>, page: u64, table: &PteTable<'_, P::Format, P>) -> UserRange {
    // A table's span is a multiple of `AROUND`, so the window does not start before the table.
    let start = (page - page % AROUND).max(vma.start());
    UserRange::new(start, (start + AROUND).min(vma.end()).min(table.span().end().get()))
}

/// Returns the outcome of a store to a page that the pager must first permit to change.
#[cold]
pub(super) fn permission_outcome<P: Platform>(file: &Counted<File<P>>, index: PageIndex) -> FaultOutcome<P> {
    FaultOutcome::Fill(file.clone(), Wanted { need: Need::Permission, ..Wanted::alone(index) })
}

/// Returns the order of access that MADV_RANDOM or MADV_SEQUENTIAL has announced for the VMA.
pub(super) fn access_order(flags: VmFlags) -> AccessOrder {
    match flags {
        flags if flags.contains(VmFlags::RAND_READ) => AccessOrder::Random,
        flags if flags.contains(VmFlags::SEQ_READ) => AccessOrder::Sequential,
        _ => AccessOrder::Any,
    }
}
