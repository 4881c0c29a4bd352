#![no_std]
#![deny(unsafe_code)]
//! Ordered ranges for an address space engine.
//!
//! Two containers, neither of which knows what a VMA is:
//!
//! * [`RangeMap`]: disjoint ranges `[start, end)`, each with an opaque non-zero value. Lookups take no lock
//!   and write nothing shared; one writer at a time replaces a range of addresses as one step; gaps are
//!   searched from the top or from the bottom. The map of an address space's VMAs.
//! * [`IntervalTree`]: overlapping intervals `first..=last`, linked through the objects themselves, so that
//!   it never allocates. The reverse map of a file: which VMAs map this page?
//!
//! Start at [`RangeMap`] for the calls and at the module [`map`] for the protocol between the writer and the
//! readers.

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
pub use map::write_set::WriteSet;
pub use map::{Entry, FANOUT, Lookup, MAX_REPLACEMENT, RangeMap};
