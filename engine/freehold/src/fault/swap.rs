//! Faults at swap entries: the page is found in the swap cache, or read from its device.
//!
//! ```text
//! swap_fault   under the table's lock: lookup; in the cache: take the entry's count, map the page
//! swap_in      with no lock: lookup; stored: begin a read and send it; being read: wait; then start over
//! ```
//!
//! A fault maps only a page that the cache has while the lock of the entry's table is held. The entry keeps
//! its slot during that time, so the page is that of the entry. A page that was found before the lock was
//! taken would not do: the slot may have been freed, and used again for a later page at the same address.
//!
//! The page is exclusive if the entry was the last one of the slot and no other task has a reference.
//! Otherwise the entry is read-only, because the cache, other entries or a write to the device need the
//! contents; the next store makes a copy (`cow.rs`).
//!
//! A private copy of a page of a file is swapped out only while the page has no probes
//! (`reclaim/swap_out.rs`). If probes were added in the meantime, the fault maps a copy of the page in the
//! cache, and puts the breakpoints there.
//!
//! If the memory of a frame in the cache failed, the page is lost only if the device does not have it.
//! Otherwise `swap_in` takes the frame out of the cache, and the page is read again into another frame.
//!
//! N tasks that need a page cause one read: the first one makes the slot *being read*, and the others wait. A
//! failed read is an error for all of them, but only if the entry is still there. `swap_ahead.rs` reads more
//! pages. `resolve` in `mod.rs` calls this file. `tests/swapped/` and `shuttle_engine/swapped.rs` test it.

use super::{Access, FaultError, FaultOutcome, vma_pte_flags, written};
use crate::{
    PAGE_SIZE, VirtAddr,
    file::{HasFiles, SwapInError},
    platform::{PageOwner, Platform},
    space::AddressSpace,
    swap::{Lookup, SwapEntry},
    vma::Vma,
};
use freehold_pagetable::PteTable;
use freehold_sync::Killed;
use freehold_vmspace::{SwapFault, SwapMark, SwappedPage};

impl<P: Platform> AddressSpace<P> {
    /// Maps the page of a swap entry, if the page is in the swap cache. `table` is the table for `page`.
    #[inline(never)]
    pub(super) fn swap_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        table: PteTable<'_, P::Format, P>,
    ) -> FaultOutcome<P> {
        let swap = self.engine.swap();
        let rights = (vma_pte_flags(vma.flags()), access.write.then(|| written(vma.flags())));
        let (mut step, mut mapped) = (FaultOutcome::Retry, None);
        let (mut copy, mut stale) = (None, None);
        if self.is_probed(vma, page) {
            let Ok(new) = self.engine.memory().alloc_swap(PageOwner::Space(self.vm.mmu())) else {
                return FaultOutcome::OUT_OF_MEMORY;
            };
            copy = Some(new);
        }
        let take = |mark: SwapMark| {
            let entry = SwapEntry::from_payload(mark.slot);
            match swap.lookup_locked(entry) {
                Ok(Lookup::Cached(pfn)) if self.platform().frame(pfn).has_failed() => {
                    step = FaultOutcome::SwapIn(entry);
                    SwapFault::Leave(Some(pfn))
                }
                // A task that adds a probe takes the lock of this table afterwards.
                Ok(Lookup::Cached(pfn)) if self.is_probed(vma, page) => match copy.take() {
                    None => SwapFault::Leave(Some(pfn)),
                    Some(copy) => {
                        self.platform().copy_frame(copy, pfn);
                        self.put_probes(vma, page, copy);
                        stale = swap.take(entry, pfn).frame;
                        step = FaultOutcome::Done;
                        SwapFault::Map(SwappedPage { pfn: copy, is_exclusive: true, other: Some(pfn) })
                    }
                },
                Ok(Lookup::Cached(pfn)) => {
                    let taken = swap.take(entry, pfn);
                    if !access.write || (taken.is_exclusive && !mark.uffd_wp) {
                        step = FaultOutcome::Done;
                    }
                    mapped = Some(pfn);
                    SwapFault::Map(SwappedPage { pfn, is_exclusive: taken.is_exclusive, other: taken.frame })
                }
                Ok(Lookup::Reading(pfn)) => {
                    step = FaultOutcome::SwapIn(entry);
                    SwapFault::Leave(Some(pfn))
                }
                Ok(Lookup::Stored(_)) => {
                    step = FaultOutcome::SwapIn(entry);
                    SwapFault::Leave(None)
                }
                Ok(Lookup::NotInUse) => {
                    debug_assert!(false, "the slot of a swap entry at {page:#x} is not in use");
                    SwapFault::Leave(None)
                }
                Err(stale) => SwapFault::Leave(Some(stale)),
            }
        };
        // The result says whether a page was mapped; `mapped` has its frame.
        let _ = self.vm.map_swapped(table, VirtAddr::new(page), vma.anon_page(page), rights, take);
        [copy, stale].into_iter().flatten().for_each(|frame| self.engine.memory().put_frame(frame));
        if mapped.is_some_and(|pfn| self.engine.lose_if_failed(&self.vm, page, pfn)) {
            return FaultOutcome::Retry;
        }
        step
    }

    /// Brings the page of the swap entry at `addr` into the swap cache. The entry may be gone by now; nothing
    /// is wrong then. The caller starts the fault over.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory, or if a fatal signal ends the wait. Also fails if the entry is still
    /// there, and the device could not read the page, or the memory of its frame failed and the device does
    /// not have the page.
    ///
    /// # Locks
    ///
    /// None during a read. Before a read, after a failed read, and for failed memory, the VMA's lock or the
    /// mmap lock for reading. The caller holds no lock.
    pub(crate) fn swap_in(&self, entry: SwapEntry, addr: u64) -> Result<(), FaultError> {
        let page = addr & !(PAGE_SIZE - 1);
        let window = || Ok(self.in_vma(page, |vma| self.swap_window(vma, page))?.unwrap_or_default());
        let error = match self.engine.files().swap_in(entry, PageOwner::Space(self.vm.mmu()), window) {
            Ok(()) => return Ok(()),
            Err(SwapInError::NoMemory) => return Err(FaultError::OutOfMemory),
            Err(SwapInError::Killed) => return Err(FaultError::Killed),
            Err(SwapInError::Io) => FaultError::Bus { addr },
            Err(SwapInError::Lost) => FaultError::MemoryFailed { addr },
        };
        if self.has_swap_entry(entry, addr)? { Err(error) } else { Ok(()) }
    }

    /// Returns true if this swap entry is at `addr`. The caller holds no lock.
    fn has_swap_entry(&self, entry: SwapEntry, addr: u64) -> Result<bool, Killed> {
        let page = addr & !(PAGE_SIZE - 1);
        let is_there = |_: &Vma<P>| {
            let (pte, _) = self.vm.read_entry(VirtAddr::new(page));
            SwapMark::of_entry(pte).is_some_and(|mark| mark.slot == entry.payload())
        };
        Ok(self.in_vma(page, is_there)?.unwrap_or(false))
    }
}
