#![expect(unsafe_code, reason = "reclaiming a table that a task uses breaks the contract of memory")]

//! Reclaiming a table of the lowest level while other tasks may find it.
//!
//! Guarantee: a task that has [locked](EntryTable::lock_linked) a table of the lowest level works on the one
//! that hangs at its address, and the table hangs there until the lock is released. A table is freed when no
//! entry leads to it, and no processor walks through it.
//!
//! [`unlink_tables`](crate::PageTable::unlink_tables) needs a span that no other task can come to. A discard
//! (MADV_DONTNEED) empties tables under the VMA's read lock, beside faults and other walks of the same VMA.
//! So a table is reclaimed under its own lock, which is held already and for which no other task waits
//! longer:
//!
//! | state | slot of the table above | entries | lock | next |
//! | --- | --- | --- | --- | --- |
//! | linked | the table | anything | tasks that change an entry | `reclaim`, under the lock, if all entries are empty: unlinked |
//! | unlinked | empty, or whatever was put there since | empty | late tasks, which find it unlinked and walk again | the flush of the gather: free |
//! | free | the same | anything | the same; tasks that use the table next | |
//!
//! A *late* task found the table in the slot before it was unlinked. It does one of two things:
//!
//! - It locks the table, then reads the slot again ([`EntryGuard::is_linked`]). The slot changes from this
//!   table to anything else under this lock only, or where no other task can come. If the slot has another
//!   value, the task releases the lock and walks again. If it has the table, the table is the right one, also
//!   if it was free in between.
//! - It [reads an entry](EntryTable::peek) without the lock. What it reads is a hint: an entry of this
//!   address, nothing, or any word at all. [`TableMemory`] promises that the memory stays readable. The task
//!   decides nothing by a hint but what it tries next under the lock.
//!
//! | store | load | so that |
//! | --- | --- | --- |
//! | slot, release, in `reclaim` | slot, acquire, of every walk | a task that finds the slot empty finds this gather counted (hazard C-4) |
//! | slot, release, in `reclaim`; then the lock's release | the lock's acquire; then slot, in `is_linked` | a task that locks the table later finds it unlinked |
//! | slot, release, in `PageTable::fill` | slot, acquire, in `is_linked` | a late task that finds the table back in the slot finds it zeroed |
//!
//! The hardware and walkers that only try for the lock are waited for by the flush, which says that tables
//! were freed. No table is kept with one of the lowest level, and no other space shares one, so nothing else
//! refers to it.

use crate::addr::ENTRIES;
use crate::format::Format;
use crate::gather::{Gather, Tlb};
use crate::groups;
use crate::memory::TableMemory;
use crate::table::{PteGuard, StaleTranslations};
use freehold_sync::atomic::{CHECKED, Ordering};

#[cfg(doc)]
use crate::table::{EntryGuard, EntryTable};

impl<F: Format, M: TableMemory> PteGuard<'_, F, M> {
    /// Unlinks the table if every entry is empty, and hands it to `gather`, which frees it after the flush.
    /// Returns whether it did. Costs one load where it does not: a table of which only a part was
    /// [zapped](Self::zap_each) may be taken for one that is not empty.
    ///
    /// The caller holds the mmap lock or a VMA's lock, in any mode, and the whole span lies in that VMA.
    ///
    /// # Safety
    ///
    /// This guard found the table linked. Until the table is freed, and after, each task that found it does
    /// nothing to it but what the [module](self) allows a late task: in particular it does not use
    /// [`lock`](EntryTable::lock). No other call unlinks the table. `gather` is of this space, and its `Tlb`
    /// frees tables to this table's memory.
    ///
    /// # Panics
    /// When `gather` has no room for a table, which [`make_capacity`](Gather::make_capacity) makes.
    #[inline]
    pub unsafe fn reclaim<T: Tlb, const FRAMES: usize>(self, gather: &mut Gather<'_, T, FRAMES>) -> bool {
        let is_empty = groups::filled(self.table.meta, 0, ENTRIES) == 0;
        if is_empty {
            self.unlink(gather);
        }
        is_empty
    }

    #[inline(never)]
    fn unlink<T: Tlb, const FRAMES: usize>(self, gather: &mut Gather<'_, T, FRAMES>) {
        let Some((slot, pfn)) = self.table.parent else { unreachable!("a lowest table is not the root") };
        // Not under a checker, as in `unlink_tables`.
        debug_assert!(
            CHECKED || self.table.table.is_zero(),
            "a table of {:?} goes that is not empty",
            self.span()
        );
        gather.begin_change();
        // Release: see the module's table. A plain store: nothing else changes the slot of a linked table.
        slot.store(0, Ordering::Release);
        gather.add_reclaimed_table(pfn, self.span());
    }
}
