#![expect(unsafe_code, reason = "calls `TableMemory::free_table`, which is unsafe")]

//! Splitting a leaf above 4 KiB into a table of smaller leaves, and installing such a leaf where a table may
//! have been.
//!
//! # Splitting
//!
//! The new table translates the same addresses with the same rights, so a split flushes nothing and needs
//! only the lock of the table that has the leaf. On a format with
//! [break-before-make](Format::BREAK_BEFORE_MAKE), the split *closes* the leaf: it sets
//! [`NO_ACCESS`](PteFlags::NO_ACCESS), flushes the leaf, and only then links the table. The table's lock is
//! held all the time. The closed leaf is not empty, so no task without the lock links a table of its own
//! there, and a fault that finds the closed leaf waits for the lock or is raised again. If a table was
//! deposited for such a split (`table.rs` defines the term), the split uses the deposited table and allocates
//! nothing. [`PreallocatedTable`] owns a table until it is deposited or linked. A huge page of anonymous
//! memory always has a deposited table, because a munmap of a part of the page must not fail. Collapsing is
//! in `fault/collapse.rs` of `freehold`.
//!
//! # Installing
//!
//! A slot may be empty because a gather has unlinked a table that it has not flushed yet. On a format with
//! break-before-make, no walk cache may hold that table while a large leaf is live.
//! [`install_large`](EntryGuard::install_large) therefore installs the leaf closed, and opens it after a
//! flush if a gather is unfinished.
//!
//! # Tests
//!
//! `tests/tables.rs` tests that a split changes no translation, `tests/kept.rs` tests splits with deposited
//! tables, and `tests/loom.rs` tests splits while the hardware walks (C-62), and large leaves that replace
//! tables.

use crate::addr::{ENTRIES, Level, Pfn, VaRange, VirtAddr};
use crate::format::{Format, Kind, Pte, PteFlags};
use crate::gather::{Flush, Gather, Tlb};
use crate::groups;
use crate::memory::{OutOfTables, Table, TableMemory, alloc_table};
use crate::table::{EntryGuard, EntryTable, NotCached};
use freehold_sync::atomic::{AtomicU64, Ordering};

impl<F: Format, M: TableMemory, const LEVEL: usize> EntryGuard<'_, F, M, LEVEL> {
    /// Installs a leaf above 4 KiB in the slot of `address`. Returns false if the slot is not empty. `gather`
    /// has no changes. On a format with [break-before-make](Format::BREAK_BEFORE_MAKE), no walk cache holds a
    /// table of this slot once the leaf permits accesses.
    ///
    /// # Panics
    /// Panics if `leaf` points to a table.
    pub fn install_large<T: Tlb, const FRAMES: usize>(
        &mut self,
        address: VirtAddr,
        leaf: Pte<F>,
        gather: &mut Gather<'_, T, FRAMES>,
    ) -> bool {
        if !F::BREAK_BEFORE_MAKE {
            return self.install(address, leaf).is_ok();
        }
        let closed = self.install(address, leaf.closed(EntryTable::<F, M, LEVEL>::LEVEL)).is_ok();
        if closed {
            // `peek` acquires: this task then sees the gather counted that emptied the slot. The exchange of
            // `install` continues the release sequence of the store that emptied the slot.
            let _ = self.table.peek(address);
            gather.finish();
            self.replace(address, leaf, &mut NotCached);
        }
        closed
    }
}

impl<F: Format, M: TableMemory, const LEVEL: usize> EntryTable<'_, F, M, LEVEL> {
    /// Replaces the leaf of `address`, if there is one, by a table of leaves of the next lower level. The new
    /// leaves map the same frames with the same rights. Returns true if there was a leaf. Takes this table's
    /// lock.
    ///
    /// No translation changes, so nothing is flushed, except on a format with
    /// [break-before-make](Format::BREAK_BEFORE_MAKE): there `tlb` flushes the leaf under this table's lock.
    /// On other formats a TLB may keep the large translation until one of the small ones is changed and
    /// flushed. A flush of any part of a large translation removes all of it. (Some processors have errata
    /// about translations of two sizes. A platform for such a processor flushes the leaf before it calls this
    /// function.)
    ///
    /// Uses a table that was [deposited](crate::EntryGuard::deposit) for this purpose, if there is one.
    /// Otherwise allocates a table of the space with this root.
    ///
    /// # Errors
    /// Fails with [`OutOfTables`] if there is no memory for the table. Nothing has changed then.
    ///
    /// # Panics
    /// Panics for a table of the lowest level.
    pub fn split(self, tlb: &impl Tlb, root: Pfn, address: VirtAddr) -> Result<bool, OutOfTables> {
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
                // Allocate without the lock. If the next round finds a deposited table, the allocated table
                // is freed at the end, also without the lock.
                drop(guard);
                own = Some(PreallocatedTable::try_new(self.memory, root)?);
                continue;
            };
            let (entry, new) = (self.entry(address), new.into_pfn());
            if F::BREAK_BEFORE_MAKE {
                let flags = close::<F>(entry, Self::LEVEL);
                tlb.flush(&Flush::leaves(VaRange::entry(address, Self::LEVEL), Self::LEVEL));
                replace_closed_leaf_by_table::<F>(entry, Self::LEVEL, flags, new, self.memory);
            } else {
                replace_leaf_by_table::<F>(entry, Self::LEVEL, new, self.memory);
            }
            drop(guard);
            return Ok(true);
        }
    }
}

/// An empty table that is linked nowhere, to be [deposited](crate::EntryGuard::deposit) for the split of a
/// leaf. Dropping the value frees the table to its memory. A caller should not drop the value under a table's
/// lock.
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
    /// Allocates a table of the space with this root.
    ///
    /// # Errors
    /// Fails with [`OutOfTables`] if there is no memory.
    pub fn try_new(memory: &'m M, root: Pfn) -> Result<Self, OutOfTables> {
        Ok(PreallocatedTable { memory, table: alloc_table(memory, Some(root))? })
    }

    /// Returns the number of the table.
    pub fn pfn(&self) -> Pfn {
        self.table
    }

    /// Returns a table from a number that [`into_pfn`](Self::into_pfn) returned.
    pub(crate) fn from_pfn(memory: &'m M, table: Pfn) -> Self {
        PreallocatedTable { memory, table }
    }

    /// Returns the number of the table and passes the ownership to the caller. The caller keeps the
    /// invariants for the table, or links the table.
    pub(crate) fn into_pfn(self) -> Pfn {
        let table = self.table;
        core::mem::forget(self);
        table
    }

    /// Returns the memory that the table came from.
    pub(crate) fn memory(&self) -> &'m M {
        self.memory
    }
}

impl<M: TableMemory> Drop for PreallocatedTable<'_, M> {
    fn drop(&mut self) {
        // SAFETY: by the invariants, the table came from `alloc_table`, is empty and is linked nowhere.
        unsafe { self.memory.free_table(self.table) }
    }
}

/// Takes all rights from the leaf in `entry`. Returns the flags that the leaf had, with the accessed and
/// dirty bits that the hardware has set.
fn close<F: Format>(entry: &AtomicU64, level: Level) -> PteFlags {
    // Relaxed: a leaf is written under the lock that the caller holds.
    let mut raw = entry.load(Ordering::Relaxed);
    loop {
        let closed = Pte::<F>::from_raw(raw).closed(level).raw();
        // Relaxed: the frames behind the leaf stay. On failure only accessed and dirty bits can have changed.
        match entry.compare_exchange(raw, closed, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return F::flags(raw),
            Err(now) => raw = now,
        }
    }
}

/// Fills `new` from the closed leaf in `entry`, whose parts get `flags`, and replaces the leaf by `new`. No
/// TLB holds the leaf, and the hardware does not write it.
fn replace_closed_leaf_by_table<F: Format>(
    entry: &AtomicU64,
    level: Level,
    flags: PteFlags,
    new: Pfn,
    memory: &impl TableMemory,
) {
    if level.below() == Level::Pte {
        groups::set_all_filled(memory.table_meta(new));
    }
    // Relaxed: see `close`.
    let pfn = F::pfn(entry.load(Ordering::Relaxed));
    fill_with_leaves::<F>(memory.table(new), level.below(), pfn, flags);
    // Release: pairs with the acquire of every walk, so the table is seen filled.
    entry.store(F::table(new), Ordering::Release);
}

/// Fills `new` from the leaf in `entry` and replaces the leaf by `new`. If the hardware sets the leaf's
/// accessed or dirty bit during the call, the exchange fails, and the table is filled again with these bits,
/// so that they are not lost.
fn replace_leaf_by_table<F: Format>(entry: &AtomicU64, level: Level, new: Pfn, memory: &impl TableMemory) {
    if level.below() == Level::Pte {
        groups::set_all_filled(memory.table_meta(new));
    }
    // Relaxed: a leaf is written under the lock that the caller holds.
    let mut raw = entry.load(Ordering::Relaxed);
    loop {
        let Kind::Leaf { pfn, flags } = F::kind(raw, level) else {
            unreachable!("the leaf changed under its table's lock");
        };
        fill_with_leaves::<F>(memory.table(new), level.below(), pfn, flags);
        // Release on success: pairs with the acquire of every walk, so the table is seen filled. Relaxed on
        // failure: only accessed and dirty bits can have changed.
        match entry.compare_exchange(raw, F::table(new), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => raw = now,
        }
    }
}

/// Fills a table that is not linked yet with leaves of `level`: the parts of a leaf that starts at `pfn`.
fn fill_with_leaves<F: Format>(table: &Table, level: Level, pfn: Pfn, flags: PteFlags) {
    for index in 0..ENTRIES {
        let part = pfn.add(index as u64 * level.frames());
        let pte = Pte::<F>::leaf(level, part, flags);
        // Relaxed: the exchange in `replace_leaf_by_table` publishes the table.
        table.entry(index).store(pte.raw(), Ordering::Relaxed);
    }
}
