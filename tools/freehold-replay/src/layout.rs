//! Where Linux begins to look for room in an address space, as a snapshot shows it.

use freehold::space::{LEGACY_BASE, Layout};
use freehold_trace::Area;
use freehold_trace::plan::Start;

/// Nothing below is placed from the top downwards: programs lie there.
const LOWEST_BASE: u64 = 0x6000_0000_0000;
/// How far above its lowest place the legacy layout may begin: 2^32 pages.
const LEGACY_DRAWN: u64 = 1 << 44;

/// Where Linux begins to look for room, and from which end, where the start tells.
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
