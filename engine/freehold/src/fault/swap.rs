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
//! If the memory of a frame in the cache failed, the page is lost only if the device does not have it.
//! Otherwise `swap_in` takes the frame out of the cache, and the page is read again into another frame.
//!
//! N tasks that need a page cause one read: the first one makes the slot *being read*, and the others wait. A
//! failed read is an error for all of them, but only if the entry is still there. `swap_ahead.rs` reads more
//! pages. `resolve` in `mod.rs` calls this file. `tests/swapped/` and `shuttle_engine/swapped.rs` test it.

use super::{Access, FaultError, FaultOutcome, vma_pte_flags, written};
use crate::{
    PAGE_SIZE, VirtAddr,
    file::HasFiles,
    platform::{PageOwner, Platform},
    space::AddressSpace,
    swap::{Lookup, Shadow, SwapEntry, SwapReadError},
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
        let mut step = FaultOutcome::Retry;
        let take = |mark: SwapMark| {
            let entry = SwapEntry::from_payload(mark.slot);
            match swap.lookup_locked(entry) {
                Ok(Lookup::Cached(pfn)) if self.platform().frame(pfn).has_failed() => {
                    step = FaultOutcome::SwapIn(entry);
                    SwapFault::Leave(Some(pfn))
                }
                Ok(Lookup::Cached(pfn)) => {
                    let taken = swap.take(entry, pfn);
                    if !access.write || (taken.is_exclusive && !mark.uffd_wp) {
                        step = FaultOutcome::Done;
                    }
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
        // The result says whether a page was mapped; `step` has all that matters.
        let _ = self.vm.map_swapped(table, VirtAddr::new(page), vma.anon_page(page), rights, take);
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
        let (swap, memory, page) = (self.engine.swap(), self.engine.memory(), addr & !(PAGE_SIZE - 1));
        let pfn = match swap.lookup(entry) {
            Lookup::NotInUse => return Ok(()),
            Lookup::Cached(pfn) => {
                let is_lost = self.platform().frame(pfn).has_failed() && !self.drop_failed(entry);
                memory.put_frame(pfn);
                return match is_lost && self.has_swap_entry(entry, addr)? {
                    true => Err(FaultError::MemoryFailed { addr }),
                    false => Ok(()),
                };
            }
            Lookup::Reading(pfn) => pfn,
            Lookup::Stored(shadow) => {
                let ahead = self.in_vma(page, |vma| self.swap_window(vma, page))?.unwrap_or_default();
                let owner = PageOwner::Space(self.vm.mmu());
                let pfn = memory.alloc_swap(owner).map_err(|_| FaultError::OutOfMemory)?;
                let frame = self.platform().frame(pfn);
                // Twice, so that the page counts as accessed: reclaim does not drop it from the cache at
                // once.
                (0..2).for_each(|_| frame.mark_accessed());
                frame.set_first_age(self.engine.files().reclaim.swapped_in(shadow.get()).byte());
                let Some(request) = swap.begin_read(entry, pfn) else {
                    memory.put_frame(pfn);
                    return Ok(());
                };
                self.read_ahead(request, entry, &ahead);
                pfn
            }
        };
        let read = swap.wait_for_read(entry, pfn);
        memory.put_frame(pfn);
        match read {
            Ok(()) => Ok(()),
            Err(SwapReadError::Killed) => Err(FaultError::Killed),
            Err(SwapReadError::Io) if self.has_swap_entry(entry, addr)? => Err(FaultError::Bus { addr }),
            Err(SwapReadError::Io) => Ok(()),
        }
    }

    /// Takes a frame whose memory failed out of the swap cache. Returns false if the device does not have the
    /// page.
    fn drop_failed(&self, entry: SwapEntry) -> bool {
        let shadow = Shadow::new(self.engine.files().reclaim.evicted());
        self.engine.swap().drop_clean(entry, shadow)
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

    /// Calls `f` with the VMA at `page`, if there is one, and a lock that keeps it and its tables. The caller
    /// holds no lock.
    fn in_vma<R>(&self, page: u64, f: impl FnOnce(&Vma<P>) -> R) -> Result<Option<R>, Killed> {
        if self.tries_vma_lock()
            && let Ok(vma) = self.lock_vma(page)
        {
            return Ok(Some(f(&vma)));
        }
        let guard = self.read_killable()?;
        Ok(guard.find(page).map(f))
    }
}
