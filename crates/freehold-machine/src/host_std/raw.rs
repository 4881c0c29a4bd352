//! Looking at other crates' words as the plain memory they are here.
#![expect(unsafe_code, reason = "reads a record's bytes")]

use freehold::frame::Frame;
use freehold_pagetable::{ENTRIES, Table};
use freehold_sync::LockContext;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static LOCKS: LockContext = const { LockContext::new() };
}

/// Whether the record of a frame that nobody uses is all zero.
pub(crate) fn is_zero(record: &Frame) -> bool {
    const { assert!(size_of::<Frame>() == size_of::<[AtomicU64; 2]>()) };
    const { assert!(align_of::<Frame>() >= align_of::<AtomicU64>()) };
    // SAFETY: same size and alignment (above); every byte of a record belongs to an atomic, so reading
    // it as other atomics is allowed, and nobody writes the record of a frame that is being freed.
    let words = unsafe { &*std::ptr::from_ref(record).cast::<[AtomicU64; 2]>() };
    words.iter().all(|word| word.load(Ordering::Relaxed) == 0)
}

/// The first entry of a table that nobody uses which `wanted` accepts.
pub(crate) fn find_entry(table: &Table, wanted: impl Fn(u64) -> bool) -> Option<(usize, u64)> {
    let entries = (0..ENTRIES).map(|index| table.entry(index).load(Ordering::Relaxed));
    entries.enumerate().find(|(_, raw)| wanted(*raw))
}

/// Sets every entry of a table that nobody uses.
pub(crate) fn fill_table(table: &Table, raw: u64) {
    (0..ENTRIES).for_each(|index| table.entry(index).store(raw, Ordering::Relaxed));
}

/// The locks the calling thread holds; `None` when it is past its destructors.
#[inline]
pub(crate) fn lock_context() -> Option<&'static LockContext> {
    // SAFETY: the context needs no drop, so its memory is good until the thread is gone, and it is not
    // shared between threads: whoever is given the reference uses it on this thread before it ends.
    LOCKS.try_with(|locks| unsafe { &*std::ptr::from_ref(locks) }).ok()
}
