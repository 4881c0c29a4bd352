//! The subjects of the benches: the engine, and what one would write without it.
//!
//! Every subject holds `n` mapped areas of six pages, ten pages apart, with rights that differ from neighbour
//! to neighbour so that none merge, and a stack above them all, and offers the operations that all of them
//! have: looking an address up, mapping and unmapping a page wherever there is room, and changing the rights
//! of a page in the middle of an area and back.
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
/// From one area to the next.
pub const STRIDE: u64 = 10 * PAGE;
/// Bytes of an area.
pub const LENGTH: u64 = 6 * PAGE;
/// Where the first area starts.
pub const BASE: u64 = 0x1000_0000_0000;
/// Where the stack lies: above everything, as in any process.
pub const STACK: u64 = 0x7fff_ff00_0000;
/// Numbers of areas that the benches try.
pub const SIZES: [u64; 3] = [10, 1_000, 65_000];

/// An address space, as far as all subjects go. Called from several threads at once.
pub trait Subject: Sync {
    /// What it is called in reports.
    const NAME: &'static str;
    /// With `areas` areas.
    fn with_areas(areas: u64) -> Self;
    /// Finds the area of an address; returns its start.
    fn lookup(&self, address: u64) -> Option<u64>;
    /// Maps a page where there is room, and unmaps it. `thread` tells callers on disjoint ranges apart.
    fn map_unmap(&self, thread: u64);
    /// Makes the page at `address` read-only and writable again: two splits and two merges.
    fn split_merge(&self, address: u64);
}

/// Spreads the numbers of operations over the areas: the start of some area.
pub fn area(n: u64, areas: u64) -> u64 {
    BASE + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % areas * STRIDE
}
