//! Types that are born as zeroes.
#![expect(unsafe_code, reason = "promises about bytes")]

use crate::contents::Page;
use crate::space_slot::SpaceSlot;
use freehold::platform::Frame;
use freehold_pagetable::{ENTRIES, Table, TableMeta};
use std::sync::atomic::AtomicU64;

/// A type whose new value has only zero bytes, on the host where `host::LazyArray` relies on it; on the
/// other host values are made by [`blank`](Self::blank).
///
/// # Safety
///
/// All bytes zero is the value that `blank` returns, wherever the atomics are the processor's own.
pub(crate) unsafe trait Blank {
    #[allow(dead_code, reason = "only one of the two hosts makes values one by one")]
    fn blank() -> Self;

    /// Tells the simulation's report where such values are.
    #[allow(dead_code, reason = "one of the two hosts is never simulated")]
    fn announce(_first: *const Self, _count: usize)
    where
        Self: Sized,
    {
    }

    /// The same on the heap; large types never pass over the stack, which the checker's threads have little
    /// of.
    #[allow(dead_code, reason = "only one of the two hosts makes values one by one")]
    fn boxed() -> Box<Self>
    where
        Self: Sized,
    {
        Box::new(Self::blank())
    }
}

// SAFETY: an atomic integer is its integer.
unsafe impl Blank for AtomicU64 {
    fn blank() -> Self {
        AtomicU64::new(0)
    }
}

// SAFETY: documented so by the type: all zero is the record of a free frame.
unsafe impl Blank for Frame {
    fn blank() -> Self {
        Frame::new()
    }

    fn announce(first: *const Frame, count: usize) {
        Frame::announce(first, count);
    }
}

// SAFETY: documented so by the type: all zero is an empty table.
unsafe impl Blank for Table {
    fn blank() -> Self {
        Table::new()
    }

    fn announce(first: *const Table, count: usize) {
        Table::announce(first, count);
    }

    fn boxed() -> Box<Self> {
        type Entry = freehold_sync::atomic::AtomicU64;
        const { assert!(size_of::<Table>() >= ENTRIES * size_of::<Entry>()) };
        let mut table = Box::<Table>::new_uninit();
        let entries = table.as_mut_ptr().cast::<Entry>();
        for index in 0..ENTRIES {
            // SAFETY: a table is an array of so many entries and nothing else.
            unsafe { entries.add(index).write(const { Entry::new(0) }) };
        }
        // SAFETY: every entry was written.
        unsafe { table.assume_init() }
    }
}

// SAFETY: documented so by the type: all zero is an empty table's record.
unsafe impl Blank for TableMeta {
    fn blank() -> Self {
        TableMeta::new()
    }

    fn announce(first: *const TableMeta, count: usize) {
        TableMeta::announce(first, count);
    }
}

// SAFETY: an array of atomic integers.
unsafe impl Blank for Page {
    fn blank() -> Self {
        Page::new()
    }
}

// SAFETY: a struct of atomic integers.
unsafe impl Blank for SpaceSlot {
    fn blank() -> Self {
        SpaceSlot::new()
    }
}
