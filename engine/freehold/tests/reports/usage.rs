//! Memory usage (`src/report/smaps.rs`, `src/report/clear_refs.rs`): the values of smaps and smaps_rollup,
//! and the calls that change them, such as MADV_FREE, MADV_COLD and clear_refs. The tests compare `Usage` in
//! pages or bytes with expected values. One test compares the rows of the text with those of Linux. Another
//! test compares the count of page tables with that of the machine.

use super::*;
use freehold::{
    call::Advice,
    engine::HugePages,
    hugetlb::HugePageSize,
    report::{clear_refs::ClearRefs, smaps::Usage},
};

const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED);

/// Returns the memory in use of the VMA at the address.
fn usage(process: &Process, at: u64) -> Usage {
    process.smaps(at).next().unwrap().usage
}

/// Returns Rss, Private_Clean, Private_Dirty, Referenced, Pss_Dirty and LazyFree, in pages.
fn private(process: &Process, at: u64) -> [u64; 6] {
    let usage = usage(process, at);
    let sizes = [usage.rss, usage.private_clean, usage.private_dirty, usage.referenced];
    assert_eq!(usage.anonymous, usage.rss);
    let [rss, clean, dirty, referenced] = sizes;
    [rss, clean, dirty, referenced, usage.pss_dirty, usage.lazy_free].map(|bytes| bytes / PAGE)
}

#[test]
fn lazily_freed_pages_are_clean_until_stored_to() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 8);
        fill(process, cpu, BASE, 4, 1);
        assert_eq!(private(process, BASE), [4, 0, 4, 4, 4, 0]);
        process.madvise(BASE, 2 * PAGE, Advice::Free).unwrap();
        assert_eq!(private(process, BASE), [4, 2, 2, 2, 2, 2]);
        // The CPU has cached a translation with the dirty bit, and must nevertheless set the bit for the next
        // store.
        process.store(cpu, BASE, 9u64).unwrap();
        assert_eq!(private(process, BASE), [4, 1, 3, 3, 3, 1]);
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(2), "the contents stay");
        process.madvise(BASE, PAGE, Advice::DontNeed).unwrap();
        process.mprotect(BASE, 8 * PAGE, R).unwrap();
        process.madvise(BASE, 8 * PAGE, Advice::Free).unwrap();
        assert_eq!(private(process, BASE), [3, 3, 0, 0, 0, 3]);
    });
}

#[test]
fn lazy_free_after_fork_keeps_pages_of_the_other_process_dirty() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        let child = Process::of(process.fork().unwrap());
        child.madvise(BASE, 2 * PAGE, Advice::Free).unwrap();
        let (own, other) = (usage(&child, BASE), usage(process, BASE));
        assert_eq!((own.shared_clean, own.shared_dirty, own.lazy_free), (2 * PAGE, 2 * PAGE, 2 * PAGE));
        assert_eq!((other.shared_clean, other.shared_dirty, other.lazy_free), (0, 4 * PAGE, 0));
    });
}

#[test]
fn lazily_freed_huge_page_is_clean_as_a_whole_or_in_part() {
    let config = Config::new().huge_pages(HugePages::Always);
    everywhere_with(16 << 20, &config, |_, process, cpu| {
        anon(process, BASE, 512);
        let all = HUGE / PAGE;
        process.store(cpu, BASE, 1u64).unwrap();
        process.madvise(BASE, HUGE, Advice::Free).unwrap();
        assert_eq!(private(process, BASE), [all, all, 0, 0, 0, all]);
        assert_eq!(usage(process, BASE).anonymous_huge, HUGE);
        process.store(cpu, BASE, 2u64).unwrap();
        assert_eq!(private(process, BASE), [all, 0, all, all, all, 0]);
        let child = Process::of(process.fork().unwrap());
        process.madvise(BASE, HUGE, Advice::Free).unwrap();
        assert_eq!(usage(process, BASE).shared_dirty, HUGE, "a shared huge page stays dirty");
        drop(child);
        process.madvise(BASE, 16 * PAGE, Advice::Free).unwrap();
        assert_eq!(private(process, BASE), [all, 16, all - 16, all - 16, all - 16, 16]);
        assert_eq!(usage(process, BASE).anonymous_huge, 0);
    });
}

#[test]
fn cold_advice_clears_the_accessed_bit_of_unshared_pages() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        process.madvise(BASE, 3 * PAGE, Advice::Cold).unwrap();
        assert_eq!(private(process, BASE), [4, 0, 4, 1, 4, 0]);
        let child = Process::of(process.fork().unwrap());
        process.madvise(BASE, 4 * PAGE, Advice::Cold).unwrap();
        assert_eq!(usage(process, BASE).referenced, PAGE);
        drop(child);
    });
}

#[test]
fn clear_refs_clears_accessed_bits_of_the_selected_memory() {
    for locking in Locking::ALL {
        let world = World::with(24 << 20, Config::default());
        world.engine().resize_huge_pool(HugePageSize::Mib2, 2, None);
        world.live(locking, |world, process, cpu| {
            let [own, shared, private, pool] = [0, 16, 32, 1024].map(|page| BASE + page * PAGE);
            let file = world.file(4);
            anon(process, own, 4);
            process.mmap(shared, 4 * PAGE, RW, SHARED | MapFlags::ANONYMOUS, None, 0).unwrap();
            process.mmap(private, 4 * PAGE, RW, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
            let flags = ANON | MapFlags::HUGETLB | MapFlags::FIXED;
            process.mmap(pool, HUGE, RW, flags, None, 0).unwrap();
            let touch = |cpu: &mut Vcpu| {
                [own, shared, private, pool].iter().for_each(|at| process.store(cpu, *at, 1u64).unwrap());
            };
            let referenced = || [own, shared, private].map(|at| usage(process, at).referenced > 0);
            touch(cpu);
            assert_eq!(referenced(), [true; 3]);
            process.clear_refs(ClearRefs::Anonymous);
            assert_eq!(referenced(), [false, true, true]);
            process.clear_refs(ClearRefs::Mapped);
            assert_eq!(referenced(), [false; 3]);
            // The CPU has cached translations of used pages, and must nevertheless set the accessed bit for
            // the next use.
            touch(cpu);
            assert_eq!(referenced(), [true; 3]);
            process.clear_refs(ClearRefs::All);
            assert_eq!(referenced(), [false; 3]);
            assert_eq!(
                (usage(process, own).private_dirty, usage(process, pool).private_hugetlb),
                (PAGE, HUGE)
            );
        });
    }
}

#[test]
fn rollup_is_the_exact_sum_of_all_vmas() {
    everywhere(|world, process, cpu| {
        let file = world.file(4);
        // VMAs of one page that three processes share: a third of a page is not a whole number of bytes.
        (0..9).for_each(|n| assert_eq!(anon(process, BASE + 2 * n * PAGE, 1), BASE + 2 * n * PAGE));
        (0..9).for_each(|n| process.store(cpu, BASE + 2 * n * PAGE, 1u64).unwrap());
        process.mlock(BASE, PAGE).unwrap();
        let children = [(); 2].map(|()| Process::of(process.fork().unwrap()));
        process.mmap(BASE + 64 * PAGE, 4 * PAGE, RW, SHARED, Some(&file), 0).unwrap();
        process.store(cpu, BASE + 64 * PAGE, 1u64).unwrap();
        let at = process.mmap(0, 4 * PAGE, RW, MapFlags::SHARED | MapFlags::ANONYMOUS, None, 0).unwrap();
        process.store(cpu, at, 1u64).unwrap();
        let rollup = process.smaps_rollup();
        let sum = rollup.usage;
        let of_each = |f: fn(&Usage) -> u64| process.smaps(0).map(|smap| f(&smap.usage)).sum::<u64>();
        assert_eq!(sum.rss, of_each(|usage| usage.rss));
        assert_eq!(sum.referenced, of_each(|usage| usage.referenced));
        assert_eq!((sum.anonymous, sum.shared_dirty), (9 * PAGE, 9 * PAGE));
        // As on Linux, fractions have twelve bits, and are dropped from the sum, not from the value of each
        // VMA.
        assert_eq!((sum.pss_anon, sum.pss_shmem), ((9 * ((PAGE << 12) / 3)) >> 12, PAGE));
        assert!(sum.pss_anon > of_each(|usage| usage.pss_anon));
        assert!(sum.pss_file >= PAGE);
        assert_eq!(sum.pss, sum.pss_anon + sum.pss_file + sum.pss_shmem);
        assert_eq!((sum.locked, of_each(|usage| usage.locked)), (PAGE / 3, PAGE / 3));
        let maps: Vec<_> = process.maps(0).collect();
        assert_eq!(rollup.range, maps[0].start..maps[maps.len() - 1].end);
        drop(children);
    });
}

#[test]
fn rollup_has_the_rows_of_linux_in_order() {
    World::new().live(Locking::default(), |_, process, cpu| {
        anon(process, 0x10_0000, 3);
        fill(process, cpu, 0x10_0000, 3, 1);
        process.madvise(0x10_0000, PAGE, Advice::Free).unwrap();
        let text = process.smaps_rollup().to_string();
        let mut lines = text.lines();
        let head = "00100000-00103000 ---p 00000000 00:00 0                                  [rollup]";
        assert_eq!(lines.next(), Some(head));
        let rows: Vec<_> = lines.map(|line| line.split_once(':').unwrap()).collect();
        let names: Vec<_> = rows.iter().map(|(name, _)| *name).collect();
        let linux = "Rss Pss Pss_Dirty Pss_Anon Pss_File Pss_Shmem Shared_Clean Shared_Dirty Private_Clean \
            Private_Dirty Referenced Anonymous KSM LazyFree AnonHugePages ShmemPmdMapped FilePmdMapped \
            Shared_Hugetlb Private_Hugetlb Swap SwapPss Locked";
        assert_eq!(names, linux.split_whitespace().collect::<Vec<_>>());
        assert!(text.contains("\nPss_Anon:             12 kB\n"), "{text}");
        assert!(text.contains("\nLazyFree:              4 kB\n"), "{text}");
        assert!(text.ends_with("\nLocked:                0 kB\n"), "{text}");
        // smaps has the same rows, except the kinds of the proportional size.
        let mut smaps = String::new();
        process.write_smaps(&mut smaps).unwrap();
        let of_smaps = linux.replace("Pss_Anon Pss_File Pss_Shmem ", "");
        let rows = smaps.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name);
        let rows: Vec<_> = rows.skip_while(|name| *name != "Rss").collect();
        let wanted = of_smaps.split_whitespace().chain(["THPeligible", "VmFlags"]);
        assert_eq!(rows, wanted.collect::<Vec<_>>());
        // A number that is wider than its column is shown completely.
        process.mmap(BASE, 1 << 37, R, ANON | MapFlags::FIXED | MapFlags::NORESERVE, None, 0).unwrap();
        let (small, large) = (process.smaps(0).next().unwrap(), process.smaps(BASE).next().unwrap());
        assert!(small.to_string().contains("\nSize:                 12 kB\nKernelPageSize:        4 kB\n"));
        assert!(large.to_string().contains("\nSize:           134217728 kB\nKernelPageSize:        4 kB\n"));
        assert!(large.to_string().contains("\nTHPeligible:           0\nVmFlags: rd mr mw me "));
    });
}

#[test]
fn every_page_table_except_the_root_counts_once() {
    let config = Config::new().huge_pages(HugePages::Always);
    everywhere_with(32 << 20, &config, |world, process, cpu| {
        world.engine().resize_huge_pool(HugePageSize::Mib2, 2, None);
        let check = |what: &str| {
            let tables = world.machine.accounting().tables as u64 - 1;
            // One table of a fifth level, which is not counted, leads to all addresses of this test.
            let tables = if LEVELS == 5 { tables.saturating_sub(1) } else { tables };
            assert_eq!(process.page_table_bytes(), tables * PAGE, "{what}");
        };
        check("nothing");
        // Many VMAs under one table, and one VMA over many tables.
        (0..8).for_each(|n| assert_eq!(anon(process, BASE + 2 * n * PAGE, 1), BASE + 2 * n * PAGE));
        (0..8).for_each(|n| process.store(cpu, BASE + 2 * n * PAGE, 1u64).unwrap());
        check("small VMAs");
        // On x86-64 the addresses are below different tables of each level that is counted.
        let len = <Process>::MAP_WINDOW_END.next_power_of_two() / 128;
        let far = BASE + len / 2;
        process.mmap(far, len, RW, ANON | MapFlags::FIXED | MapFlags::NORESERVE, None, 0).unwrap();
        process.madvise(far, len, Advice::NoHugePage).unwrap();
        [0, 1 << 21, 1 << 30, len / 2].iter().for_each(|at| process.store(cpu, far + at, 1u64).unwrap());
        check("a large VMA");
        let huge = BASE + 16 * HUGE;
        anon(process, huge, 1024);
        [0, HUGE].iter().for_each(|at| process.store(cpu, huge + at, 1u64).unwrap());
        check("huge pages, with the tables that they keep in reserve");
        process.mprotect(huge, PAGE, R).unwrap();
        check("a split huge page");
        let pool = BASE + 32 * HUGE;
        let flags = ANON | MapFlags::HUGETLB | MapFlags::FIXED;
        process.mmap(pool, HUGE, RW, flags, None, 0).unwrap();
        process.store(cpu, pool, 1u64).unwrap();
        check("a huge page of a pool");
        process.munmap(far, len).unwrap();
        process.munmap(huge, 2 * HUGE).unwrap();
        check("after munmap");
    });
}
