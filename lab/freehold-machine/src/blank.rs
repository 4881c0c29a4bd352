//! Types whose initial value is all zero bytes.
//!
//! The arrays of a machine (frames, tables, records; `inner.rs` and `pool.rs`) are mapped from the host as
//! zero pages and used without initialisation, so that the memory of a large machine costs nothing until it
//! is touched. A type may be in such an array only if it implements [`Blank`], which asserts that zero bytes
//! are a valid value. Under the checker of schedules, values are built one by one instead, because the
//! checker's atomics are not plain integers. `host_std/array.rs` and `host_shuttle/array.rs` are the two
//! kinds of arrays.
//!
//! A new type in an array needs an implementation of [`Blank`] with the reason why zero bytes are valid. The
//! type must need no drop (`host_std/array.rs` checks this at compile time), and must change only through
//! atomics, because an array gives out shared references. A large type also implements [`Blank::boxed`], and
//! a type whose accesses the simulation reports implements [`Blank::announce`].
//!
//! The promises about types of other crates rest on the documentation of these crates;
//! `tests/heap/kernel_half.rs` checks the promises about [`Frame`] and [`Table`].
#![expect(unsafe_code, reason = "promises about bytes")]

use crate::contents::Page;
use crate::space_slot::SpaceSlot;
use freehold::platform::Frame;
use freehold_pagetable::{ENTRIES, Table, TableMeta};
use std::sync::atomic::AtomicU64;

/// A type whose initial value has only zero bytes. The `LazyArray` of `host_std`, which `host_sim` also uses,
/// relies on these zero bytes. In `host_shuttle`, [`blank`](Self::blank) creates the values.
///
/// # Safety
///
/// The value that `blank` returns has only zero bytes on every host whose atomics are those of the processor.
pub(crate) unsafe trait Blank {
    #[allow(dead_code, reason = "only the host of the checker makes values one by one")]
    fn blank() -> Self;

    /// Announces the addresses of `count` values to the simulation, which names them in its reports.
    #[allow(dead_code, reason = "the host of the checker is never simulated")]
    fn announce(_first: *const Self, _count: usize)
    where
        Self: Sized,
    {
    }

    /// Creates the value on the heap. A large type is created in place and never passes over the stack,
    /// because the checker's threads have small stacks.
    #[allow(dead_code, reason = "only the host of the checker makes values one by one")]
    fn boxed() -> Box<Self>
    where
        Self: Sized,
    {
        Box::new(Self::blank())
    }
}

// SAFETY: an atomic integer has the representation of its integer.
unsafe impl Blank for AtomicU64 {
    fn blank() -> Self {
        AtomicU64::new(0)
    }
}

// SAFETY: the documentation of `Frame` promises that all zero bytes are the record of a free frame.
unsafe impl Blank for Frame {
    fn blank() -> Self {
        Frame::new()
    }

    fn announce(first: *const Frame, count: usize) {
        Frame::announce(first, count);
    }
}

// SAFETY: the documentation of `Table` promises that all zero bytes are an empty table.
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
            // SAFETY: a table is an array of `ENTRIES` entries and nothing else, so `index` is within its
            // memory.
            unsafe { entries.add(index).write(const { Entry::new(0) }) };
        }
        // SAFETY: the loop wrote every entry.
        unsafe { table.assume_init() }
    }
}

// SAFETY: the documentation of `TableMeta` promises that all zero bytes are the record of an empty table.
unsafe impl Blank for TableMeta {
    fn blank() -> Self {
        TableMeta::new()
    }

    fn announce(first: *const TableMeta, count: usize) {
        TableMeta::announce(first, count);
    }
}

// SAFETY: a page is an array of atomic integers.
unsafe impl Blank for Page {
    fn blank() -> Self {
        Page::new()
    }
}

// SAFETY: a slot is a struct of atomic integers.
unsafe impl Blank for SpaceSlot {
    fn blank() -> Self {
        SpaceSlot::new()
    }
}
