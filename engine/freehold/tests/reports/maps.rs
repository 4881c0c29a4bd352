//! The reports maps, smaps and pagemap: their text and figures, also while other threads change the mappings
//! (C-70). Most scenarios run on every design. The lines of maps are compared with those of Linux. `usage.rs`
//! tests the figures of smaps in detail.

use super::*;
use freehold::{call::Advice, report::pagemap::PageKind, vma::flags::VmFlags};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

#[test]
fn maps_text_matches_linux() {
    everywhere(|world, process, cpu| {
        let file = world.file(8);
        anon(process, BASE, 2);
        process
            .mmap(BASE + 2 * PAGE, PAGE, R, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 3 * PAGE)
            .unwrap();
        let flags = MapFlags::SHARED | MapFlags::ANONYMOUS | MapFlags::FIXED;
        process.mmap(BASE + 4 * PAGE, PAGE, RW, flags, None, 0).unwrap();
        let heap = process.brk(0).unwrap();
        process.brk(heap + PAGE).unwrap();
        let stack = MapFlags::GROWSDOWN | ANON | MapFlags::FIXED;
        process.mmap(BASE << 1, PAGE, RW, stack, None, 0).unwrap();
        process.store(cpu, BASE, 1u64).unwrap();
        let mut text = String::new();
        process.write_maps(&mut text).unwrap();
        let heap_line = format!("{heap:x}-{:x} rw-p 00000000 00:00 0", heap + PAGE);
        let mappings = "\
1000000000-1000002000 rw-p 00000000 00:00 0 
1000002000-1000003000 r--p 00003000 00:00 0                              /a/file
1000004000-1000005000 rw-s 00000000 00:00 0                              /dev/zero (deleted)
2000000000-2000001000 rw-p 00000000 00:00 0                              [stack]
";
        assert_eq!(text, format!("{mappings}{heap_line:<73}[heap]\n"));
    });
}

#[test]
fn smaps_counts_resident_memory() {
    everywhere(|world, process, cpu| {
        let file = world.file(8);
        process.mmap(BASE, 4 * PAGE, RW, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
        anon(process, BASE + 10 * PAGE, 4);
        // The store makes a private copy. The load maps the pages around its own page, except for that copy.
        process.store(cpu, BASE, 1u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(Disk::number(1)));
        fill(process, cpu, BASE + 10 * PAGE, 3, 1);
        // The zero page is not counted.
        assert_eq!(process.load::<u64>(cpu, BASE + 13 * PAGE), Ok(0));
        let smaps: Vec<_> = process.smaps(0).collect();
        assert_eq!((smaps[0].usage.anonymous, smaps[0].usage.private_dirty), (PAGE, PAGE));
        assert!(smaps[0].usage.rss >= 2 * PAGE);
        let before = smaps[1].usage;
        assert_eq!((before.rss, before.pss, before.anonymous), (3 * PAGE, 3 * PAGE, 3 * PAGE));
        assert_eq!((before.private_dirty, before.shared_dirty), (3 * PAGE, 0));
        let child = Process::of(process.fork().unwrap());
        let both = process.smaps(BASE + 10 * PAGE).next().unwrap().usage;
        assert_eq!((both.rss, both.pss, both.shared_dirty), (3 * PAGE, 3 * PAGE / 2, 3 * PAGE));
        assert_eq!(child.smaps(BASE + 10 * PAGE).next().unwrap().usage.referenced, 0);
        process.mlock(BASE + 10 * PAGE, 4 * PAGE).unwrap();
        let mut text = String::new();
        process.write_smaps(&mut text).unwrap();
        assert_eq!(text.matches("Size:").count() - text.matches("PageSize:").count(), 2);
        assert!(text.contains("\nRss:                  16 kB\n"), "{text}");
        assert!(text.contains("\nLocked:               16 kB\n"), "{text}");
        assert!(text.contains("\nVmFlags: rd wr mr mw me lo ac sd \n"), "{text}");
    });
}

#[test]
fn c70_maps_always_reports_unchanged_mappings() {
    // C-70: one thread splits, merges and moves VMAs while another reads maps. A mapping that stays is
    // reported in each pass, addresses ascend, and no report contains a gap that never existed.
    for locking in [Locking::default(), Locking::ALL[0]] {
        let world = World::new();
        let process = world.process(locking);
        anon(&process, BASE, 8);
        process.mmap(BASE + 20 * PAGE, 4 * PAGE, R, ANON | MapFlags::FIXED, None, 0).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut round = 0u64;
                while !stop.load(SeqCst) {
                    round += 1;
                    let part = BASE + round % 7 * PAGE;
                    process.mprotect(part, PAGE, R).unwrap();
                    process.mprotect(part, PAGE, RW).unwrap();
                    anon(&process, BASE + 10 * PAGE, round % 4 + 1);
                    process.munmap(BASE + 10 * PAGE, 8 * PAGE).unwrap();
                }
            });
            for _ in 0..2000 {
                let (mut at, mut covered, mut readable) = (0, BASE, false);
                for line in process.maps(0) {
                    assert!(at <= line.start && line.start < line.end);
                    at = line.end;
                    if line.start < BASE + 8 * PAGE {
                        assert_eq!(line.start, covered, "a gap that never existed was reported");
                        covered = line.end;
                    }
                    readable |= line.start == BASE + 20 * PAGE && !line.flags.contains(VmFlags::WRITE);
                }
                assert!(covered == BASE + 8 * PAGE && readable);
            }
            stop.store(true, SeqCst);
        });
        process.check();
        drop(process);
        world.end();
    }
}

#[test]
fn advice_appears_in_smaps_flags() {
    everywhere(|_, process, _| {
        anon(process, BASE, 1);
        process.madvise(BASE, PAGE, Advice::DontFork).unwrap();
        let mut text = String::new();
        process.write_smaps(&mut text).unwrap();
        assert!(text.contains(" dc "), "{text}");
    });
}

#[test]
fn pagemap_reports_runs_of_present_pages_by_kind() {
    everywhere(|world, process, cpu| {
        let file = world.file(1);
        process.mmap(BASE, PAGE, RW, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
        anon(process, BASE + PAGE, 600);
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(Disk::number(0)));
        fill(process, cpu, BASE + 2 * PAGE, 3, 1);
        assert_eq!(process.load::<u64>(cpu, BASE + 5 * PAGE), Ok(0));
        fill(process, cpu, BASE + 600 * PAGE, 1, 1);
        let seen = |from: u64, to: u64| {
            // The capacity is reserved for all runs, because the closure runs under page table locks and must
            // not allocate.
            let mut seen = Vec::with_capacity(16);
            process.pagemap(BASE + from * PAGE..BASE + to * PAGE, |present| {
                let first = (present.range.start() - BASE) / PAGE;
                let pages = (present.range.end() - present.range.start()) / PAGE;
                seen.push((first, pages, present.kind));
            });
            seen
        };
        use PageKind::{Anon, File, Zero};
        // |f|.|a a a|z|. . . |a|: pages 0, 2 to 4, 5, 600.
        assert_eq!(seen(0, 1000), [(0, 1, File), (2, 3, Anon), (5, 1, Zero), (600, 1, Anon)]);
        assert_eq!(seen(3, 5), [(3, 2, Anon)]);
        assert_eq!(seen(6, 600), []);
        process.store(cpu, BASE, 1u64).unwrap();
        assert_eq!(seen(0, 1), [(0, 1, Anon)]);
    });
}

#[test]
fn set_heap_moves_the_start_of_the_heap() {
    everywhere(|_, process, _| {
        process.set_heap(BASE + 0x123..BASE + 0x123).unwrap();
        assert_eq!(process.brk(0), Ok(BASE + 0x123));
        assert_eq!(process.brk(BASE + 2 * PAGE), Ok(BASE + 2 * PAGE));
        assert_eq!(layout(process), [(1, 2)]);
        let child = Process::of(process.fork().unwrap());
        assert_eq!(child.brk(BASE + 3 * PAGE), Ok(BASE + 3 * PAGE));
        // The break does not move below the current start of the heap, although it is above an earlier start.
        assert_eq!(child.brk(BASE), Ok(BASE + 3 * PAGE));
        process.check();
    });
}

#[test]
fn debug_output_names_settings_and_counts() {
    let world = World::new();
    let process = world.process(Locking::default());
    let file = world.file(2);
    process.mmap(BASE, PAGE, R, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), PAGE).unwrap();
    let line = format!("{:?}", process.maps(0).next().unwrap());
    assert!(line.starts_with("MapLine { range: 0x1000000000..0x1000001000, flags: "), "{line}");
    assert!(line.ends_with("offset: 4096, name: \"/a/file\" }"), "{line}");
    assert_eq!(format!("{file:?}"), "File { name: \"/a/file\", .. }");
    assert_eq!(format!("{:?}", file.mapping()), "Mapping { size: 8192, .. }");
    let space = format!("{:?}", process.space());
    assert!(space.contains("map_count: 1"), "{space}");
    let engine = format!("{:?}", world.engine());
    assert!(engine.contains("max_map_count: 65530"), "{engine}");
}
