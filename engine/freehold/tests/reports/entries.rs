//! The contents of page tables (`page_entries` in `src/report/pagemap.rs`): pages and their sharing, markers,
//! write protection, empty entries, and the difference between an empty entry and no page table.

use super::*;
use freehold::{
    call::Advice,
    engine::HugePages,
    report::pagemap::{
        MarkerKind::{self, Guard, UffdWp},
        PageEntry::{self, Empty, Marker},
        PageKind,
    },
    uffd::{Features, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
};
use std::ops::ControlFlow;

/// A run: the first page, the number of pages, the entry, and true for write protection.
type Run = (u64, u64, PageEntry, bool);

/// Returns the runs of `pages` pages from `BASE` on.
fn entries(process: &Process, pages: u64) -> Vec<Run> {
    let mut found = Vec::new();
    process.page_entries(BASE..BASE + pages * PAGE, |run| {
        let (first, pages) = ((run.range.start() - BASE) / PAGE, run.range.pages().get());
        found.push((first, pages, run.entry, run.write_protected));
        ControlFlow::Continue(())
    });
    found
}

fn page(kind: PageKind, exclusive: bool) -> PageEntry {
    PageEntry::Page { kind, exclusive }
}

#[test]
fn entries_are_pages_markers_or_empty() {
    everywhere(|world, process, cpu| {
        let file = world.file(1);
        // The first 512 pages share a page table, and the last 512 pages have none.
        anon(process, BASE, 1024);
        process.mmap(BASE, PAGE, R, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        process.load::<u64>(cpu, BASE).unwrap();
        fill(process, cpu, BASE + PAGE, 2, 1);
        process.load::<u64>(cpu, BASE + 3 * PAGE).unwrap();
        process.madvise(BASE + 5 * PAGE, 2 * PAGE, Advice::GuardInstall).unwrap();
        let (kept, zero) = (page(PageKind::File, true), page(PageKind::Zero, false));
        let expected = |exclusive| {
            [
                (0, 1, page(PageKind::File, exclusive), false),
                (1, 2, page(PageKind::Anon, exclusive), false),
                (3, 1, zero, false),
                (4, 1, Empty, false),
                (5, 2, Marker(Guard), false),
                (7, 505, Empty, false),
            ]
        };
        assert_eq!(expected(true)[0].2, kept);
        assert_eq!(entries(process, 1024), expected(true));
        let child = Process::of(process.fork().unwrap());
        assert_eq!(entries(process, 1024)[1..], expected(false)[1..]);
        drop(child);
        assert_eq!(entries(process, 1024), expected(true));
    });
}

#[test]
fn write_protected_entries_are_marked() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        let uffd =
            Userfaultfd::new(process.space(), UffdConfig::new().features(Features::WP_UNPOPULATED)).unwrap();
        uffd.register(BASE, 4 * PAGE, RegisterMode::WP).unwrap();
        fill(process, cpu, BASE, 1, 1);
        uffd.write_protect(BASE, 2 * PAGE, ProtectMode::WP).unwrap();
        let own = page(PageKind::Anon, true);
        let expected = [(0, 1, own, true), (1, 1, Marker(UffdWp), true), (2, 2, Empty, false)];
        assert_eq!(entries(process, 4), expected);
    });
}

#[test]
fn sink_ends_the_report() {
    everywhere(|_, process, _| {
        anon(process, BASE, 1024);
        for n in [0, 3, 600] {
            process.madvise(BASE + n * PAGE, PAGE, Advice::GuardInstall).unwrap();
        }
        let mut guards = 0;
        process.page_entries(BASE..BASE + 1024 * PAGE, |run| {
            guards += u64::from(run.entry == Marker(MarkerKind::Guard));
            if guards == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(guards, 2);
    });
}

#[test]
fn part_of_a_huge_page_has_a_huge_entry() {
    let world = World::with(24 << 20, Config::new().huge_pages(HugePages::Always));
    world.live(Locking::default(), |_, process, cpu| {
        anon(process, BASE, HUGE / PAGE);
        fill(process, cpu, BASE, 1, 1);
        let huge = |process: &Process| {
            let mut found = Vec::new();
            process.page_entries(BASE + PAGE..BASE + 9 * PAGE, |run| {
                found.push((run.range.pages().get(), run.entry, run.huge));
                ControlFlow::Continue(())
            });
            found
        };
        assert_eq!(huge(process), [(8, page(PageKind::Anon, true), true)]);
        let child = Process::of(process.fork().unwrap());
        assert_eq!(huge(&child), [(8, page(PageKind::Anon, false), true)]);
    });
}
