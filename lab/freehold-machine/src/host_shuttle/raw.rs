//! Reads and writes words of other crates without a switch of threads at each word.
//!
//! The oracles use these functions on a table that no task changes, and on a record that no task uses. With
//! ordinary accesses to atomics, the checker could switch threads at each of the 512 entries of a table.
//! These switches would only multiply the schedules. `host_std/raw.rs` has the same names.
#![expect(unsafe_code, reason = "replaces atomics of the checker")]

use freehold::platform::Frame;
use freehold_pagetable::{ENTRIES, Table};
use freehold_sync::atomic::AtomicU64;
use std::ptr;

/// Returns true without a check, because a record is not plain bytes on this host. `host_std` checks records.
pub(crate) fn is_zero(_record: &Frame) -> bool {
    true
}

/// Returns the first entry that is not `RAW`, in a table that no task changes.
pub(crate) fn find_other<const RAW: u64>(table: &Table) -> Option<(usize, u64)> {
    let entries = (0..ENTRIES).map(|index| {
        // SAFETY: reads the value in the entry's cell. The checker runs one thread at a time.
        (index, unsafe { table.entry(index).raw_load() })
    });
    entries.into_iter().find(|(_, raw)| *raw != RAW)
}

/// Sets every entry of a table to `RAW`. No task uses the table.
///
/// The value is a constant because the checker computes a hash for each atomic that is created at run time.
pub(crate) fn fill_table<const RAW: u64>(table: &Table) {
    for index in 0..ENTRIES {
        let entry: *const AtomicU64 = table.entry(index);
        // SAFETY: an atomic is a cell. No task is in the middle of an operation on the cell, because the
        // checker runs one thread at a time and switches only between operations.
        unsafe { drop(ptr::replace(entry.cast_mut(), const { AtomicU64::new(RAW) })) };
    }
}
