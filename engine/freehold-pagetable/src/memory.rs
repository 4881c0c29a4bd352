//! The memory of tables: the interface to the embedding kernel.
//!
//! A platform implements [`TableMemory`]. It supplies for each table the page that the hardware reads
//! ([`Table`]) and a software record ([`TableMeta`]). While the table is allocated, only this crate writes to
//! the page and the record, except that the hardware sets bits in the page. The lock in the record guards
//! most writers; see the [crate's protocol](crate#writers-of-an-entry). A new field of the record must be
//! zero for an empty table, so `TableMeta::reset` clears or checks it. The record must stay at 64 bytes.
//! `tests/common/mod.rs` has a small implementation.

use crate::addr::{ENTRIES, Pfn};
use crate::format::table_bits::PageAligned;
use core::fmt;
use freehold_sync::atomic::{AtomicU32, AtomicU64, Ordering, announce};
use freehold_sync::{Host, RawSpin};

/// There is no memory for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfTables;

/// Allocates a table of the space with this root table. Sends a message if there is no memory, because
/// callers pass the failure on in several ways.
#[inline]
pub(crate) fn alloc_table<M: TableMemory>(memory: &M, root: Option<Pfn>) -> Result<Pfn, OutOfTables> {
    let table = memory.alloc_table(root);
    #[cfg(feature = "log")]
    if table.is_err() {
        log::warn!("the platform has no frame for a page table");
    }
    table
}

impl fmt::Display for OutOfTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no memory for a page table")
    }
}

impl core::error::Error for OutOfTables {}

/// One table, as the hardware reads it: a page of entries, aligned to its size. All bytes zero is an empty
/// table. So a platform may cast any zeroed frame to a table, as long as all other accesses to that frame are
/// atomic too.
#[repr(C)]
pub struct Table {
    align: [PageAligned; 0],
    /// The entries. Written by the rules of the [crate's protocol](crate#writers-of-an-entry). The hardware
    /// also writes here, to set accessed and dirty bits.
    entries: [AtomicU64; ENTRIES],
}

impl Table {
    /// Returns an empty table.
    pub fn new() -> Self {
        Table { align: [], entries: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Registers tables with the simulation (`cfg(sim)`), whose report then names them. Does nothing in other
    /// builds. For a platform that creates many tables at once.
    pub fn announce(first: *const Table, count: usize) {
        announce!("PageTable", first, count, Table { entries: entries });
    }

    /// Returns the entry at `index`.
    ///
    /// # Panics
    /// Panics if `index` is not below [`ENTRIES`].
    #[inline]
    pub fn entry(&self, index: usize) -> &AtomicU64 {
        &self.entries[index]
    }

    /// Returns the entry at `index`, which the caller has checked.
    #[inline]
    pub(crate) fn entry_inside(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < ENTRIES, "no entry {index}");
        &self.entries[index & (ENTRIES - 1)]
    }

    /// Returns the index of the first non-empty entry from `first` to `last`. Each entry is read at some
    /// instant during the call. A caller that follows the entry loads it again.
    #[inline]
    pub(crate) fn first_used(&self, first: usize, last: usize) -> Option<usize> {
        (first..=last).find(|&index| self.entry(index).load(Ordering::Relaxed) != 0)
    }

    /// Returns true if every entry is empty. Exact only while no task changes the table.
    pub fn is_zero(&self) -> bool {
        // Relaxed, pairs with nothing: for assertions, and for tables that no other task reaches.
        self.entries.iter().all(|entry| entry.load(Ordering::Relaxed) == 0)
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

/// The software record of one table: 64 bytes, aligned to a cache line, so that the locks of neighbouring
/// tables are in different lines. All bytes zero is the record of an empty, unlocked table, so a platform may
/// cast zeroed memory to records. Only this crate accesses the fields.
#[repr(C, align(64))]
pub struct TableMeta {
    /// The lock of the table; see [`crate#writers-of-an-entry`].
    pub(crate) lock: RawSpin,
    /// Bit `i` is clear if the entries of group `i` (see `crate::groups`) are empty. Written under `lock`.
    /// Used only for tables of [`Level::Pte`](crate::Level::Pte).
    pub(crate) filled: AtomicU64,
    /// The list of tables deposited for splitting leaves of this table. Written under `lock`. The value is
    /// the number of the first table plus one, or 0 for none. In the record of a deposited table, the value
    /// names the next table of the list in the same way, and the lock of the upper table guards the value.
    pub(crate) spare: AtomicU64,
    /// Number of spaces that use the table in addition to the first; see `crate::share`.
    pub(crate) shares: AtomicU32,
}

impl TableMeta {
    /// Returns the record of an empty, unlocked table.
    pub fn new() -> Self {
        TableMeta {
            lock: RawSpin::new(),
            filled: AtomicU64::new(0),
            spare: AtomicU64::new(0),
            shares: AtomicU32::new(0),
        }
    }

    /// Registers records with the simulation, like [`Table::announce`].
    pub fn announce(first: *const TableMeta, count: usize) {
        announce!(
            "PageTable",
            first,
            count,
            TableMeta { lock: lock, filled: filled, spare: spare, shares: shares }
        );
    }

    /// Resets the record to that of an empty table.
    ///
    /// Called by the memory before it hands out a table again. No entry points to the table. The lock is not
    /// reset, because a task that found the table earlier may still hold it for a moment.
    pub fn reset(&self) {
        // Relaxed, pairs with nothing: the table is unreachable, and the memory orders later accesses when it
        // hands out the table.
        self.filled.store(0, Ordering::Relaxed);
        debug_assert_eq!(self.spare.load(Ordering::Relaxed), 0, "a table was freed with deposited tables");
        debug_assert_eq!(self.shares.load(Ordering::Relaxed), 0, "a shared table was freed");
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
/// An implementation promises the following.
/// - A table from [`alloc_table`](Self::alloc_table) has no other user until [`free_table`](Self::free_table)
///   frees it. The table and its record are all zero.
/// - [`table`](Self::table) and [`table_meta`](Self::table_meta) return the same objects for the same number
///   for as long as the table is allocated. For a number that is not a table, both methods may panic, but
///   must not cause undefined behaviour.
/// - The objects of a freed table stay valid for as long as the memory exists. A task that found the table
///   earlier may take the record's lock and release it at any later time. Such a task may also read an entry.
///   The frame stays readable, even if it has another use by then, and the value that is read does not
///   matter.
#[expect(unsafe_code, reason = "an implementation must keep the contract on memory")]
pub unsafe trait TableMemory: Host {
    /// Allocates a new, empty table of the space with this root table. `None` means that the new table is the
    /// root of a new space.
    ///
    /// A memory that accounts tables charges the table to that space until [`free_table`](Self::free_table).
    /// A table that other spaces also use by then stays charged to the space that allocated it.
    ///
    /// # Errors
    /// Fails with [`OutOfTables`] if there is no memory, or if the space may have no more tables. Nothing has
    /// changed then.
    fn alloc_table(&self, root: Option<Pfn>) -> Result<Pfn, OutOfTables>;

    /// Frees a table. This crate leaves every entry empty (in a root, including the kernel's half). So the
    /// memory may hand out the table again without zeroing it. The record needs a
    /// [`reset`](TableMeta::reset).
    ///
    /// # Safety
    ///
    /// The table came from `alloc_table`, and no entry points to it. Neither hardware nor a walker of
    /// software can reach the table any more, and no read of the table by hardware is in progress. Walkers of
    /// software that reached the table earlier do only what the trait allows for a freed table.
    unsafe fn free_table(&self, table: Pfn);

    /// Returns the table at `pfn`, through the platform's direct map.
    fn table(&self, pfn: Pfn) -> &Table;

    /// Returns the record of the table at `pfn`.
    fn table_meta(&self, pfn: Pfn) -> &TableMeta;

    /// Makes the contents of `frames` frames from `first` on visible to instruction fetches of all CPUs, in
    /// every address space. Called before an entry permits fetches from these frames, and after the engine
    /// has written to frames that an entry may permit fetches from. Only for formats without
    /// [`COHERENT_FETCH`](crate::Format::COHERENT_FETCH).
    ///
    /// Called with the locks of tables held, so the function neither sleeps nor fails. A platform may
    /// remember which frames were published, until it writes to the frame or allocates it again. Stores of
    /// programs need not be published: a program that writes instructions makes them visible itself.
    ///
    /// # Panics
    /// The provided function panics.
    fn publish_code(&self, first: Pfn, frames: u64) {
        let _ = (first, frames);
        unimplemented!("a platform without coherent instruction fetches publishes code");
    }
}

/// Returns true if the tables of `a` and `b` come from the same memory.
pub(crate) fn same_memory<M>(a: &M, b: &M) -> bool {
    // A memory type of size zero has only one memory, even if references to it point to different addresses.
    size_of::<M>() == 0 || core::ptr::eq(a, b)
}
