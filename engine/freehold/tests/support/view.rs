//! The memory of a process as a program sees it: VMAs, counts, the break and words at chosen addresses.
//! `oom.rs` and the tests that use it compare such views before and after a call.
//!
//! Taking a view reads pages, which populates them. A view before a call therefore needs a scene of its own.
//! A view joins VMAs that could merge: a failed call may leave VMAs split, and this must not count as a
//! difference. Pages that a userfaultfd pager must supply are not loaded, because no pager would answer.
//! Tests detect only changes of what a [`View`] contains, so new state that programs can see needs a new
//! field of [`View`].

use super::*;
use freehold::{
    fault::{Access, FaultError},
    report::pagemap::{MarkerKind, PageEntry},
    space::Counts,
    vma::flags::VmFlags,
};
use std::ops::ControlFlow;

/// Result of a load of one word.
#[derive(Debug, PartialEq, Clone, Copy)]
pub enum Seen {
    Loaded(Result<u64, FaultError>),
    /// A load would notify the pager. Holds the word of the page that is present, or zero.
    Peeked(u64),
}

/// The memory of a process as a program sees it.
#[derive(Debug, PartialEq)]
pub struct View {
    /// Start, end, flags, offset and name of VMAs. VMAs that could merge are joined.
    pub maps: Vec<(u64, u64, VmFlags, u64, String)>,
    /// Counts, without the number of VMAs.
    counts: Counts,
    brk: u64,
    pub contents: Vec<(u64, Seen)>,
    /// Contents that a child sees.
    pub child: Vec<(u64, Seen)>,
}

impl View {
    /// Reads the words at `places`, and those of some pages of the heap.
    pub fn new(
        machine: &Machine,
        cpu: &mut Vcpu,
        process: &Process,
        child: Option<&Process>,
        places: impl IntoIterator<Item = u64>,
    ) -> Self {
        let maps = joined(process);
        let counts = Counts { map_count: 0, ..process.counts() };
        let brk = process.brk(0).unwrap();
        let places: Vec<u64> = places.into_iter().chain((1..8).map(|page| brk - page * PAGE)).collect();
        let mut look = |process| places.iter().map(|&at| (at, seen(machine, cpu, process, at))).collect();
        View { maps, counts, brk, contents: look(process), child: child.map_or(Vec::new(), look) }
    }

    /// Returns the differences, one per line.
    pub fn differences(&self, expected: &Self) -> String {
        fn lines(view: &View) -> Vec<String> {
            let mut lines: Vec<String> = view.maps.iter().map(|line| format!("{line:x?}")).collect();
            lines.push(format!("{:?}, break {:#x}", view.counts, view.brk));
            lines.extend(view.contents.iter().map(|page| format!("{page:x?}")));
            lines.extend(view.child.iter().map(|page| format!("child {page:x?}")));
            lines
        }
        let (found, expected) = (lines(self), lines(expected));
        let missing =
            expected.iter().filter(|line| !found.contains(line)).map(|line| format!("\n  - {line}"));
        let added = found.iter().filter(|line| !expected.contains(line)).map(|line| format!("\n  + {line}"));
        missing.chain(added).collect()
    }
}

fn seen(machine: &Machine, cpu: &mut Vcpu, process: &Process, at: u64) -> Seen {
    let flags = process.find_vma(at).map(|vma| vma.flags());
    if flags.is_none_or(|flags| !flags.intersects(VmFlags::UFFD)) {
        return Seen::Loaded(process.load(cpu, at));
    }
    if is_swapped(process, at) {
        // No pager serves the read of a page that was swapped out.
        let _ = process.handle_fault(at, Access::READ);
    }
    let mut bytes = [0; 8];
    if let Some(frame) = process.frame_at(at) {
        machine.read_frame(frame, 0, &mut bytes);
    }
    Seen::Peeked(u64::from_le_bytes(bytes))
}

/// Returns true if the page at `at` is swapped out.
fn is_swapped(process: &Process, at: u64) -> bool {
    let mut swapped = false;
    process.page_entries(at..at + PAGE, |run| {
        swapped |= run.entry == PageEntry::Marker(MarkerKind::Swap);
        ControlFlow::Continue(())
    });
    swapped
}

/// Returns the VMAs, joined where one VMA continues the other.
fn joined(process: &Process) -> Vec<(u64, u64, VmFlags, u64, String)> {
    let mut lines: Vec<(u64, u64, VmFlags, u64, String)> = Vec::new();
    for line in process.maps(0) {
        // The flag may stay set after guards could not be installed or were removed.
        let flags = line.flags - VmFlags::MAYBE_GUARD;
        let name = line.name.as_str();
        match lines.last_mut() {
            Some((start, end, last, offset, its_name))
                if *end == line.start
                    && *last == flags
                    && its_name == name
                    && (line.offset == 0 || *offset + (*end - *start) == line.offset) =>
            {
                *end = line.end;
            }
            _ => lines.push((line.start, line.end, flags, line.offset, name.to_owned())),
        }
    }
    lines
}
