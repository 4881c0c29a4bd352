//! The VMAs of an address space, as lists of them show.

use freehold::report::maps::MapLine;
use freehold::vma::flags::VmFlags;
use freehold_machine::{Machine, Process};
use std::ops::Range;

/// Lines of maps on each side of a difference.
const AROUND: usize = 3;
/// The end of what is replayed.
pub(super) const TASK_SIZE: u64 = <Process>::TASK_SIZE;

/// The VMAs that lie in a range of addresses, or reach into it.
pub(super) fn lines_in(process: &Process, range: Range<u64>) -> impl Iterator<Item = MapLine<Machine>> {
    process.maps(range.start).take_while(move |line| line.start < range.end)
}

/// The VMA at an address and its neighbours, as /proc/PID/maps shows them.
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

/// Where memory begins that would grow down to `address`, if none is mapped there.
pub(super) fn above(process: &Process, address: u64) -> Option<u64> {
    let next = process.maps(address).next()?;
    (next.start > address && next.flags.contains(VmFlags::GROWSDOWN)).then_some(next.start)
}
