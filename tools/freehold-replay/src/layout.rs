//! The address at which Linux begins its search for free space (the *base*), and the direction of the search,
//! derived from the snapshot of an exec.
//!
//! Linux chooses the base at random. The recording shows the base only through the mapping that Linux placed
//! first (see `place.rs`). `start.rs` gives the base and the direction to the new address space. If [`base`]
//! does not find them, `perform.rs` does not compare the addresses that the kernel chose. The tests are in
//! `layout_tests.rs`.

use freehold::space::{LEGACY_BASE, Layout};
use freehold_trace::Area;
use freehold_trace::plan::Start;

/// Lowest base of the top-down layout. Programs are mapped below this address.
const LOWEST_BASE: u64 = 0x6000_0000_0000;
/// Size of the range from which Linux draws the base of the legacy layout: 2^32 pages.
const LEGACY_DRAWN: u64 = 1 << 44;

/// Returns the base of Linux's search for free space and the direction of the search, if the start shows
/// them.
pub(super) fn base(start: &Start) -> Option<(u64, Layout)> {
    match start {
        Start::Shown(snapshot) => base_of(&snapshot.areas),
        Start::Unknown => None,
    }
}

fn base_of(areas: &[Area]) -> Option<(u64, Layout)> {
    let stack = areas.iter().find(|area| area.name == "[stack]")?;
    let below = areas.iter().filter(|area| area.end <= stack.start).map(|area| area.end).max()?;
    if below > LOWEST_BASE {
        return Some((below, Layout::TopDown));
    }
    let drawn = LEGACY_BASE..LEGACY_BASE + LEGACY_DRAWN;
    let first = areas.iter().map(|area| area.start).filter(|start| drawn.contains(start)).min()?;
    Some((first, Layout::BottomUp))
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
