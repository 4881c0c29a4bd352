//! Queries for the VMAs of an address space, in the form of /proc/PID/maps. They only read.
//!
//! `compare.rs`, `perform.rs` and `resident.rs` show the VMAs around a difference ([`maps_around`]).
//! `pagers.rs`, `refused.rs` and `touched.rs` examine the VMAs of a range ([`lines_in`]), and `grown.rs`
//! finds memory that may grow ([`above`]).

use freehold::report::maps::MapLine;
use freehold::vma::flags::VmFlags;
use freehold_machine::{Machine, Process};
use std::ops::Range;

/// Number of VMAs shown on each side of a difference.
const AROUND: usize = 3;
/// End of the addresses that are replayed.
pub(super) const TASK_SIZE: u64 = <Process>::TASK_SIZE;

/// Returns the VMAs that overlap a range of addresses.
pub(super) fn lines_in(process: &Process, range: Range<u64>) -> impl Iterator<Item = MapLine<Machine>> {
    process.maps(range.start).take_while(move |line| line.start < range.end)
}

/// Returns the VMA at an address and its neighbours in the form of /proc/PID/maps.
pub(super) fn maps_around(process: &Process, at: u64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut after = 0;
    for line in process.maps(0) {
        if line.end <= at {
            if lines.len() == AROUND {
                lines.remove(0);
            }
        } else if line.start > at {
            after += 1;
        }
        if after > AROUND {
            break;
        }
        lines.push(line.to_string());
    }
    lines
}

/// Returns the start of the memory that would grow down to `address`, if no VMA contains `address`.
pub(super) fn above(process: &Process, address: u64) -> Option<u64> {
    let next = process.maps(address).next()?;
    (next.start > address && next.flags.contains(VmFlags::GROWSDOWN)).then_some(next.start)
}
