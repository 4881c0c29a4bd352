//! Removes from the VMAs of a snapshot the attributes that the recording does not determine (*untold*):
//! registrations with userfaultfds, and execute rights from the personality. VMAs are joined if only these
//! attributes keep them apart.
//!
//! `compare.rs` calls [`without_untold`] before it compares VMAs, and counts the VMAs with removed attributes
//! as not checked. The snapshot itself does not change. An attribute is removed only if the engine cannot
//! know it; otherwise the comparison would miss a difference. Another such attribute needs a field of `Part`
//! and of [`Untold`], and its reason in `compare::report`. `tests/untold.rs` has the tests.

use super::image::Image;
use super::pagers::{is_served, registered};
use super::world::World;
use freehold_machine::Process;
use freehold_trace::Area;
use std::borrow::Cow;

const EXEC: u8 = 4;
const READ_AND_EXEC: u8 = 5;
/// Flags of registered VMAs.
const REGISTERED: [[u8; 2]; 3] = [*b"um", *b"uw", *b"ui"];
/// Flag of an executable VMA.
const EXECUTABLE: [u8; 2] = *b"ex";

/// Numbers of VMAs that are compared only in part, by the part that is left out.
#[derive(Clone, Copy, Default)]
pub(super) struct Untold {
    /// Registrations that the engine does not support.
    pub(super) unserved: u64,
    /// Registrations that a fork may have copied.
    pub(super) copied: u64,
    /// Execute rights.
    pub(super) executed: u64,
}

/// The parts of one VMA that are left out of the comparison.
#[derive(Clone, Copy, Default)]
struct Part {
    registration: bool,
    right: bool,
}

/// Returns the VMAs for the comparison.
pub(super) fn without_untold<'a>(
    world: &World,
    image: &Image,
    areas: &'a [Area],
) -> (Cow<'a, [Area]>, Untold) {
    let mut untold = Untold::default();
    let parts: Vec<Part> = areas.iter().map(|area| part(world, image, area, &mut untold)).collect();
    if parts.iter().all(|part| !part.registration && !part.right) {
        return (Cow::Borrowed(areas), untold);
    }
    let mut all: Vec<Area> = Vec::new();
    let mut before = false;
    for (area, part) in areas.iter().zip(parts) {
        let changed = part.registration || part.right;
        let area = without(area, part);
        match all.last_mut().filter(|_| before || changed) {
            Some(last) if is_one(image.process(), last, &area) => extend(last, &area),
            _ => all.push(area),
        }
        before = changed;
    }
    (Cow::Owned(all), untold)
}

/// Counts and returns the parts of `area` that are left out.
fn part(world: &World, image: &Image, area: &Area, untold: &mut Untold) -> Part {
    let (process, range) = (image.process(), area.start..area.end);
    let mut part = Part::default();
    if area.flags.iter().flatten().any(|code| REGISTERED.contains(code)) {
        let unserved = !is_served(process, &range);
        let copied = !unserved && image.pagers.are_doubted() && registered(process, &range).is_empty();
        untold.unserved += u64::from(unserved);
        untold.copied += u64::from(copied);
        part.registration = unserved || copied;
    }
    let executable = area.flags.as_ref().is_none_or(|codes| codes.contains(&EXECUTABLE));
    if area.prot & READ_AND_EXEC == READ_AND_EXEC && executable && world.may_execute(process, area.start) {
        untold.executed += 1;
        part.right = true;
    }
    part
}

/// Returns a copy of `area` without the attributes in `part`.
fn without(area: &Area, part: Part) -> Area {
    let mut area = area.clone();
    if part.right {
        area.prot &= !EXEC;
    }
    if let Some(codes) = &mut area.flags {
        codes.retain(|code| {
            !(part.registration && REGISTERED.contains(code) || part.right && *code == EXECUTABLE)
        });
    }
    area
}

/// Returns true if two VMAs of a snapshot are one VMA in the engine.
fn is_one(process: &Process, left: &Area, right: &Area) -> bool {
    let alike = left.prot == right.prot && left.shared == right.shared && left.flags == right.flags;
    let touch = left.end == right.start && left.name == right.name;
    alike && touch && process.find_vma(right.start).is_some_and(|vma| vma.start() < right.start)
}

/// Extends `left` to the end of `right`, and adds the sizes of `right`.
fn extend(left: &mut Area, right: &Area) {
    left.end = right.end;
    if let (Some(left), Some(right)) = (&mut left.sizes, &right.sizes) {
        left.iter_mut().zip(right).for_each(|(left, right)| *left += right);
    }
}
