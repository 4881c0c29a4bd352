//! Tables that several address spaces share: one table of 2 MiB entries that is linked into a slot of each
//! space.
//!
//! All sharers own the entries of a shared table. A change of an entry changes it for all sharers, and the
//! table has one lock for all of them. So all sharers must map the same objects there in the same way; the
//! callers ensure this.
//!
//! | shares | meaning | transition |
//! | --- | --- | --- |
//! | 0 | one space uses the table, and may unlink and free it | [`share`](PageTable::share): to 1 |
//! | n, at most 2^31 | n + 1 spaces use the table; each may leave, none may unlink it | `share`: to n + 1; [`unshare`](PageTable::unshare): to n - 1 |
//!
//! The count has no other meaning. A reference that a task takes to the memory of a table is not counted here
//! (hazards C-15, C-16). `tests/shared.rs` tests this file in one thread, and `tests/loom_share.rs` tests
//! concurrent calls.
//!
//! A space that leaves must flush the whole range that the table translates, not only the part that its
//! caller works on (hazard C-17). The walk caches of the processors of the leaving space must be flushed, and
//! the lock-free walkers of that space must have left the table. Only then may the last sharer free the table
//! (hazard C-13). One flush of the gather does both, for any number of tables that the space has unshared
//! (hazard C-14). The caller therefore [flushes](crate::Gather::flush) before it releases the lock that keeps
//! other spaces from becoming the only user of a table.

use crate::addr::{Level, Levels, VaRange, VirtAddr};
use crate::format::{Format, Kind};
use crate::gather::{Gather, Tlb};
use crate::memory::{TableMemory, same_memory};
use crate::page_table::{PageTable, TableError};
use crate::table::{PmdTable, StaleTranslations};
use freehold_sync::atomic::Ordering;

/// Maximum number of shares of a table. The range above this limit leaves room for callers that increment the
/// count at the same time.
const MAX_SHARERS: u32 = 1 << 31;

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Links `table`, which another space uses, into this space's tables as the table for `address`. Returns
    /// true if the table is linked there. Returns false and changes nothing if another table is already
    /// linked there, or if the table has too many sharers.
    ///
    /// The caller holds the locks that [`install`](crate::EntryGuard::install) needs in this space. The
    /// caller also holds a lock that keeps `table` linked in the space where it was found. The lock excludes
    /// [`unshare`](Self::unshare) there until this function returns.
    ///
    /// # Errors
    /// Fails with [`TableError::OutOfTables`] if there is no memory for the tables above, and with
    /// [`TableError::Huge`] or [`TableError::Marker`] if a larger leaf or marker is at `address`.
    ///
    /// # Panics
    /// Panics if no table's span starts at `address`, or if `table` is from another memory. Nothing has
    /// changed then.
    pub fn share(
        &self,
        memory: &M,
        address: VirtAddr,
        table: PmdTable<'_, F, M>,
    ) -> Result<bool, TableError> {
        assert!(same_memory(table.memory, memory), "the shared table is from another memory");
        assert_eq!(address.index(Level::Pmd), 0, "a part of a table cannot be shared");
        let slots = self.pud_table_alloc(memory, address)?;
        let slot = slots.entry(address);
        let Some((_, pfn)) = table.parent else { unreachable!("a table below the root has a parent") };
        let entry = F::table(pfn);
        // Relaxed: the lock that the caller holds orders the count against `unshare`. The count is raised
        // before the table is linked, because a walk that finds the table linked must not find it exclusive.
        let before = table.meta.shares.fetch_add(1, Ordering::Relaxed);
        if before >= MAX_SHARERS {
            table.meta.shares.fetch_sub(1, Ordering::Relaxed);
            return Ok(false);
        }
        // Release on success: pairs with the acquire of every walk. Relaxed on failure: `found` is compared
        // and never followed to a table.
        match slot.compare_exchange(0, entry, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Ok(true),
            Err(found) => {
                table.meta.shares.fetch_sub(1, Ordering::Relaxed);
                match F::kind(found, Level::Pud) {
                    Kind::Table { .. } => Ok(found == entry),
                    Kind::Leaf { .. } => Err(TableError::Huge(Level::Pud)),
                    Kind::Marker { .. } => Err(TableError::Marker(Level::Pud)),
                    // The exchange failed, so `found` is not zero, and no other value means empty.
                    Kind::None => unreachable!("a non-zero entry is decoded as empty"),
                }
            }
        }
    }

    /// Unlinks the table of 2 MiB entries for `address` from this space if other spaces also use it. The
    /// entries stay for the other spaces. Returns false if no other space uses the table, or if there is no
    /// table.
    ///
    /// No task may fill entries here or share the table during the call. Until `gather` has flushed, no other
    /// space may find that it is the only user of the table.
    pub fn unshare<T: Tlb, const FRAMES: usize>(
        &self,
        memory: &M,
        address: VirtAddr,
        gather: &mut Gather<'_, T, FRAMES>,
    ) -> bool {
        let Some(table) = self.pmd_table(memory, address) else { return false };
        // A task that has found the table and waits for its lock calls `is_linked`, and so detects that the
        // table was unlinked here.
        let _entries_stay = table.lock();
        if !table.is_shared() {
            return false;
        }
        let Some((slot, _)) = table.parent else { unreachable!("a table below the root has a parent") };
        gather.begin_change();
        // Release: pairs with the acquire of walks. A walk that sees the empty slot also sees this gather
        // counted.
        slot.store(0, Ordering::Release);
        gather.add_changed(VaRange::entry(address, Level::Pud), Levels::ALL, true);
        // Relaxed: see `share`. The flush comes between this store and the release of the caller's lock.
        table.meta.shares.fetch_sub(1, Ordering::Relaxed);
        true
    }
}

impl<F: Format, M: TableMemory> PmdTable<'_, F, M> {
    /// Returns true if other spaces also use the table. The result is exact under a lock that excludes
    /// sharing and unsharing. Under a lock that excludes only unsharing, the result `true` stays valid.
    pub fn is_shared(&self) -> bool {
        // Relaxed: see `PageTable::share`.
        self.meta.shares.load(Ordering::Relaxed) != 0
    }
}
