//! Reads and writes words of other crates. The oracles use these functions on a record that no task uses, and
//! on a table that no task changes. `host_shuttle/raw.rs` has the same names; simulations use this file.
//!
//! A late task may read the entries of a table that was freed (`freehold-pagetable/src/reclaim.rs`), so
//! stores to them are atomic. No other task stores to them, so they are compared as a block. An access
//! through [`Table::entry`] for each entry would take a tenth of the time of the engine's tests.
#![expect(unsafe_code, reason = "reads and writes the bytes of records and tables")]

use crate::contents;
use freehold::platform::Frame;
use freehold_pagetable::{ENTRIES, Table};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns true if the record of a frame that no task uses is all zero.
pub(crate) fn is_zero(record: &Frame) -> bool {
    const { assert!(size_of::<Frame>() == size_of::<[AtomicU64; 4]>()) };
    const { assert!(align_of::<Frame>() >= align_of::<AtomicU64>()) };
    // SAFETY: the sizes are equal and the alignment is sufficient (asserted above). Every byte of a record
    // belongs to an atomic, so it may be read as another atomic. No task writes the record of a frame that is
    // being freed.
    let words = unsafe { &*ptr::from_ref(record).cast::<[AtomicU64; 4]>() };
    words.iter().all(|word| word.load(Ordering::Relaxed) == 0)
}

/// Returns the first entry that is not `RAW`, in a table that no task changes.
pub(crate) fn find_other<const RAW: u64>(table: &Table) -> Option<(usize, u64)> {
    // SAFETY: an atomic has the layout of its integer. The table is being allocated or freed, so other tasks
    // may read its entries but do not write them.
    let entries = unsafe { &*ptr::from_ref(entries_of(table)).cast::<[u64; ENTRIES]>() };
    contents::find_other::<RAW, ENTRIES>(entries)
}

/// Sets every entry of a table to `RAW`. No other task changes the table, but late tasks may read its
/// entries.
pub(crate) fn fill_table<const RAW: u64>(table: &Table) {
    // Relaxed: a late task uses the value only as a hint.
    entries_of(table).iter().for_each(|entry| entry.store(RAW, Ordering::Relaxed));
}

/// Returns the entries of a table as the processor's own atomics.
fn entries_of(table: &Table) -> &[AtomicU64; ENTRIES] {
    const { assert!(size_of::<Table>() == size_of::<[AtomicU64; ENTRIES]>()) };
    const { assert!(align_of::<Table>() >= align_of::<AtomicU64>()) };
    // SAFETY: the sizes are equal and the alignment is sufficient (asserted above). Every byte of a table
    // belongs to an entry, which is an atomic, so it may be used as another atomic.
    unsafe { &*ptr::from_ref(table).cast() }
}
