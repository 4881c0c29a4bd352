#![expect(unsafe_code, reason = "gives an unused table back to its memory, whose contract is unsafe")]

//! Splitting a leaf above 4 KiB into a table of smaller leaves.

use crate::addr::{ENTRIES, Level, Pfn, VirtAddr};
use crate::format::{Format, Kind, Pte, PteFlags};
use crate::groups;
use crate::memory::{OutOfTables, Table, TableMemory};
use crate::table::EntryTable;
use freehold_sync::atomic::{AtomicU64, Ordering};

impl<F: Format, M: TableMemory, const LEVEL: usize> EntryTable<'_, F, M, LEVEL> {
    /// Replaces the leaf of `address`, if there is one, by a table of leaves of the next lower level that
    /// map the same frames with the same rights. Returns whether there was one. Takes this table's lock.
    ///
    /// What is translated does not change, so nothing is flushed: a TLB may keep the large translation
    /// until one of the small ones is changed and flushed, and a flush of any part of a large translation
    /// removes all of it. (Some processors have errata about translations of two sizes; a platform for
    /// such a one flushes the leaf before it calls this.)
    ///
    /// The new table is one that was [kept](crate::EntryGuard::deposit) for this, if there is one.
    ///
    /// # Errors
    /// No memory for the table; nothing happened.
    ///
    /// # Panics
    /// For a table of the lowest level.
    pub fn split(self, address: VirtAddr) -> Result<bool, OutOfTables> {
        let mut own = None;
        loop {
            if !self.peek(address).is_leaf(Self::LEVEL) {
                return Ok(false);
            }
            let mut guard = self.lock();
            if !guard.get(address).is_leaf(Self::LEVEL) {
                continue;
            }
            let Some(new) = guard.withdraw().or_else(|| own.take()) else {
                // Not under the lock; nor is it freed there, if another is found meanwhile.
                drop(guard);
                own = Some(PreallocatedTable::try_new(self.memory)?);
                continue;
            };
            replace_leaf_by_table::<F>(self.entry(address), Self::LEVEL, new.into_pfn(), self.memory);
            drop(guard);
            return Ok(true);
        }
    }
}

/// An empty table that nobody else knows, to be [kept](crate::EntryGuard::deposit) for the split of a leaf.
/// It goes back to its memory when it is dropped, which is better not done under a table's lock.
///
/// # Invariants
///
/// The table came from the memory's `alloc_table`, is empty, and is linked nowhere.
#[must_use]
pub struct PreallocatedTable<'m, M: TableMemory> {
    memory: &'m M,
    table: Pfn,
}

impl<'m, M: TableMemory> PreallocatedTable<'m, M> {
    /// A new one.
    ///
    /// # Errors
    /// No memory.
    pub fn try_new(memory: &'m M) -> Result<Self, OutOfTables> {
        Ok(PreallocatedTable { memory, table: memory.alloc_table()? })
    }

    /// The table's number.
    pub fn pfn(&self) -> Pfn {
        self.table
    }

    /// One that [`into_pfn`](Self::into_pfn) has given up.
    pub(crate) fn from_pfn(memory: &'m M, table: Pfn) -> Self {
        PreallocatedTable { memory, table }
    }

    /// The caller keeps the invariants for the number it gets, or links the table.
    pub(crate) fn into_pfn(self) -> Pfn {
        let table = self.table;
        core::mem::forget(self);
        table
    }

    /// Where it came from, and goes back to.
    pub(crate) fn memory(&self) -> &'m M {
        self.memory
    }
}

impl<M: TableMemory> Drop for PreallocatedTable<'_, M> {
    fn drop(&mut self) {
        // SAFETY: the invariants.
        unsafe { self.memory.free_table(self.table) }
    }
}

/// Fills `new` from the leaf in `entry` and puts it in the leaf's place. Meanwhile the hardware may set the
/// leaf's accessed and dirty bits, which must not be lost: then the exchange fails and the table is filled
/// again.
fn replace_leaf_by_table<F: Format>(entry: &AtomicU64, level: Level, new: Pfn, memory: &impl TableMemory) {
    if level.below() == Level::Pte {
        groups::set_all_filled(memory.table_meta(new));
    }
    // Relaxed: a leaf is written under the lock that the caller holds.
    let mut raw = entry.load(Ordering::Relaxed);
    loop {
        let Kind::Leaf { pfn, flags } = F::kind(raw, level) else {
            unreachable!("a leaf went away under its table's lock");
        };
        fill_with_leaves::<F>(memory.table(new), level.below(), pfn, flags);
        // Release on success, pairs with the acquire of every walk: the table is seen filled.
        // Relaxed on failure: only accessed and dirty bits can have changed.
        match entry.compare_exchange(raw, F::table(new), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => raw = now,
        }
    }
}

fn fill_with_leaves<F: Format>(table: &Table, level: Level, pfn: Pfn, flags: PteFlags) {
    for index in 0..ENTRIES {
        let part = pfn.add(index as u64 * level.frames());
        let pte = Pte::<F>::leaf(level, part, flags);
        // Relaxed: the table is published by the exchange in `hang`.
        table.entry(index).store(pte.raw(), Ordering::Relaxed);
    }
}
