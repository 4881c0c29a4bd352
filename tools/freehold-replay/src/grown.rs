//! Memory that grows downwards because of the kernel's own accesses (/proc/PID/mem, ptrace), which are not
//! recorded as faults. Later calls and snapshots show how far the memory has grown.
//!
//! The replay makes the memory grow by a fault, and discards the page of the fault. Before each call of a
//! recording with faults, `perform.rs` calls [`before`], which grows memory to the address that the call
//! found mapped on Linux. `compare.rs` calls [`as_shown`] with the VMAs of a snapshot. [`before`] and
//! [`as_shown`] report the growth, which is counted as not checked.
//!
//! [`Holes`] keeps the ranges that calls have unmapped in this memory, because Linux has left them unmapped.
//! In `tests/untold.rs`, the tests `growth_by_the_kernel_follows_later_events` and
//! `growth_by_the_kernel_keeps_holes` check this file.

use super::TASK_SIZE;
use super::image::Image;
use super::maps::above;
use super::workers::lock;
use freehold::fault::Access;
use freehold::vma::flags::VmFlags;
use freehold::{call::Advice, space::Prot};
use freehold_machine::Process;
use freehold_trace::{Area, Call, CallName};
use std::ops::Range;
use std::sync::Mutex;

const PAGE: u64 = 4096;

/// Ranges of munmap calls. Each range began at an address without a VMA, below memory that grows downwards.
#[derive(Default)]
pub(super) struct Holes(Mutex<Vec<Range<u64>>>);

impl Holes {
    /// Copies the holes of the process that was forked.
    pub(super) fn inherit(&self, parent: &Holes) {
        lock(&self.0).clone_from(&lock(&parent.0));
    }
}

/// Grows the memory above the address of a call down to this address, if the result of the call shows that
/// the address was mapped on Linux. Returns true if memory has grown without a recorded access. Also notes
/// the range of a munmap below such memory in [`Holes`].
pub(super) fn before(image: &Image, call: &Call) -> bool {
    let [at, len, ..] = call.args;
    if call.name == CallName::Munmap
        && call.returned.value().is_some()
        && above(image.process(), at).is_some()
    {
        lock(&image.holes.0).push(at..at.saturating_add(len));
    }
    let found = finds_mapped(call);
    // The addresses from `at` up to the memory were mapped too, so no hole is left.
    found.is_some_and(|at| {
        above(image.process(), at).is_some_and(|start| grow(image.process(), at, start..start))
    })
}

/// Returns the address at which the call found memory mapped. Returns `None` if the call failed, or can
/// succeed without such memory.
fn finds_mapped(call: &Call) -> Option<u64> {
    use CallName::{Madvise, Mbind, Mincore, Mlock, Mlock2, Mprotect, Mremap, Msync, Munlock, PkeyMprotect};
    const PROT_GROWSDOWN: u64 = 0x100_0000;
    let [at, _, prot, ..] = call.args;
    let finds = match call.name {
        Mprotect | PkeyMprotect => prot & PROT_GROWSDOWN == 0,
        Madvise | Mbind | Mincore | Mlock | Mlock2 | Mremap | Msync | Munlock => true,
        _ => false,
    };
    (finds && call.returned.value().is_some()).then_some(at & !(PAGE - 1))
}

/// Grows memory to match the VMAs of a snapshot. Returns the number of VMAs that have grown without a
/// recorded access.
pub(super) fn as_shown(image: &Image, areas: &[&Area]) -> u64 {
    let process = image.process();
    let grows = |area: &&&Area| area.flags.as_ref().is_none_or(|flags| flags.contains(b"gd"));
    // Iterates from the top, because lower VMAs have grown out of higher ones.
    let grown = areas.iter().rev().filter(grows).filter(|area| reaches_down(process, area)).count();
    let mut cut = 0;
    for hole in lock(&image.holes.0).iter() {
        let is_hole = areas.iter().all(|area| area.end <= hole.start || area.start >= hole.end);
        let here = process.find_vma(hole.start).filter(|vma| vma.start() < hole.start);
        if is_hole && here.is_some_and(|vma| vma.flags().contains(VmFlags::GROWSDOWN)) {
            let _ = process.munmap(hole.start, hole.end - hole.start);
            cut += 1;
        }
    }
    grown as u64 + cut
}

/// Grows the memory above `area`, a VMA of a snapshot, down to the start of `area`. Returns false if the next
/// memory above does not grow downwards.
fn reaches_down(process: &Process, area: &Area) -> bool {
    let Some(start) = above(process, area.start) else { return false };
    let grown = grow(process, area.start, area.end.min(start)..start);
    if grown && area.end <= start {
        // The recording does not show whether the protection was changed before the memory grew.
        let _ = process.mprotect(area.start, area.end - area.start, Prot::from_bits_retain(area.prot.into()));
    }
    grown
}

/// Grows the memory that begins at the end of `hole` down to `address`, and leaves the hole unmapped. Always
/// returns true.
fn grow(process: &Process, address: u64, hole: Range<u64>) -> bool {
    // If the engine does not grow the memory, the comparison that follows reports a difference.
    let _ = process.handle_fault(address, Access::READ);
    // The recording does not show which pages the kernel has touched.
    let _ = process.madvise(address, hole.end.min(TASK_SIZE) - address, Advice::DontNeedLocked);
    if !hole.is_empty() {
        let _ = process.munmap(hole.start, hole.end - hole.start);
    }
    true
}
