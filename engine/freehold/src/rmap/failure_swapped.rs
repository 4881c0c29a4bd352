//! Memory failure of a frame in the swap cache.
//!
//! A page in the swap cache may have no entry that maps it: it was read ahead, or it is being written. The
//! failure takes the frame out of the cache if the device has the contents. Otherwise the frame stays there,
//! marked as failed, and an access at a swap entry fails (`fault/swap.rs`). A write that ends after the
//! failure stores nothing (`end_write` in `swap/slot.rs`).
//!
//! A fault at a swap entry maps the page without the lock of the frame. The failure and the fault therefore
//! each write first, and then look at what the other one has written:
//!
//! | task | writes | fence, then looks at |
//! | --- | --- | --- |
//! | failure | the record: failed | the entries of the page, and replaces them by markers |
//! | fault ([`lose_if_failed`](Engine::lose_if_failed)) | the entry, and the count of entries in the record | the record, and replaces its entry by a marker |
//!
//! At least one of them finds the entry. A page of shared memory has no swap entries: it returns to its file
//! under the lock of the frame (`file/swapped.rs`). A failure therefore finds the page in one of the two
//! caches, and a return finds a frame that has failed. `tests/swapped/failed.rs` and
//! `shuttle_engine/failure.rs` test this file. `frame/loom_tests.rs` of `freehold-vmspace` tests the fences.

use super::{
    failure::{Damage, poison},
    walk::Page,
};
use crate::{Pfn, VirtAddr, engine::Engine, platform::Platform, swap::Shadow};
use freehold_pagetable::Level;
use freehold_vmspace::VmSpace;

impl<P: Platform> Engine<P> {
    /// Handles a failure of the memory of a frame whose page is in the swap cache, and that no entry maps.
    /// Returns `None` and changes nothing if there is no such page.
    ///
    /// # Locks
    ///
    /// The frame's lock; the home's lock for reading; page table locks one at a time. The caller holds none.
    pub(super) fn fail_swapped(&self, pfn: Pfn) -> Option<Damage> {
        if self.platform().frame(pfn).is_free() {
            return None;
        }
        // A swap-out holds the lock until all entries are swap entries, and a page of shared memory returns
        // to its file under the lock. The frame may be free by now, or may hold another page: the record of a
        // frame, and the lock in it, always exist.
        let identity = self.memory().lock_frame(pfn);
        if !self.platform().frame(pfn).get_cached() {
            return None;
        }
        let damage = self.fail_cached(pfn);
        drop(identity);
        self.memory().put_frame(pfn);
        damage
    }

    /// Implements [`fail_swapped`](Self::fail_swapped). The caller has a reference to the frame, and the lock
    /// of the frame.
    fn fail_cached(&self, pfn: Pfn) -> Option<Damage> {
        let (swap, frame) = (self.swap(), self.platform().frame(pfn));
        let entry = swap.entry_of(pfn)?;
        if frame.maps() != 0 || frame.has_failed() {
            return None;
        }
        self.note_failed(pfn);
        frame.fence_failure();
        // A fault may have mapped the page since.
        let page = self.page(pfn);
        if let Some(page) = &page {
            page.poison_entries();
            page.resolve_poison(true);
        }
        let shadow = Shadow::new(self.files().reclaim.evicted());
        // As for a page of a file, the page counts as lost if another task has a reference: a fault that has
        // found the page before the failure is about to map it, and loses it.
        let is_stored = match swap.drop_clean(entry, shadow) {
            true => frame.refs() == 1,
            false => swap.is_reading(entry),
        };
        self.platform().uncharge(&[pfn]);
        Some(if is_stored && page.is_none() { Damage::Dropped } else { Damage::Lost })
    }

    /// Replaces the entry at `address` of `vm` by a marker if the memory of `pfn` failed. Returns true if it
    /// failed. Called by a fault that has just mapped `pfn` there from the swap cache, and that holds a lock
    /// that keeps the tables.
    pub(crate) fn lose_if_failed(&self, vm: &VmSpace<P>, address: u64, pfn: Pfn) -> bool {
        // The record can be read without a reference: a frame that failed is never used again.
        if !self.platform().frame(pfn).has_failed_after_map() {
            return false;
        }
        if vm.take_entry(VirtAddr::new(address), Level::Pte, pfn, poison(pfn)) {
            self.platform().memory_failed(vm.mmu(), address);
        }
        true
    }
}

impl<P: Platform> Page<'_, P> {
    /// Marks the frame as failed, and replaces the entries that faults at swap entries have made since
    /// [`poison_entries`](Self::poison_entries). The page is in the swap cache.
    pub(super) fn poison_late_entries(&self) {
        self.frame().set_failed();
        self.frame().fence_failure();
        self.poison_entries();
    }
}
