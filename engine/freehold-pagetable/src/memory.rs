//! Where tables live: the seam to the embedding kernel's memory.

use crate::addr::{ENTRIES, Pfn};
use core::fmt;
use freehold_sync::atomic::{AtomicU32, AtomicU64, Ordering, announce};
use freehold_sync::{Host, RawSpin};

/// No memory for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfTables;

impl fmt::Display for OutOfTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no memory for a page table")
    }
}

impl core::error::Error for OutOfTables {}

/// One table, as the hardware reads it: a page of entries, aligned to itself. All bytes zero is an empty
/// table, so a platform may make tables of any zeroed frame by a cast, as long as all other accesses to that
/// frame are atomic, too.
#[repr(C, align(4096))]
pub struct Table {
    /// Guarded by the rules of the [crate's protocol](crate#writers-of-an-entry); the hardware also writes
    /// here, setting accessed and dirty bits.
    entries: [AtomicU64; ENTRIES],
}

impl Table {
    /// An empty table.
    pub fn new() -> Self {
        Table { entries: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Tells the simulation's report where tables are; nothing in any other build. For a platform that makes
    /// many at once.
    pub fn announce(first: *const Table, count: usize) {
        announce!("PageTable", first, count, Table { entries: entries });
    }

    /// The entry at `index`.
    ///
    /// # Panics
    /// When the table has none: `index` is not below [`ENTRIES`].
    #[inline]
    pub fn entry(&self, index: usize) -> &AtomicU64 {
        &self.entries[index]
    }

    /// The entry at `index`, which the caller has found to be in the table.
    #[inline]
    pub(crate) fn entry_inside(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < ENTRIES, "no entry {index}");
        &self.entries[index & (ENTRIES - 1)]
    }

    /// The index of the first entry from `first` to `last` that is not empty, each as it was at some instant:
    /// what hangs there is read by another load.
    #[inline]
    pub(crate) fn first_used(&self, first: usize, last: usize) -> Option<usize> {
        (first..=last).find(|&index| self.entry(index).load(Ordering::Relaxed) != 0)
    }

    /// Whether every entry is empty. Exact only while nobody changes the table.
    pub fn is_zero(&self) -> bool {
        // Pairs with nothing: for assertions and for tables that nobody else reaches.
        self.entries.iter().all(|entry| entry.load(Ordering::Relaxed) == 0)
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

/// Software's record of one table: 64 bytes, aligned to a cache line, so that neighbouring tables' locks do
/// not share one. All bytes zero is the record of an empty, unlocked table, so a platform may cast zeroed
/// memory to records; as for the rest, its fields are this crate's.
#[repr(C, align(64))]
pub struct TableMeta {
    /// The table's lock; see [`crate#writers-of-an-entry`].
    pub(crate) lock: RawSpin,
    /// Written under `lock`. Bit `i` clear: the entries of group `i` (see `crate::groups`) are empty. Kept
    /// for tables of [`Level::Pte`](crate::Level::Pte) only.
    pub(crate) filled: AtomicU64,
    /// Written under `lock`. The first of the tables kept for splitting leaves of this one, by its number
    /// plus one; 0: none. Of a table that is kept: the next one, under the same lock.
    pub(crate) spare: AtomicU64,
    /// Spaces beside the first that use the table; see `crate::share`.
    pub(crate) shares: AtomicU32,
}

impl TableMeta {
    /// The record of an empty, unlocked table.
    pub fn new() -> Self {
        TableMeta {
            lock: RawSpin::new(),
            filled: AtomicU64::new(0),
            spare: AtomicU64::new(0),
            shares: AtomicU32::new(0),
        }
    }

    /// As [`Table::announce`], for records.
    pub fn announce(first: *const TableMeta, count: usize) {
        announce!(
            "PageTable",
            first,
            count,
            TableMeta { lock: lock, filled: filled, spare: spare, shares: shares }
        );
    }

    /// Makes the record that of an empty table again.
    ///
    /// For the memory's own use, before a table is handed out again; nobody else may know the table.
    pub fn reset(&self) {
        // Pairs with nothing: the table is unreachable, and handing it out orders what follows.
        self.filled.store(0, Ordering::Relaxed);
        debug_assert_eq!(
            self.spare.load(Ordering::Relaxed),
            0,
            "a table went away with tables kept for its leaves"
        );
        debug_assert_eq!(self.shares.load(Ordering::Relaxed), 0, "a table went away that somebody shares");
    }
}

impl Default for TableMeta {
    fn default() -> Self {
        Self::new()
    }
}

/// The memory that tables are made of.
///
/// # Safety
///
/// An implementation promises that
/// - a table from [`alloc_table`](Self::alloc_table) is used by nobody else until
///   [`free_table`](Self::free_table) returns it, and is all zero, and so is its record;
/// - [`table`](Self::table) and [`table_meta`](Self::table_meta) return the same objects for the same number
///   for as long as the table is allocated. For a number that is no table they may panic, but must not let
///   undefined behaviour come of it;
/// - the objects of a table that was freed stay what they are for as long as the memory lives. A task that
///   found the table before may take the record's lock and release it at any later time, and may read an
///   entry: the frame stays readable, whatever it is used for by then, and what is read does not matter.
#[expect(unsafe_code, reason = "the contract on memory is for the implementation to keep")]
pub unsafe trait TableMemory: Host {
    /// A new, empty table.
    ///
    /// # Errors
    /// [`OutOfTables`], and nothing happened.
    fn alloc_table(&self) -> Result<Pfn, OutOfTables>;

    /// Takes a table back. Every entry is empty, as this crate leaves it (of a root, the kernel's half
    /// included), so the table may be handed out again unzeroed; the record wants a
    /// [`reset`](TableMeta::reset).
    ///
    /// # Safety
    ///
    /// The table came from `alloc_table`, no entry points to it, neither hardware nor a walker of software
    /// can come to it any more, and hardware does not read it. Walkers of software that came to it before do
    /// what the trait says of a freed table.
    unsafe fn free_table(&self, table: Pfn);

    /// The table at `pfn`, by the platform's direct map.
    fn table(&self, pfn: Pfn) -> &Table;

    /// The record of the table at `pfn`.
    fn table_meta(&self, pfn: Pfn) -> &TableMeta;
}

/// Whether tables come from one place.
pub(crate) fn same_memory<M>(a: &M, b: &M) -> bool {
    // Of a memory without a size there is one only, wherever references to it point.
    size_of::<M>() == 0 || core::ptr::eq(a, b)
}
