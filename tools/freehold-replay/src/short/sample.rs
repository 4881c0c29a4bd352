//! Samples of accesses (`freehold record --accesses`), in a replay in limited memory.
//!
//! A sample says how many pages of a VMA were accessed since the sample before, and not which. The replay
//! accesses as many pages, at the time of the sample. It takes first the pages with recorded faults since the
//! sample before, because these were accessed for certain. It then takes the pages that it took at the sample
//! before, as if the program continued to use the same memory, and then others in ascending order.

use super::step::look_at_all;
use crate::image::Image;
use crate::workers::lock;
use crate::world::World;
use freehold_machine::Cpu;
use freehold_pagetable::X86_4;
use freehold_trace::{Area, Snapshot};
use std::collections::BTreeSet;

const PAGE: u64 = 4096;
/// The place of `Referenced` in the sizes of a VMA.
const REFERENCED: usize = 5;
/// The bit of present pages in a snapshot.
const PRESENT: u32 = 8;
/// Flags of VMAs whose faults a userfaultfd serves.
const USERFAULTS: [[u8; 2]; 3] = [*b"um", *b"uw", *b"ui"];

/// Accesses pages as the sample in `snapshot` shows, if memory is limited. The accesses since the sample
/// before took `every` nanoseconds.
pub(in super::super) fn add_sample(
    world: &World,
    cpu: &mut Cpu<X86_4>,
    image: &Image,
    snapshot: &Snapshot,
    every: u64,
) {
    let Some(short) = &world.short else { return };
    let time = snapshot.taken.0;
    if cpu.call(|| short.begin(&world.engine, snapshot.process, time)) {
        look_at_all(world, short, time);
    }
    cpu.run(image.process().mmu());
    let known = image.heat.accessed_since(time.saturating_sub(every));
    let before = std::mem::take(&mut *lock(&image.heat.sample));
    let mut chosen = BTreeSet::new();
    for area in &snapshot.areas {
        chosen.extend(accessed(area, snapshot, &known, &before));
    }
    for page in &chosen {
        // A page that the replay does not have is left out.
        if image.process().load::<u8>(cpu, page * PAGE).is_ok() {
            image.heat.access(time, page * PAGE);
        }
        let _ = cpu.call(|| short.begin(&world.engine, snapshot.process, time));
    }
    *lock(&image.heat.sample) = chosen;
    cpu.idle();
}

/// Returns the pages of a VMA that count as accessed. `known` has the pages with recorded faults, and
/// `before` those of the sample before.
fn accessed(area: &Area, snapshot: &Snapshot, known: &BTreeSet<u64>, before: &BTreeSet<u64>) -> Vec<u64> {
    let is_served = |flags: &Vec<[u8; 2]>| flags.iter().any(|flag| USERFAULTS.contains(flag));
    let wanted = area.sizes.map_or(0, |sizes| u64::from(sizes[REFERENCED]) * 1024 / PAGE) as usize;
    if wanted == 0 || area.flags.as_ref().is_some_and(is_served) {
        return Vec::new();
    }
    let inside = area.start / PAGE..area.end / PAGE;
    let runs = snapshot.pages.iter().filter(|run| run.categories & PRESENT != 0);
    let mut pages: Vec<u64> =
        runs.flat_map(|run| run.first.max(inside.start)..(run.first + run.count).min(inside.end)).collect();
    pages.sort_by_key(|page| (!known.contains(page), !before.contains(page), *page));
    pages.truncate(wanted);
    pages
}

#[cfg(test)]
mod tests {
    use super::accessed;
    use freehold_trace::{Area, Pages, Snapshot, Why};
    use std::collections::BTreeSet;

    /// Returns a snapshot of a VMA of the pages 16 to 31, all of which but page 20 are present, and of which
    /// this many kB were accessed.
    fn snapshot(kilobytes: u32) -> Snapshot {
        let mut sizes = [0; 9];
        sizes[5] = kilobytes;
        let area = Area {
            start: 16 << 12,
            end: 32 << 12,
            prot: 3,
            shared: false,
            offset: 0,
            name: String::new(),
            sizes: Some(sizes),
            flags: None,
            thp_eligible: false,
        };
        let run = |first, count| Pages { first, count, categories: 8 };
        Snapshot {
            id: 0,
            line: 1,
            why: Why::Freeze,
            process: 1,
            taken: (0, 0),
            threads: 1,
            comm: String::new(),
            exe: String::new(),
            status: Vec::new(),
            areas: vec![area],
            pages: vec![run(8, 12), run(21, 20)],
        }
    }

    #[test]
    fn known_pages_come_first_and_those_of_the_sample_before_next() {
        let pages = |kilobytes, known: &[u64], before: &[u64]| {
            let set = |pages: &[u64]| pages.iter().copied().collect::<BTreeSet<u64>>();
            let snapshot = snapshot(kilobytes);
            accessed(&snapshot.areas[0], &snapshot, &set(known), &set(before))
        };
        assert_eq!(pages(0, &[17], &[]), [0; 0]);
        assert_eq!(pages(16, &[30, 40], &[25, 20]), [30, 25, 16, 17]);
        assert_eq!(pages(400, &[], &[]).len(), 15, "every present page of the VMA");
    }
}
