//! Reads and writes words of other crates as plain memory. The oracles use these functions on a record or
//! table that no task uses, so relaxed accesses suffice. `host_shuttle/raw.rs` has the same names;
//! simulations use this file.
#![expect(unsafe_code, reason = "reads a record's bytes")]

use freehold::platform::Frame;
use freehold_pagetable::{ENTRIES, Table};
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns true if the record of a frame that no task uses is all zero.
pub(crate) fn is_zero(record: &Frame) -> bool {
    const { assert!(size_of::<Frame>() == size_of::<[AtomicU64; 4]>()) };
    const { assert!(align_of::<Frame>() >= align_of::<AtomicU64>()) };
    // SAFETY: the sizes are equal and the alignment is sufficient (asserted above). Every byte of a record
    // belongs to an atomic, so it may be read as another atomic. No task writes the record of a frame that is
    // being freed.
    let words = unsafe { &*std::ptr::from_ref(record).cast::<[AtomicU64; 4]>() };
    words.iter().all(|word| word.load(Ordering::Relaxed) == 0)
}

/// Returns the first entry that `wanted` accepts, in a table that no task uses.
pub(crate) fn find_entry(table: &Table, wanted: impl Fn(u64) -> bool) -> Option<(usize, u64)> {
    let entries = (0..ENTRIES).map(|index| table.entry(index).load(Ordering::Relaxed));
    entries.enumerate().find(|(_, raw)| wanted(*raw))
}

/// Sets every entry of a table that no task uses to `RAW`.
pub(crate) fn fill_table<const RAW: u64>(table: &Table) {
    (0..ENTRIES).for_each(|index| table.entry(index).store(RAW, Ordering::Relaxed));
}
