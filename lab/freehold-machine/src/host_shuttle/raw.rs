//! Looking at and changing other crates' words without a switch of threads at every one.
#![expect(unsafe_code, reason = "replaces atomics of the checker")]

use freehold::platform::Frame;
use freehold_pagetable::{ENTRIES, Table};
use freehold_sync::atomic::AtomicU64;
use std::ptr;

/// Records cannot be read as bytes here; the other host looks.
pub(crate) fn is_zero(_record: &Frame) -> bool {
    true
}

/// The first entry of a table that nobody uses which `wanted` accepts.
pub(crate) fn find_entry(table: &Table, wanted: impl Fn(u64) -> bool) -> Option<(usize, u64)> {
    let entries = (0..ENTRIES).map(|index| {
        // SAFETY: reads the value that the entry's cell holds; the checker runs one thread at a time.
        (index, unsafe { table.entry(index).raw_load() })
    });
    entries.into_iter().find(|(_, raw)| wanted(*raw))
}

/// Sets every entry of a table that no task uses to `RAW`.
///
/// The value is a constant because the checker computes a hash for each atomic that is made at run time.
pub(crate) fn fill_table<const RAW: u64>(table: &Table) {
    for index in 0..ENTRIES {
        let entry: *const AtomicU64 = table.entry(index);
        // SAFETY: an atomic is a cell; no task is in the middle of an operation on it, because the checker
        // runs one thread at a time and switches only between operations.
        unsafe { drop(ptr::replace(entry.cast_mut(), const { AtomicU64::new(RAW) })) };
    }
}
