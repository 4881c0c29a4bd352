#![expect(unsafe_code, reason = "reclaiming a table that is in use breaks the contract of `TableMemory`")]

//! Reclaiming a table of the lowest level while other tasks may find it.
//!
//! The protocol guarantees three things. If a task has [locked](EntryTable::lock_linked) a table of the
//! lowest level, this table is linked at its address. The table stays linked until the lock is released. A
//! table is freed only when no entry points to it and no processor walks through it.
//!
//! [`unlink_tables`](crate::PageTable::unlink_tables) needs a span that no other task can reach. A discard
//! (`MADV_DONTNEED`) empties tables under the VMA's read lock, concurrently with faults and other walks of
//! the same VMA. So a table is reclaimed under its own lock. The discard holds this lock already, so
//! reclaiming makes no other task wait longer. A table has these states:
//!
//! | state | slot of the table above | entries | lock | next |
//! | --- | --- | --- | --- | --- |
//! | linked | the table | any | taken by tasks that change an entry | unlinked: by `reclaim`, under the lock, if all entries are empty |
//! | unlinked | empty, or a later entry | empty | taken by late tasks, which find the table unlinked and walk again | free: after the flush of the gather |
//! | free | empty, or a later entry | any | taken by late tasks, and by tasks that use the table next | |
//!
//! A *late* task found the table in the slot before the table was unlinked. A late task does one of two
//! things:
//!
//! - The task locks the table, then reads the slot again ([`EntryGuard::is_linked`]). While tasks can reach
//!   the slot, the slot changes from this table to another value only under this table's lock. If the slot
//!   has another value, the task releases the lock and walks again. If the slot still points to the table,
//!   the task may use the table, even if the table was free in between.
//! - The task [reads an entry](EntryTable::peek) without the lock. The value is a hint: an entry of this
//!   address, an empty entry, or any other word. [`TableMemory`] promises that the memory stays readable. The
//!   task uses a hint only to decide what to try next under the lock.
//!
//! | store | load | effect |
//! | --- | --- | --- |
//! | slot, release, in `reclaim` | slot, acquire, of every walk | a task that finds the slot empty finds this gather counted (hazard C-4) |
//! | slot, release, in `reclaim`; then the lock's release | the lock's acquire; then slot, in `is_linked` | a task that locks the table later finds it unlinked |
//! | slot, release, in `install_table` | slot, acquire, in `is_linked` | a late task that finds the table in the slot again finds it zeroed |
//!
//! The flush has `tables_freed` set, so it waits for the hardware and for walkers that only try to take the
//! lock. No table is deposited with a table of the lowest level, and no other space shares such a table. So
//! nothing else refers to the table. `tests/reclaim.rs` tests the steps in one thread, and
//! `tests/loom_reclaim.rs` tests them with late tasks.

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
    /// Returns true if the table was unlinked. If the table is not empty, the call costs one load. A table
    /// that was only partly [zapped](Self::zap_each) may count as not empty, even if all its entries are
    /// empty.
    ///
    /// The caller holds the mmap lock or a VMA's lock, in any mode, and the whole span of the table lies in
    /// that VMA.
    ///
    /// # Safety
    ///
    /// The table was linked when this guard locked it. Every task that has found the table keeps the rules of
    /// the [module](self) for late tasks, both before and after the table is freed. In particular, such a
    /// task does not use [`lock`](EntryTable::lock). No other call unlinks the table. `gather` belongs to
    /// this space, and its `Tlb` frees tables to this table's memory.
    ///
    /// # Panics
    /// Panics if `gather` has no room for a table; [`make_capacity`](Gather::make_capacity) makes room.
    #[inline]
    pub unsafe fn reclaim<T: Tlb, const FRAMES: usize>(self, gather: &mut Gather<'_, T, FRAMES>) -> bool {
        let is_empty = groups::filled(self.table.meta, 0, ENTRIES) == 0;
        if is_empty {
            self.unlink(gather);
        }
        is_empty
    }

    /// Unlinks this table, which has no entries: empties its slot in the parent, and gives the table to the
    /// gather.
    #[inline(never)]
    fn unlink<T: Tlb, const FRAMES: usize>(self, gather: &mut Gather<'_, T, FRAMES>) {
        let Some((slot, pfn)) = self.table.parent else { unreachable!("a lowest table has a parent") };
        // Not checked in builds of a model checker, as in `unlink_tables`.
        debug_assert!(
            CHECKED || self.table.table.is_zero(),
            "the reclaimed table of {:?} is not empty",
            self.span()
        );
        gather.begin_change();
        // Release: see the module's table. A plain store: no other task changes the slot of a linked table.
        slot.store(0, Ordering::Release);
        gather.add_reclaimed_table(pfn, self.span());
    }
}
