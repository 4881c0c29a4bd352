//! Reads and writes words of other crates as plain memory. The oracles use these functions on a record or
//! table that no task uses. `host_shuttle/raw.rs` has the same names; simulations use this file.
//!
//! A table is compared and filled as a block, because 512 atomic accesses for each allocated and each freed
//! table took a tenth of the time of the engine's tests.
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

/// Returns the first entry that is not `RAW`, in a table that no task uses.
pub(crate) fn find_other<const RAW: u64>(table: &Table) -> Option<(usize, u64)> {
    // SAFETY: a table consists of its entries (`entries_of`). No task uses the table, because it is being
    // allocated or freed, so no entry changes while the reference exists.
    contents::find_other::<RAW, ENTRIES>(unsafe { &*entries_of(table) })
}

/// Sets every entry of a table that no task uses to `RAW`.
pub(crate) fn fill_table<const RAW: u64>(table: &Table) {
    // SAFETY: a table consists of its entries (`entries_of`), which are atomics, so a shared reference to the
    // table permits writing to them. No task uses the table, because it is being allocated or freed.
    unsafe { entries_of(table).write(const { [RAW; ENTRIES] }) }
}

/// Returns the entries of a table as plain words.
fn entries_of(table: &Table) -> *mut [u64; ENTRIES] {
    const { assert!(size_of::<Table>() == size_of::<[u64; ENTRIES]>()) };
    const { assert!(align_of::<Table>() >= align_of::<u64>()) };
    ptr::from_ref(table).cast_mut().cast()
}
