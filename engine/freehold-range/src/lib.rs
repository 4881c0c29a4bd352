#![no_std]
#![deny(unsafe_code)]
//! Ordered ranges for an address space engine.
//!
//! The crate has two containers, neither of which depends on VMAs:
//!
//! * [`RangeMap`]: disjoint ranges `[start, end)`, each with an opaque non-zero value. Lookups take no lock
//!   and do not write to shared memory. A writer replaces a range of addresses in one step. Gaps are searched
//!   from the top or from the bottom. An address space keeps its VMAs in such a map.
//! * [`IntervalTree`]: overlapping intervals `first..=last`. The tree is linked through the objects
//!   themselves, so it never allocates. The reverse map of a file uses it to find the VMAs that map a page.
//!
//! [`RangeMap`] documents the calls. The module [`map`] documents the protocol between writers and readers,
//! and lists its files.
//!
//! Every allocation can fail: a change allocates its nodes before it becomes visible, or returns an error.
//! Modules with unsafe code give the reason at their top. `tests/main.rs` lists the tests. A change of a
//! memory order needs `cargo xtask loom`, which tries the interleavings.

extern crate alloc;

pub mod interval;
pub mod map;

pub use allocator_api2::alloc::AllocError;
pub use interval::{IntervalAdapter, IntervalLink, IntervalTree};
pub use map::claim::{CLAIMED, ClaimError, HAS_WAITERS, MARKS, PERMANENT, RESERVED};
pub use map::claim_writer::ClaimWriter;
pub use map::exclusive_writer::ExclusiveWriter;
pub use map::fanout::NodeWidth;
pub use map::gap::{Direction, GapRequest};
pub use map::read::Reader;
pub use map::unclaimed::Filled;
pub use map::write_set::WriteSet;
pub use map::{Entry, FANOUT, Lookup, MAX_REPLACEMENT, RangeMap};
