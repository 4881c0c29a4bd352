//! The subjects of the benches: the engine, and simpler implementations for comparison.
//!
//! Every subject has `n` mapped areas of six pages, ten pages apart, and a stack above them. The protections
//! of neighbouring areas differ, so that no areas merge. All subjects have the same operations: looking up an
//! address, mapping and unmapping a page at any free place, and changing the protection of a page in the
//! middle of an area and back. Each operation restores the set of areas, so a bench can repeat it any number
//! of times.
//!
//! | subject | file | used by |
//! | --- | --- | --- |
//! | the engine: [`Space`] | `engine.rs` | `engine`, `instructions`, `writers` |
//! | a map behind a lock: [`LockedTree`] | `btree.rs` | `engine`, `instructions`, `writers` |
//! | the crate `memory_set`: [`LockedSet`] | `memory_set.rs` | `engine`, `writers` |
//! | the same with a page table: [`PagedSet`] | `paged_set.rs` | `engine` |
//!
//! A new subject implements [`Subject`] and must start with the same areas. The benches check no results; the
//! tests of the engine check them. The other benches in `benches/` (`machine`, `pagetable`, `range`,
//! `range_instructions`, `readers`, `rmap`, `uffd`) have subjects of their own; the head of each file
//! describes its subjects.
#![deny(unsafe_code)]

mod btree;
mod engine;
mod memory_set;
mod paged_set;

pub use self::btree::LockedTree;
pub use self::engine::{Space, machine};
pub use self::memory_set::LockedSet;
pub use self::paged_set::PagedSet;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Distance from one area to the next, in bytes.
pub const STRIDE: u64 = 10 * PAGE;
/// Bytes of an area.
pub const LENGTH: u64 = 6 * PAGE;
/// Start of the first area.
pub const BASE: u64 = 0x1000_0000_0000;
/// Start of the stack: above all areas, as in any process.
pub const STACK: u64 = 0x7fff_ff00_0000;
/// Numbers of areas that the benches measure.
pub const SIZES: [u64; 3] = [10, 1_000, 65_000];

/// An address space with the operations that all subjects have. Several threads call it concurrently.
pub trait Subject: Sync {
    /// The name in reports.
    const NAME: &'static str;
    /// Creates a subject with `areas` areas.
    fn with_areas(areas: u64) -> Self;
    /// Returns the start of the area that contains an address.
    fn lookup(&self, address: u64) -> Option<u64>;
    /// Maps a page at a free place and unmaps it. `thread` identifies callers on disjoint ranges.
    fn map_unmap(&self, thread: u64);
    /// Makes the page in the middle of the area at `address` read-only and writable again: two splits and two
    /// merges.
    fn split_merge(&self, address: u64);
}

/// Spreads operation numbers over the areas. Returns the start of an area.
pub fn area(n: u64, areas: u64) -> u64 {
    BASE + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % areas * STRIDE
}
