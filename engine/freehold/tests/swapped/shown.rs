//! Reports of swapped pages: smaps, mincore, the entries behind pagemap, and soft-dirty bits.

use super::with_swapped;
use crate::support::*;
use freehold::report::pagemap::{MarkerKind, PageEntry};
use std::ops::ControlFlow;

/// Returns the entries of the first pages, one per page: the entry, soft-dirty, write-protected.
pub fn entries(process: &Process, pages: u64) -> Vec<(PageEntry, bool, bool)> {
    let mut entries = Vec::new();
    process.page_entries(BASE..BASE + pages * PAGE, |run| {
        let count = run.range.pages().get() as usize;
        entries.extend(vec![(run.entry, run.soft_dirty, run.write_protected); count]);
        ControlFlow::Continue(())
    });
    entries
}

const SWAPPED: PageEntry = PageEntry::Marker(MarkerKind::Swap);

#[test]
fn smaps_counts_swapped_pages_and_divides_shared_ones() {
    with_swapped(4, |_, process, cpu| {
        let usage = |process: &Process| process.smaps(BASE).next().unwrap().usage;
        assert_eq!(
            (usage(process).swap, usage(process).swap_pss, usage(process).rss),
            (4 * PAGE, 4 * PAGE, 0)
        );
        let child = Process::of(process.fork().unwrap());
        assert_eq!((usage(process).swap, usage(process).swap_pss), (4 * PAGE, 2 * PAGE));
        process.store(cpu, BASE, 5u64).unwrap();
        assert_eq!((usage(process).swap, usage(&child).swap), (3 * PAGE, 4 * PAGE));
        assert_eq!(usage(&child).swap_pss, PAGE + 3 * PAGE / 2);
        let mut text = String::new();
        process.write_smaps(&mut text).unwrap();
        assert!(text.contains("Swap:                 12 kB\nSwapPss:               6 kB\n"), "{text}");
        assert_eq!(process.rss().total(), 1, "swapped pages are not resident");
    });
}

#[test]
fn pages_show_their_slots() {
    with_swapped(3, |swapped, process, cpu| {
        let slots = |process: &Process| [0, 1, 2].map(|page| process.swap_slot_at(BASE + page * PAGE));
        let before = slots(process);
        let mut of_device: Vec<u64> = before.iter().map(|found| found.unwrap().1).collect();
        assert!(before.iter().all(|found| found.unwrap().0 == swapped.id));
        of_device.sort_unstable();
        assert_eq!(of_device, swapped.device.stored());
        let child = Process::of(process.fork().unwrap());
        assert_eq!(slots(&child), before, "parent and child share the slots");
        process.load::<u64>(cpu, BASE + PAGE).unwrap();
        assert_eq!((slots(process), slots(&child)), ([before[0], None, before[2]], before));
        assert_eq!(process.swap_slot_at(BASE + PAGE + 5), None, "a present page");
        assert_eq!(process.swap_slot_at(BASE + 2 * PAGE + 5), before[2]);
        assert_eq!(process.swap_slot_at(BASE - PAGE), None, "no VMA");
    });
}

#[test]
fn mincore_shows_pages_that_an_access_need_not_read() {
    with_swapped(3, |_, process, cpu| {
        let mincore = |process: &Process| {
            let mut out = [0; 3];
            process.mincore(BASE, 3 * PAGE, &mut out).unwrap();
            out
        };
        assert_eq!(mincore(process), [0, 0, 0]);
        let child = Process::of(process.fork().unwrap());
        child.load::<u64>(cpu, BASE + PAGE).unwrap();
        assert_eq!((mincore(&child), mincore(process)), ([0, 1, 0], [0, 1, 0]), "in the swap cache");
    });
}

#[test]
fn entries_keep_soft_dirty_bits() {
    if !format_has(PteFlags::SOFT_DIRTY) {
        return;
    }
    with_swapped(3, |swapped, process, cpu| {
        assert_eq!(entries(process, 3), [(SWAPPED, true, false); 3]);
        process.clear_soft_dirty().unwrap();
        assert_eq!(entries(process, 3), [(SWAPPED, false, false); 3]);
        process.load::<u64>(cpu, BASE).unwrap();
        process.store(cpu, BASE + PAGE, 9u64).unwrap();
        let dirty = |process: &Process| entries(process, 3).map_dirty();
        assert_eq!(dirty(process), [false, true, false]);
        while swapped.reclaim().freed > 0 {}
        assert_eq!(
            entries(process, 3),
            [(SWAPPED, false, false), (SWAPPED, true, false), (SWAPPED, false, false)]
        );
        // A moved page counts as written.
        let to = BASE + 64 * PAGE;
        let flags = freehold::call::RemapFlags::MAYMOVE | freehold::call::RemapFlags::FIXED;
        process.mremap(BASE, PAGE, PAGE, flags, to).unwrap();
        process.mremap(to, PAGE, PAGE, flags, BASE).unwrap();
        assert_eq!(dirty(process), [true, true, false]);
    });
}

/// Returns which entries are soft-dirty.
trait Dirty {
    fn map_dirty(self) -> Vec<bool>;
}

impl Dirty for Vec<(PageEntry, bool, bool)> {
    fn map_dirty(self) -> Vec<bool> {
        self.into_iter().map(|(_, dirty, _)| dirty).collect()
    }
}
