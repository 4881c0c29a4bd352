//! Tables that several address spaces use together: one table of 2 MiB entries, hung into a slot of each.
//!
//! The entries of a shared table belong to all sharers: a change of one is a change for all, and the table's
//! lock is the same lock for all. What hangs there must therefore be mapped alike by all of them; the callers
//! see to that.
//!
//! | shares | meaning | leaves it by |
//! | --- | --- | --- |
//! | 0 | one space uses the table: it may unlink and free it | [`share`](PageTable::share): 1 |
//! | n, at most 2^31 | n + 1 spaces use it: each may leave, none may unlink | `share`: n + 1; [`unshare`](PageTable::unshare): n - 1 |
//!
//! The count has no second meaning: a reference that somebody takes to a table's memory is not counted here
//! (hazards C-15, C-16).
//!
//! A space that leaves owes the flush of all that the table translates, not of the part that its caller is
//! about (hazard C-17), and its processors' walk caches, and walkers without locks, must have let go of the
//! table before the last sharer may free it (hazard C-13). Both are one flush of the gather, however many
//! tables were left (hazard C-14): so the caller [flushes](crate::Gather::flush) before it lets go of the
//! lock that keeps the others from seeing themselves alone.

use crate::addr::{Level, VaRange, VirtAddr};
use crate::format::{Format, Kind};
use crate::gather::{Gather, Tlb};
use crate::memory::{TableMemory, same_memory};
use crate::page_table::{PageTable, TableError};
use crate::table::{PmdTable, StaleTranslations};
use freehold_sync::atomic::Ordering;

/// No table is shared by more. As many again are left for callers that ask at the same time.
const MAX_SHARERS: u32 = 1 << 31;

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Hangs `table`, which another space uses, into this space's tables as the one for `address`. False:
    /// another table hangs there already, or too many use it; then nothing has happened.
    ///
    /// Needs: what [`install`](crate::EntryGuard::install) needs here; and a lock that keeps `table` with the
    /// space that it was found in, against which [`unshare`](Self::unshare) is excluded, until this
    /// returns.
    ///
    /// # Errors
    /// No memory for the tables above, or something larger is mapped at `address`.
    ///
    /// # Panics
    /// When no table's span starts at `address`, or `table` is from another memory. Nothing happened.
    pub fn share(
        &self,
        memory: &M,
        address: VirtAddr,
        table: PmdTable<'_, F, M>,
    ) -> Result<bool, TableError> {
        assert!(same_memory(table.memory, memory), "a table is shared with another memory");
        assert_eq!(address.index(Level::Pmd), 0, "a part of a table cannot be shared");
        let slots = self.pud_table_alloc(memory, address)?;
        let slot = slots.entry(address);
        let Some((_, pfn)) = table.parent else { unreachable!("a table below the root has a parent") };
        let entry = F::table(pfn);
        // Relaxed: the lock that the caller holds orders counting against `unshare`. First, because a walk
        // that finds the table linked may not find it exclusive.
        let before = table.meta.shares.fetch_add(1, Ordering::Relaxed);
        if before >= MAX_SHARERS {
            table.meta.shares.fetch_sub(1, Ordering::Relaxed);
            return Ok(false);
        }
        // Release on success, pairs with the acquire of every walk. Relaxed on failure: nothing is followed.
        match slot.compare_exchange(0, entry, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Ok(true),
            Err(found) => {
                table.meta.shares.fetch_sub(1, Ordering::Relaxed);
                match F::kind(found, Level::Pud) {
                    Kind::Table { .. } => Ok(found == entry),
                    Kind::Leaf { .. } => Err(TableError::Huge(Level::Pud)),
                    Kind::Marker { .. } => Err(TableError::Marker(Level::Pud)),
                    // The compare failed, and zero alone means empty.
                    Kind::None => unreachable!("an entry that is neither empty nor anything else"),
                }
            }
        }
    }

    /// Takes the table of 2 MiB entries for `address` out of this space if others use it as well; its entries
    /// stay theirs. False: no other does, or there is none.
    ///
    /// Needs: nobody fills entries here meanwhile, nor shares the table; until `gather` has flushed, none of
    /// the others may see itself alone.
    pub fn unshare<T: Tlb, const FRAMES: usize>(
        &self,
        memory: &M,
        address: VirtAddr,
        gather: &mut Gather<'_, T, FRAMES>,
    ) -> bool {
        let Some(table) = self.pmd_table(memory, address) else { return false };
        // A task that has found the table and wants its lock sees by `is_linked` that it has gone from here.
        let _entries_stay = table.lock();
        if !table.is_shared() {
            return false;
        }
        let Some((slot, _)) = table.parent else { unreachable!("a table below the root has a parent") };
        gather.begin_change();
        // Release, pairs with the acquire of walks: one that sees the empty slot sees this gather counted.
        slot.store(0, Ordering::Release);
        gather.add_changed(VaRange::entry(address, Level::Pud), true);
        // Relaxed: see `share`. The flush comes between this and the end of the caller's lock.
        table.meta.shares.fetch_sub(1, Ordering::Relaxed);
        true
    }
}

impl<F: Format, M: TableMemory> PmdTable<'_, F, M> {
    /// Whether other spaces use the table, too. Exact under a lock that excludes sharing and unsharing; under
    /// one that excludes unsharing, `true` stays.
    pub fn is_shared(&self) -> bool {
        // Relaxed: see `PageTable::share`.
        self.meta.shares.load(Ordering::Relaxed) != 0
    }
}
