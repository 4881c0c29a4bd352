//! Splitting of huge pages: a huge page is split when a part of it is unmapped, moved, discarded, guarded, or
//! gets other rights. The remaining parts keep their contents. Most tests change the parts in `PARTS`, on a
//! huge page whose translation two CPUs have cached (`filled`), and check the sample pages and `present`. A
//! call that can cut a huge page needs a test here.

use super::*;
use freehold::{
    call::RemapFlags,
    fault::{FaultError, SegvCode},
};

const FIXED: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);
const KEEP: RemapFlags = FIXED.union(RemapFlags::DONTUNMAP);

/// Parts of a huge page as first page and length: the front, the back, a middle part, one page, almost all,
/// and a half.
const PARTS: [(u64, u64); 6] = [(0, 100), (411, 101), (100, 311), (256, 1), (1, 510), (0, 256)];

/// Maps and writes a huge page, and caches its translation on two CPUs. Returns the second CPU.
fn filled(world: &World, process: &Process, cpu: &mut Vcpu) -> Vcpu {
    let mut other = world.machine.cpu(1);
    map(process, BASE, 1);
    write_sample(process, cpu, BASE, 1);
    assert_sample(process, &mut other, BASE, 1, all);
    assert_eq!(present(process, BASE, 1), ONE);
    other
}

/// Returns true if nothing is mapped at the address.
fn gone(process: &Process, cpu: &mut Vcpu, addr: u64) -> bool {
    process.load::<u64>(cpu, addr) == Err(FaultError::Segv { addr, code: SegvCode::Maperr })
}

#[test]
fn munmap_of_a_part_splits_a_huge_page() {
    for (first, pages) in PARTS {
        each_way(HugePages::Always, |world, process, cpu| {
            let mut other = filled(world, process, cpu);
            let tables = world.machine.accounting().tables;
            process.munmap(BASE + first * PAGE, pages * PAGE).unwrap();
            // The split uses the table that the huge page kept in reserve.
            assert_eq!(world.machine.accounting().tables, tables);
            let part = first..first + pages;
            for cpu in [cpu, &mut other] {
                assert_sample(process, cpu, BASE, 1, |page| !part.contains(&page));
                for page in SAMPLE.into_iter().filter(|page| part.contains(page)) {
                    assert!(gone(process, cpu, BASE + page * PAGE));
                }
            }
            assert_eq!(process.rss().anon as u64, PAGES - pages);
            assert_eq!(huge_bytes(process), 0);
        });
    }
}

#[test]
fn mmap_over_a_part_splits_a_huge_page() {
    each_way(HugePages::Always, |world, process, cpu| {
        let mut other = filled(world, process, cpu);
        anon(process, BASE + 100 * PAGE, 156);
        for cpu in [cpu, &mut other] {
            assert_sample(process, cpu, BASE, 1, |page| !(100..256).contains(&page));
            for page in SAMPLE.into_iter().filter(|page| (100..256).contains(page)) {
                assert_eq!(process.load::<u64>(cpu, BASE + page * PAGE), Ok(0));
            }
        }
        // Unmaps one part after the other until nothing is left.
        for page in (0..PAGES).step_by(64) {
            process.munmap(BASE + page * PAGE, 64 * PAGE).unwrap();
            process.check();
        }
        assert_eq!(process.rss().anon, 0);
    });
}

#[test]
fn mprotect_of_a_part_splits_a_huge_page() {
    for (first, pages) in PARTS {
        each_way(HugePages::Always, |world, process, cpu| {
            let mut other = filled(world, process, cpu);
            process.mprotect(BASE + first * PAGE, pages * PAGE, R).unwrap();
            let part = first..first + pages;
            for cpu in [cpu, &mut other] {
                assert_sample(process, cpu, BASE, 1, all);
                for page in SAMPLE {
                    let stored = process.store(cpu, BASE + page * PAGE, value(1, page));
                    assert_eq!(stored.is_err(), part.contains(&page), "page {page}");
                }
            }
            assert_eq!(process.rss().anon as u64, PAGES);
            process.mprotect(BASE, HUGE, RW).unwrap();
            write_sample(process, &mut other, BASE, 2);
            assert_sample(process, &mut other, BASE, 2, all);
            // No page was copied.
            assert_eq!(process.rss().anon as u64, PAGES);
        });
    }
}

#[test]
fn moving_a_vma_border_splits_a_huge_page() {
    each_way(HugePages::Always, |_, process, cpu| {
        // The first mprotect of a part changes the front of the huge page, and the lower VMA grows. The next
        // mprotect changes the back, and the upper VMA grows. The last mprotect changes the middle, and one
        // VMA is left.
        map(process, BASE, 3);
        write_sample(process, cpu, BASE + HUGE, 1);
        process.mprotect(BASE, HUGE, R).unwrap();
        process.mprotect(BASE + 2 * HUGE, HUGE, R).unwrap();
        assert_eq!(present(process, BASE + HUGE, 1), ONE);
        process.mprotect(BASE + HUGE, 100 * PAGE, R).unwrap();
        assert_eq!(layout(process), [(0, PAGES + 100), (PAGES + 100, 2 * PAGES), (2 * PAGES, 3 * PAGES)]);
        process.check();
        process.mprotect(BASE + HUGE + 411 * PAGE, 101 * PAGE, R).unwrap();
        process.mprotect(BASE + HUGE + 100 * PAGE, 311 * PAGE, R).unwrap();
        assert_eq!(layout(process), [(0, 3 * PAGES)]);
        assert_sample(process, cpu, BASE + HUGE, 1, all);
        assert!(process.store(cpu, BASE + HUGE + 300 * PAGE, 1u64).is_err());
    });
}

#[test]
fn mremap_of_a_part_splits_a_huge_page() {
    // Moves each part by a whole number of huge pages, and by other distances.
    for (first, pages) in PARTS {
        for to in [2 * PAGES, 2 * PAGES + 1, 3 * PAGES - 50, 700] {
            each_way(HugePages::Always, |world, process, cpu| {
                let mut other = filled(world, process, cpu);
                let (from, target) = (BASE + first * PAGE, BASE + (to + first) * PAGE);
                assert_eq!(process.mremap(from, pages * PAGE, pages * PAGE, FIXED, target), Ok(target));
                let part = first..first + pages;
                for cpu in [cpu, &mut other] {
                    assert_sample(process, cpu, BASE, 1, |page| !part.contains(&page));
                    assert_sample(process, cpu, BASE + to * PAGE, 1, |page| part.contains(&page));
                    for page in SAMPLE.into_iter().filter(|page| part.contains(page)) {
                        assert!(gone(process, cpu, BASE + page * PAGE));
                    }
                }
                assert_eq!(process.rss().anon as u64, PAGES);
            });
        }
    }
}

#[test]
fn mremap_moves_whole_huge_pages() {
    for to in [4 * PAGES, 4 * PAGES + 1, 5 * PAGES - 1, 1 << 18, (1 << 18) - PAGES - 3] {
        each_way(HugePages::Always, |world, process, cpu| {
            let mut other = world.machine.cpu(1);
            // Four blocks: written, zero page, unpopulated, and written in small pages.
            map(process, BASE, 4);
            write_sample(process, cpu, BASE, 1);
            assert_eq!(process.load::<u64>(cpu, BASE + HUGE), Ok(0));
            process.madvise(BASE + 3 * HUGE, HUGE, Advice::NoHugePage).unwrap();
            write_sample(process, &mut other, BASE + 3 * HUGE, 3);
            let at = BASE + to * PAGE;
            assert_eq!(process.mremap(BASE, 4 * HUGE, 4 * HUGE, FIXED, at), Ok(at));
            for cpu in [cpu, &mut other] {
                assert_sample(process, cpu, at, 1, all);
                assert_sample(process, cpu, at + 3 * HUGE, 3, all);
                for page in SAMPLE {
                    assert_eq!(process.load::<u64>(cpu, at + HUGE + page * PAGE), Ok(0));
                    assert!(gone(process, cpu, BASE + page * PAGE));
                    assert!(gone(process, cpu, BASE + 3 * HUGE + page * PAGE));
                }
                write_sample(process, cpu, at + HUGE, 2);
                process.madvise(at + HUGE, HUGE, Advice::DontNeed).unwrap();
            }
            process.check();
            // New memory at the old address has contents of its own.
            map(process, BASE, 1);
            let mut cpu = world.machine.cpu(2);
            assert_eq!(process.load::<u64>(&mut cpu, BASE + 100 * PAGE), Ok(0));
        });
    }
}

#[test]
fn mremap_dontunmap_leaves_an_empty_source() {
    each_way(HugePages::Always, |world, process, cpu| {
        let mut other = filled(world, process, cpu);
        let at = BASE + 2 * HUGE;
        // The first mremap moves a part, and the VMA is not split. The second mremap moves the whole huge
        // page.
        let (from, len) = (BASE + 100 * PAGE, 156 * PAGE);
        assert_eq!(process.mremap(from, len, len, KEEP, at + 3 * PAGE), Ok(at + 3 * PAGE));
        process.check();
        assert_eq!(process.load::<u64>(&mut other, BASE + 255 * PAGE), Ok(0));
        assert_sample(process, &mut other, BASE, 1, |page| !(100..256).contains(&page));
        assert_eq!(process.load(&mut other, at + 4 * PAGE), Ok(value(1, 101)));
        process.munmap(at, HUGE).unwrap();
        write_sample(process, cpu, BASE, 2);
        assert_eq!(process.mremap(BASE, HUGE, HUGE, KEEP, at), Ok(at));
        assert_sample(process, &mut other, at, 2, all);
        for page in SAMPLE {
            assert_eq!(process.load::<u64>(&mut other, BASE + page * PAGE), Ok(0));
        }
        write_sample(process, cpu, BASE, 3);
        assert_sample(process, &mut other, at, 2, all);
    });
}

#[test]
fn growing_and_shrinking_split_only_at_the_new_end() {
    each_way(HugePages::Always, |world, process, cpu| {
        let mut other = filled(world, process, cpu);
        assert_eq!(process.mremap(BASE, HUGE, 2 * HUGE, RemapFlags::empty(), 0), Ok(BASE));
        write_sample(process, cpu, BASE + HUGE, 2);
        assert_eq!(present(process, BASE + HUGE, 1), ONE);
        let len = HUGE + 100 * PAGE;
        assert_eq!(process.mremap(BASE, 2 * HUGE, len, RemapFlags::empty(), 0), Ok(BASE));
        assert_sample(process, &mut other, BASE, 1, all);
        assert_sample(process, &mut other, BASE + HUGE, 2, |page| page < 100);
        assert!(gone(process, &mut other, BASE + len));
        // The next mapping is in the way, so the mapping moves to an address that the test does not choose.
        anon(process, BASE + len, 1);
        let at = process.mremap(BASE, len, 3 * HUGE, RemapFlags::MAYMOVE, 0).unwrap();
        assert_sample(process, &mut other, at, 1, all);
        assert_sample(process, &mut other, at + HUGE, 2, |page| page < 100);
        assert_eq!(process.load::<u64>(&mut other, at + len), Ok(0));
        // The heap shrinks into a huge page.
        let heap = process.brk(0).unwrap();
        let end = heap.next_multiple_of(HUGE) + HUGE;
        process.brk(end).unwrap();
        write_sample(process, cpu, end - HUGE, 5);
        assert_eq!(present(process, end - HUGE, 1), ONE);
        process.brk(end - 101 * PAGE).unwrap();
        assert_sample(process, &mut other, end - HUGE, 5, |page| page < 411);
        process.brk(heap).unwrap();
    });
}

#[test]
fn discarding_a_part_splits_a_huge_page() {
    for (first, pages) in PARTS.into_iter().chain([(0, PAGES)]) {
        each_way(HugePages::Always, |world, process, cpu| {
            let mut other = filled(world, process, cpu);
            let (at, len) = (BASE + first * PAGE, pages * PAGE);
            // A huge page that a child also maps stays whole.
            let child = cpu.call(|| process.fork()).unwrap();
            for advice in [Advice::Free, Advice::Cold] {
                process.madvise(at, len, advice).unwrap();
                assert_eq!(present(process, BASE, 1), ONE);
            }
            drop(child);
            for advice in [Advice::Cold, Advice::Free] {
                process.madvise(at, len, advice).unwrap();
                assert_eq!(present(process, BASE, 1) == ONE, pages == PAGES, "{advice:?}");
            }
            process.madvise(at, len, Advice::DontNeed).unwrap();
            assert_eq!(process.rss().anon as u64, PAGES - pages);
            let part = first..first + pages;
            for cpu in [cpu, &mut other] {
                assert_sample(process, cpu, BASE, 1, |page| !part.contains(&page));
                for page in SAMPLE.into_iter().filter(|page| part.contains(page)) {
                    assert_eq!(process.load::<u64>(cpu, BASE + page * PAGE), Ok(0));
                }
            }
            write_sample(process, &mut other, BASE, 2);
            assert_sample(process, &mut other, BASE, 2, all);
        });
    }
}

#[test]
fn guards_split_a_huge_page() {
    for (first, pages) in PARTS.into_iter().chain([(0, PAGES)]) {
        each_way(HugePages::Always, |world, process, cpu| {
            let mut other = filled(world, process, cpu);
            let (at, len) = (BASE + first * PAGE, pages * PAGE);
            process.madvise(at, len, Advice::GuardInstall).unwrap();
            let part = first..first + pages;
            for cpu in [cpu, &mut other] {
                assert_sample(process, cpu, BASE, 1, |page| !part.contains(&page));
                for page in SAMPLE.into_iter().filter(|page| part.contains(page)) {
                    assert!(gone(process, cpu, BASE + page * PAGE));
                }
            }
            process.madvise(BASE, HUGE, Advice::GuardRemove).unwrap();
            assert_eq!(process.load::<u64>(&mut other, at), Ok(0));
            assert_sample(process, &mut other, BASE, 1, |page| !part.contains(&page));
        });
    }
}
