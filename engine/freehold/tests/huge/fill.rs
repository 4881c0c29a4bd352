//! Faults that allocate huge pages (`src/fault/huge.rs`): on a write, on a read, and in place of the huge
//! zero page; and cases in which faults allocate small pages instead. The tests also cover the settings
//! (`HugePages`), the advice of a VMA, PR_SET_THP_DISABLE, and the figures of mincore and smaps. `split.rs`
//! tests the calls that split a huge page. A new value of the setting is one more row of
//! `huge_pages_follow_setting_and_advice`.

use super::*;
use freehold::{fault::FaultError, vma::flags::VmFlags};

#[test]
fn write_fault_maps_a_whole_huge_page() {
    each_way(HugePages::Always, |world, process, cpu| {
        map(process, BASE, 2);
        let before = world.machine.accounting();
        process.store(cpu, BASE + 100 * PAGE, 7u64).unwrap();
        assert_eq!(present(process, BASE, 2), ONE);
        assert_eq!(huge_bytes(process), HUGE);
        assert_eq!(process.rss().anon, PAGES as i64);
        let after = world.machine.accounting();
        assert_eq!(after.frames - before.frames, PAGES as usize);
        // The middle-level tables, and one that the huge page keeps in reserve for a split.
        assert_eq!(after.tables - before.tables, LEVELS - 1);
        // No other page faults, and all other pages read as zeroes.
        let faults = world.machine.stats().faults;
        for page in 0..PAGES {
            let found = process.load::<u64>(cpu, BASE + page * PAGE);
            assert_eq!(found, Ok(if page == 100 { 7 } else { 0 }));
        }
        write_sample(process, cpu, BASE, 1);
        assert_sample(process, cpu, BASE, 1, all);
        assert_eq!(world.machine.stats().faults, faults);
        process.munmap(BASE, 2 * HUGE).unwrap();
        assert_eq!(world.machine.accounting().tables, before.tables);
        assert_eq!(process.rss().anon, 0);
    });
}

#[test]
fn read_fault_maps_the_huge_zero_page_and_a_write_replaces_it() {
    each_way(HugePages::Always, |world, process, cpu| {
        map(process, BASE, 2);
        let mut other = world.machine.cpu(1);
        assert_eq!(process.load::<u64>(cpu, BASE + 5 * PAGE), Ok(0));
        assert_eq!(process.load::<u64>(&mut other, BASE + 7 * PAGE), Ok(0));
        assert_eq!(present(process, BASE, 2), [(0, PAGES, PageKind::Zero, true)]);
        // The zero page does not count as memory of the process.
        assert_eq!((process.rss().anon, huge_bytes(process)), (0, 0));
        // The second block shares the same zero page.
        let frames = world.machine.accounting().frames;
        assert_eq!(process.load::<u64>(cpu, BASE + HUGE), Ok(0));
        assert_eq!(world.machine.accounting().frames, frames);
        write_sample(process, cpu, BASE, 1);
        assert_sample(process, &mut other, BASE, 1, all);
        assert_eq!(present(process, BASE, 1), ONE);
        assert_eq!(process.rss().anon, PAGES as i64);
        // The zero page that other blocks map is unchanged.
        for page in SAMPLE {
            assert_eq!(process.load::<u64>(&mut other, BASE + HUGE + page * PAGE), Ok(0));
        }
        process.check();
    });
}

#[test]
fn huge_zero_page_is_split() {
    each_way(HugePages::Always, |_, process, cpu| {
        map(process, BASE, 1);
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(0));
        process.munmap(BASE + 100 * PAGE, PAGE).unwrap();
        let zero = PageKind::Zero;
        assert_eq!(present(process, BASE, 1), [(0, 100, zero, false), (101, 411, zero, false)]);
        process.store(cpu, BASE + 99 * PAGE, 1u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + 101 * PAGE), Ok(0));
        assert_eq!(process.rss().anon, 1);
        assert_filled(process, cpu, BASE + 99 * PAGE, 1, 1);
    });
}

#[test]
fn huge_page_needs_a_whole_aligned_block_in_the_vma() {
    each_way(HugePages::Always, |_, process, cpu| {
        // Of three blocks, only the middle one fits: the mapping begins and ends in the middle of the other
        // two.
        anon(process, BASE + 256 * PAGE, 2 * PAGES);
        for huge in 0..3 {
            process.store(cpu, BASE + huge * HUGE + 256 * PAGE - huge / 2 * PAGE, 1u64).unwrap();
        }
        let small = |page| (page, 1, PageKind::Anon, false);
        let found = present(process, BASE, 3);
        assert_eq!(found, [small(256), (PAGES, PAGES, PageKind::Anon, true), small(2 * PAGES + 255)]);
        // A block with a page table continues to get small pages, even if a whole huge page would fit by now.
        anon(process, BASE, 256);
        process.store(cpu, BASE, 1u64).unwrap();
        assert_eq!(present(process, BASE, 1), [small(0), small(256)]);
        // Files and shared memory get no huge pages by this setting.
        let shared = MapFlags::SHARED | MapFlags::ANONYMOUS | MapFlags::FIXED;
        process.mmap(BASE + 8 * HUGE, HUGE, RW, shared, None, 0).unwrap();
        process.store(cpu, BASE + 8 * HUGE, 1u64).unwrap();
        assert_eq!(present(process, BASE + 8 * HUGE, 1), [(0, 1, PageKind::File, false)]);
        // Memory that is mapped with MAP_STACK gets no huge pages. A VMA that grows down gets huge pages.
        for (at, flag, found) in [
            (BASE + 12 * HUGE, MapFlags::STACK, vec![(0, 1, PageKind::Anon, false)]),
            (BASE + 16 * HUGE, MapFlags::GROWSDOWN, ONE.to_vec()),
        ] {
            process.mmap(at, HUGE, RW, ANON | MapFlags::FIXED | flag, None, 0).unwrap();
            process.store(cpu, at, 1u64).unwrap();
            assert_eq!(present(process, at, 1), found);
        }
    });
}

#[test]
fn huge_pages_follow_setting_and_advice() {
    // For each setting: a VMA without advice, one with MADV_HUGEPAGE, and one with MADV_NOHUGEPAGE.
    let wanted = [
        (HugePages::Never, [false, false, false]),
        (HugePages::Madvise, [false, true, false]),
        (HugePages::Always, [true, true, false]),
    ];
    for (config, expected) in wanted {
        let world = world(config);
        let process = world.process(Locking::default());
        let mut cpu = world.machine.cpu(0);
        let advice = [None, Some(Advice::HugePage), Some(Advice::NoHugePage)];
        for ((at, advice), expected) in (BASE..).step_by(HUGE as usize).zip(advice).zip(expected) {
            map(&process, at, 1);
            if let Some(advice) = advice {
                process.madvise(at, HUGE, advice).unwrap();
            }
            process.store(&mut cpu, at, 1u64).unwrap();
            assert_eq!(present(&process, at, 1) == ONE, expected, "{config:?}, {advice:?}");
        }
        let eligible: Vec<bool> = process.smaps(0).map(|smap| smap.huge_eligible).collect();
        assert_eq!(eligible, expected, "{config:?}");
        process.check();
        drop((process, cpu));
        world.end();
    }
}

#[test]
fn changed_setting_applies_to_later_faults() {
    let world = world(HugePages::Never);
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    map(&process, BASE, 3);
    process.madvise(BASE + 2 * HUGE, HUGE, Advice::HugePage).unwrap();
    let mut touch = |huge: u64| {
        process.store(&mut cpu, BASE + huge * HUGE, 1u64).unwrap();
        present(&process, BASE + huge * HUGE, 1) == ONE
    };
    assert!(!touch(0));
    world.engine().set_huge_pages(HugePages::Always);
    assert!(touch(1));
    assert!(!touch(0), "mapped small pages stay");
    world.engine().set_huge_pages(HugePages::Madvise);
    assert_eq!(world.engine().huge_pages(), HugePages::Madvise);
    assert!(touch(2));
    let eligible: Vec<bool> = process.smaps(0).map(|smap| smap.huge_eligible).collect();
    assert_eq!(eligible, [false, true]);
    drop((process, cpu));
    world.end();
}

#[test]
fn thp_disable_applies_to_the_process_and_its_children() {
    let (all, advised) = (ThpDisable::Everywhere, ThpDisable::UnlessAdvised);
    // A VMA without advice, and one with MADV_HUGEPAGE.
    let wanted = [(ThpDisable::Nowhere, [true, true]), (all, [false, false]), (advised, [false, true])];
    for (disable, expected) in wanted {
        let world = world(HugePages::Always);
        let process = world.process(Locking::default());
        let mut cpu = world.machine.cpu(0);
        map(&process, BASE, 2);
        process.madvise(BASE + HUGE, HUGE, Advice::HugePage).unwrap();
        process.set_thp_disable(disable);
        let child = Process::of(process.fork().unwrap());
        for process in [&process, &child] {
            assert_eq!(process.thp_disable(), disable);
            for (at, expected) in [BASE, BASE + HUGE].into_iter().zip(expected) {
                process.store(&mut cpu, at, 1u64).unwrap();
                assert_eq!(present(process, at, 1) == ONE, expected, "{disable:?}");
            }
        }
        drop((process, child, cpu));
        world.end();
    }
    let asked = [(0, 0), (1, 0), (7, 0), (1, 2), (1, 1), (0, 2), (1, 4)];
    let expected = [Some(ThpDisable::Nowhere), Some(all), Some(all), Some(advised), None, None, None];
    assert_eq!(asked.map(|(on, flags)| ThpDisable::from_raw(on, flags)), expected);
}

#[test]
fn failed_huge_allocation_falls_back_to_small_pages() {
    for locking in Locking::ALL {
        // The machine has less memory than one huge page.
        let world = World::with(1 << 20, Config::new().huge_pages(HugePages::Always));
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        map(&process, BASE, 2);
        process.store(&mut cpu, BASE + 100 * PAGE, 7u64).unwrap();
        assert_eq!(process.load::<u64>(&mut cpu, BASE + HUGE), Ok(0));
        assert_eq!(present(&process, BASE, 1), [(100, 1, PageKind::Anon, false)]);
        assert_eq!(present(&process, BASE + HUGE, 1), [(0, 1, PageKind::Zero, false)]);
        process.check();
        drop((process, cpu));
        world.end();
    }
}

#[test]
fn populating_and_locking_allocate_huge_pages() {
    each_way(HugePages::Always, |_, process, cpu| {
        let flags = ANON | MapFlags::FIXED | MapFlags::POPULATE;
        process.mmap(BASE, 2 * HUGE, RW, flags, None, 0).unwrap();
        assert_eq!(huge_bytes(process), 2 * HUGE);
        // Populating a read-only mapping maps the zero page. When a locked mapping becomes writable, it gets
        // frames of its own at once.
        process.mmap(BASE + 2 * HUGE, HUGE, R, ANON | MapFlags::FIXED | MapFlags::LOCKED, None, 0).unwrap();
        assert_eq!(present(process, BASE + 2 * HUGE, 1), [(0, PAGES, PageKind::Zero, true)]);
        process.mprotect(BASE + 2 * HUGE, HUGE, RW).unwrap();
        assert_eq!(huge_bytes(process), 3 * HUGE);
        let locked: Vec<_> = process.smaps(0).map(|smap| smap.usage.locked).collect();
        assert_eq!(locked, [0, HUGE]);
        map(process, BASE + 4 * HUGE, 1);
        process.madvise(BASE + 4 * HUGE, HUGE, Advice::PopulateWrite).unwrap();
        assert_eq!(huge_bytes(process), 4 * HUGE);
        write_sample(process, cpu, BASE + 4 * HUGE, 4);
        assert_sample(process, cpu, BASE + 4 * HUGE, 4, all);
    });
}

#[test]
fn mincore_and_smaps_report_huge_pages() {
    each_way(HugePages::Always, |_, process, cpu| {
        map(process, BASE, 2);
        process.store(cpu, BASE, 1u64).unwrap();
        let mut out = [9; 4];
        process.mincore(BASE + HUGE - 2 * PAGE, 4 * PAGE, &mut out).unwrap();
        assert_eq!(out, [1, 1, 0, 0]);
        let smap = process.smaps(0).next().unwrap();
        let usage = smap.usage;
        assert_eq!((usage.rss, usage.pss, usage.private_dirty, usage.anonymous), (HUGE, HUGE, HUGE, HUGE));
        assert_eq!(usage.referenced, HUGE);
        let text = smap.to_string();
        assert!(text.contains("\nAnonHugePages:      2048 kB\n"), "{text}");
        assert!(text.contains("\nTHPeligible:           1\n"), "{text}");
        // After half of a huge page is unmapped, the rest is not a huge page any more.
        process.munmap(BASE, HUGE / 2).unwrap();
        let usage = process.smaps(0).next().unwrap().usage;
        assert_eq!((usage.rss, usage.anonymous_huge), (HUGE / 2, 0));
        // A VMA is eligible if it contains one whole aligned block. A VMA that is as long as a block but
        // crosses the border between two blocks is not eligible.
        let eligible = |process: &Process| process.smaps(0).next().unwrap().huge_eligible;
        assert!(eligible(process));
        process.munmap(BASE + HUGE + 100 * PAGE, HUGE).unwrap();
        assert!(!eligible(process));
    });
}

#[test]
fn mprotect_of_a_huge_page_keeps_it_whole() {
    each_way(HugePages::Always, |_, process, cpu| {
        map(process, BASE, 1);
        write_sample(process, cpu, BASE, 1);
        process.mprotect(BASE, HUGE, Prot::empty()).unwrap();
        let denied = |found| matches!(found, Err(FaultError::Segv { .. }));
        assert!(
            denied(process.load::<u64>(cpu, BASE)) && denied(process.load::<u64>(cpu, BASE + HUGE - PAGE))
        );
        assert_eq!(present(process, BASE, 1), ONE);
        process.mprotect(BASE, HUGE, R).unwrap();
        assert_sample(process, cpu, BASE, 1, all);
        assert!(process.store(cpu, BASE, 1u64).is_err());
        process.mprotect(BASE, HUGE, RW).unwrap();
        write_sample(process, cpu, BASE, 2);
        assert_sample(process, cpu, BASE, 2, all);
        // The huge page was never split.
        assert_eq!(present(process, BASE, 1), ONE);
        assert!(process.maps(0).all(|line| line.flags.contains(VmFlags::WRITE)));
    });
}
