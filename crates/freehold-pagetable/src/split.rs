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
    /// # Errors
    /// No memory for the table; nothing happened.
    ///
    /// # Panics
    /// For a table of the lowest level.
    pub fn split(self, address: VirtAddr) -> Result<bool, OutOfTables> {
        let below = Self::LEVEL.below();
        if !self.peek(address).is_leaf(Self::LEVEL) {
            return Ok(false);
        }
        let new = self.memory.alloc_table()?;
        let table = self.memory.table(new);
        let guard = self.lock();
        if below == Level::Pte {
            groups::fill_all(self.memory.table_meta(new));
        }
        let done = hang::<F>(self.entry(address), Self::LEVEL, new, table);
        drop(guard);
        if !done {
            clear(table);
            self.memory.table_meta(new).reset();
            // SAFETY: the table came from `alloc_table` above and was never linked: only we know it.
            unsafe { self.memory.free_table(new) }
        }
        Ok(done)
    }
}

/// Fills `table` from the leaf in `entry` and puts it in the leaf's place; `false` when there is no leaf.
/// Meanwhile the hardware may set the leaf's accessed and dirty bits, which must not be lost: then the
/// exchange fails and the table is filled again.
fn hang<F: Format>(entry: &AtomicU64, level: Level, new: Pfn, table: &Table) -> bool {
    // Relaxed: only a leaf matters, which is written under the lock that the caller holds.
    let mut raw = entry.load(Ordering::Relaxed);
    loop {
        let Kind::Leaf { pfn, flags } = F::kind(raw, level) else { return false };
        fill::<F>(table, level.below(), pfn, flags, F::pkey(raw));
        // Release on success, pairs with the acquire of every walk: the table is seen filled.
        // Relaxed on failure: only accessed and dirty bits can have changed.
        match entry.compare_exchange(raw, F::table(new), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => raw = now,
        }
    }
}

fn fill<F: Format>(table: &Table, level: Level, pfn: Pfn, flags: PteFlags, pkey: u8) {
    for index in 0..ENTRIES {
        let part = pfn.add(index as u64 * level.frames());
        let pte = Pte::<F>::leaf(level, part, flags).with_pkey(pkey);
        // Relaxed: the table is published by the exchange in `hang`.
        table.entry(index).store(pte.raw(), Ordering::Relaxed);
    }
}

fn clear(table: &Table) {
    for index in 0..ENTRIES {
        // Relaxed: nobody else knows the table.
        table.entry(index).store(0, Ordering::Relaxed);
    }
}
