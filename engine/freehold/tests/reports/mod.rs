//! Reports about an address space (`src/report/`): the data behind `/proc/PID/maps`, smaps, pagemap and
//! clear_refs, and queries for single VMAs. mincore is tested in `files/advice.rs` and `huge/fill.rs`. A new
//! row or flag of a report needs a test of its text here: programs parse these reports.
//!
//! `entries.rs` tests the contents of page tables, `maps.rs` tests the text of the reports, `soft_dirty.rs`
//! tests soft-dirty pages, `usage.rs` tests the figures of smaps and clear_refs, and `readers.rs` tests
//! queries and lookups that take no lock.

mod entries;
mod maps;
mod readers;
// The entries of this format have no soft-dirty bit.
#[cfg(not(machine_format = "sv39"))]
mod soft_dirty;
mod usage;

use crate::support::*;
