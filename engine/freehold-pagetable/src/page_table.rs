#![expect(unsafe_code, reason = "calls `TableMemory::free_table`, which is unsafe")]

//! The page tables of one address space: creating tables, walking down, and filling upper levels.
//!
//! The type finds tables and creates them; `table.rs` has the operations on one table and its lock. Upper
//! levels are filled by compare-and-swap, so creating a table takes no lock. Other files unlink tables:
//! `unlink.rs`, `reclaim.rs` and, for shared tables, `share.rs`. The caller's locks keep a found table
//! linked; the [crate's protocol](crate#the-protocol) says which locks suffice. `tests/tables.rs` tests this
//! file with one thread, and `tests/loom.rs` tests concurrent installs.

use crate::addr::{ENTRIES, Level, PAGE_SHIFT, Pfn, VaRange, VirtAddr};
use crate::format::{Format, Kind, Pte};
use crate::memory::{OutOfTables, TableMemory, alloc_table};
use crate::table::{EntryTable, PmdTable, PteGuard, PteTable, PudTable};
use core::fmt;
use core::marker::PhantomData;
use freehold_sync::atomic::{AtomicU64, Ordering};

/// Reasons why there is no table to install into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// There is no memory for a table.
    OutOfTables,
    /// A leaf of this level, above the requested table, already maps the address.
    Huge(Level),
    /// A marker of this level, above the requested table, is at the address.
    Marker(Level),
}

impl From<OutOfTables> for TableError {
    fn from(_: OutOfTables) -> Self {
        TableError::OutOfTables
    }
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableError::OutOfTables => OutOfTables.fmt(f),
            TableError::Huge(level) => write!(f, "a leaf of level {level:?} is in the way"),
            TableError::Marker(level) => write!(f, "a marker of level {level:?} is in the way"),
        }
    }
}

impl core::error::Error for TableError {}

/// The page tables of one address space.
///
/// The type does not own the memory of its tables. Every call gets the memory as an argument, and all calls
/// must get the same memory. [`destroy`](Self::destroy) frees the root.
pub struct PageTable<F, M> {
    /// The root table. Never changes.
    root: Pfn,
    format: PhantomData<(F, fn() -> M)>,
}

/// Returns true if the page size of this build is among `shifts`.
const fn has_page_size(shifts: &[u32]) -> bool {
    match shifts {
        [] => false,
        [first, rest @ ..] => *first == PAGE_SHIFT || has_page_size(rest),
    }
}

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Returns the tables of an address space without mappings: one root table.
    ///
    /// # Errors
    /// Fails with [`OutOfTables`] if there is no memory for the root table.
    pub fn new(memory: &M) -> Result<Self, OutOfTables> {
        const { assert!(has_page_size(F::PAGE_SHIFTS), "the format has no pages of this size") };
        Ok(PageTable { root: alloc_table(memory, None)?, format: PhantomData })
    }

    /// Returns the root table, for the register at which the hardware starts.
    #[inline]
    pub fn root(&self) -> Pfn {
        self.root
    }

    /// Frees the root table. All other tables must be [unlinked](Self::unlink_tables) before. Empties the
    /// entries of the kernel's half, so that the memory gets an empty table. The tables that these entries
    /// point to stay.
    ///
    /// # Safety
    ///
    /// `memory` is the memory of [`new`](Self::new) and of every other call. No processor runs on these
    /// tables, and no task walks them.
    ///
    /// # Panics
    /// Panics in test builds if a table is left.
    pub unsafe fn destroy(self, memory: &M) {
        let root = memory.table(self.root);
        // Relaxed, here and below: no other task reaches the table any more.
        let empty = |index| root.entry(index).load(Ordering::Relaxed) == 0;
        debug_assert!((0..F::USER_ENTRIES).all(empty), "tables are left below a root being destroyed");
        for index in F::USER_ENTRIES..ENTRIES {
            root.entry(index).store(0, Ordering::Relaxed);
        }
        // SAFETY: the root came from `alloc_table`. The caller promises that no task or processor reads it
        // any more.
        unsafe { memory.free_table(self.root) }
    }

    /// Returns the table of 4 KiB entries for `address`, if there is one.
    #[inline]
    pub fn pte_table<'a>(&'a self, memory: &'a M, address: VirtAddr) -> Option<PteTable<'a, F, M>> {
        self.find(memory, address)
    }

    /// Returns the table of 4 KiB entries for `address`, locked, if there is one.
    #[inline]
    pub fn lock_pte_table<'a>(&'a self, memory: &'a M, address: VirtAddr) -> Option<PteGuard<'a, F, M>> {
        loop {
            // If the table was reclaimed after it was found, another table, or no table, is linked there now.
            if let Some(guard) = self.pte_table(memory, address)?.lock_linked() {
                return Some(guard);
            }
        }
    }

    /// Returns the table of 2 MiB entries for `address`, if there is one.
    #[inline]
    pub fn pmd_table<'a>(&'a self, memory: &'a M, address: VirtAddr) -> Option<PmdTable<'a, F, M>> {
        self.find(memory, address)
    }

    /// Returns the table of 1 GiB entries for `address`, if there is one.
    #[inline]
    pub fn pud_table<'a>(&'a self, memory: &'a M, address: VirtAddr) -> Option<PudTable<'a, F, M>> {
        self.find(memory, address)
    }

    /// Returns the table of 4 KiB entries for `address`. Creates the table, and the tables above it, if
    /// needed.
    ///
    /// The caller holds the mmap lock or the VMA's lock, in any mode, so no task unlinks tables there. A
    /// table may still be [reclaimed](crate::reclaim) before it is [locked](EntryTable::lock_linked).
    ///
    /// # Errors
    /// Fails with [`TableError::OutOfTables`] if there is no memory, and with [`TableError::Huge`] or
    /// [`TableError::Marker`] if a larger leaf or marker is there. Tables created on the way stay; they are
    /// freed with the range.
    ///
    /// # Panics
    /// Panics if `address` is not below [`Format::USER_END`]. No table is created then.
    #[inline]
    pub fn pte_table_alloc<'a>(
        &'a self,
        memory: &'a M,
        address: VirtAddr,
    ) -> Result<PteTable<'a, F, M>, TableError> {
        self.find_or_alloc(memory, address)
    }

    /// Returns the table of 2 MiB entries for `address`. Creates the table if needed, like
    /// [`pte_table_alloc`](Self::pte_table_alloc).
    ///
    /// # Errors
    /// Fails in the same cases as [`pte_table_alloc`](Self::pte_table_alloc).
    ///
    /// # Panics
    /// Panics in the same cases as [`pte_table_alloc`](Self::pte_table_alloc).
    #[inline]
    pub fn pmd_table_alloc<'a>(
        &'a self,
        memory: &'a M,
        address: VirtAddr,
    ) -> Result<PmdTable<'a, F, M>, TableError> {
        self.find_or_alloc(memory, address)
    }

    /// Returns the table of 1 GiB entries for `address`. Creates the table if needed, like
    /// [`pte_table_alloc`](Self::pte_table_alloc).
    ///
    /// # Errors
    /// Fails in the same cases as [`pte_table_alloc`](Self::pte_table_alloc).
    ///
    /// # Panics
    /// Panics in the same cases as [`pte_table_alloc`](Self::pte_table_alloc).
    #[inline]
    pub fn pud_table_alloc<'a>(
        &'a self,
        memory: &'a M,
        address: VirtAddr,
    ) -> Result<PudTable<'a, F, M>, TableError> {
        self.find_or_alloc(memory, address)
    }

    /// Returns the current entry at `address` and its level, read without a lock. The result is a hint,
    /// unless the caller's locks keep the entry unchanged. A missing table is returned as an empty entry of
    /// the level at which the table would be linked. An entry of the lowest level may be any word if its
    /// table is [reclaimed](crate::reclaim) before the entry is read.
    pub fn peek(&self, memory: &M, address: VirtAddr) -> (Pte<F>, Level) {
        if address.get() >= F::USER_END {
            return (Pte::NONE, F::ROOT);
        }
        let mut table = self.root;
        let mut level = F::ROOT;
        loop {
            // Acquire: pairs with the release that installed the entry.
            let raw = memory.table(table).entry(address.index(level)).load(Ordering::Acquire);
            match F::kind(raw, level) {
                Kind::Table { pfn } => (table, level) = (pfn, level.below()),
                Kind::None | Kind::Leaf { .. } | Kind::Marker { .. } => return (Pte::from_raw(raw), level),
            }
        }
    }

    /// Returns the table of level `LEVEL` for `address`, if there is one. Always inlined, because returning
    /// the table through memory would cost more than the walk itself.
    #[inline(always)]
    fn find<'a, const LEVEL: usize>(
        &'a self,
        memory: &'a M,
        address: VirtAddr,
    ) -> Option<EntryTable<'a, F, M, LEVEL>> {
        if address.get() >= F::USER_END {
            return None;
        }
        let mut table = self.root;
        let mut parent = None;
        for number in (LEVEL + 1..F::LEVELS).rev() {
            let level = Level::from_number(number);
            let slot = memory.table(table).entry(address.index(level));
            // Acquire: pairs with the release of `install_table`. The table behind the entry is zeroed.
            match F::kind(slot.load(Ordering::Acquire), level) {
                Kind::Table { pfn } => {
                    table = pfn;
                    parent = Some((slot, pfn));
                }
                Kind::None | Kind::Leaf { .. } | Kind::Marker { .. } => return None,
            }
        }
        Some(Self::entry_table(memory, table, address, parent))
    }

    /// Returns the table of level `LEVEL` for `address`, and creates the missing tables on the way there.
    #[inline(never)]
    fn find_or_alloc<'a, const LEVEL: usize>(
        &'a self,
        memory: &'a M,
        address: VirtAddr,
    ) -> Result<EntryTable<'a, F, M, LEVEL>, TableError> {
        assert!(address.get() < F::USER_END, "{address:?} is not a user address of this format");
        let mut table = self.root;
        let mut parent = None;
        for number in (LEVEL + 1..F::LEVELS).rev() {
            let level = Level::from_number(number);
            let slot = memory.table(table).entry(address.index(level));
            // Acquire: pairs with the release of `install_table`. The table behind the entry is zeroed.
            let raw = slot.load(Ordering::Acquire);
            let pfn = match F::kind(raw, level) {
                Kind::Table { pfn } => pfn,
                Kind::None => Self::install_table(memory, self.root, slot, level)?,
                Kind::Leaf { .. } => return Err(TableError::Huge(level)),
                Kind::Marker { .. } => return Err(TableError::Marker(level)),
            };
            table = pfn;
            parent = Some((slot, pfn));
        }
        Ok(Self::entry_table(memory, table, address, parent))
    }

    /// Links a new table of the space with this root into an empty slot of an upper level. Several tasks may
    /// try at the same time; one table stays linked, and the others are freed.
    #[cold]
    pub(crate) fn install_table(
        memory: &M,
        root: Pfn,
        slot: &AtomicU64,
        level: Level,
    ) -> Result<Pfn, TableError> {
        let new = alloc_table(memory, Some(root))?;
        // Release on success: pairs with the acquire of every walk, so the table is seen zeroed. Acquire on
        // failure: pairs with the release of the task that linked another table first, because the caller
        // continues in that table.
        match slot.compare_exchange(0, F::table(new), Ordering::Release, Ordering::Acquire) {
            Ok(_) => Ok(new),
            Err(found) => {
                // SAFETY: the table came from `alloc_table` above and was never linked, so only this call can
                // reach it.
                unsafe { memory.free_table(new) }
                match F::kind(found, level) {
                    Kind::Table { pfn } => Ok(pfn),
                    Kind::Leaf { .. } => Err(TableError::Huge(level)),
                    Kind::Marker { .. } => Err(TableError::Marker(level)),
                    // The slot was not empty when the compare failed, and only zero means empty.
                    Kind::None => unreachable!("a non-zero entry is decoded as empty"),
                }
            }
        }
    }

    /// Returns the handle of a linked table. `parent` has the slot that links the table, and the number of
    /// the table. `parent` is `None` if the caller does not need the slot.
    #[inline]
    pub(crate) fn entry_table<'a, const LEVEL: usize>(
        memory: &'a M,
        table: Pfn,
        address: VirtAddr,
        parent: Option<(&'a AtomicU64, Pfn)>,
    ) -> EntryTable<'a, F, M, LEVEL> {
        let level = Level::from_number(LEVEL);
        EntryTable {
            memory,
            table: memory.table(table),
            meta: memory.table_meta(table),
            base: VirtAddr::new(address.get() & !(level.table_span() - 1)),
            parent,
            format: PhantomData,
        }
    }

    /// Clips a range to the addresses that have tables here.
    pub(crate) fn clip(range: VaRange) -> VaRange {
        let limit = VirtAddr::new(F::USER_END);
        VaRange::new(range.start().min(limit), range.end().min(limit))
    }
}

impl<F, M> fmt::Debug for PageTable<F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageTable").field("root", &self.root).finish()
    }
}
