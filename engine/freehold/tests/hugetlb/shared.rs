//! Shared mappings of files, and page tables that several processes share (`src/hugetlb/sharing.rs`). `two`
//! sets up two processes with one shared table. The tests count page tables, to check when a process shares a
//! table and when it gets one of its own, and count flushes after a table was unshared.
//! `lab/freehold-machine/tests/shuttle_engine/hugetlb.rs` explores concurrent sharing. A new condition for
//! sharing is one more mapping in `mappings_that_differ_share_no_table`.

use super::*;
use freehold::{call::RemapFlags, space::Unmap};
use freehold_machine::Shadow;

/// Returns the number of page tables in use by all processes.
fn tables(world: &World) -> usize {
    world.machine.accounting().tables
}

/// Returns a file and a second process. Both processes map a span of the file with one shared page table.
/// `pages` pages are present, and page n contains n + 1.
fn two(world: &World, process: &Process, cpu: &mut Vcpu, pages: u64) -> (Counted<File<Machine>>, Process) {
    let file = file(world, SPAN);
    let other = world.process(process.locking());
    map_span(process, &file, BASE);
    map_span(&other, &file, BASE + 3 * SPAN);
    for n in 0..pages {
        process.store(cpu, BASE + n * HUGE, n + 1).unwrap();
    }
    let before = other.faults();
    assert_eq!(other.load::<u64>(cpu, BASE + 3 * SPAN), Ok(1));
    for n in 0..pages {
        // One fault installed the shared table, and no other page faults.
        assert_eq!(other.load::<u64>(cpu, BASE + 3 * SPAN + n * HUGE), Ok(n + 1));
    }
    let faults = other.faults();
    assert_eq!(faults.vma_lock + faults.mmap_lock, before.vma_lock + before.mmap_lock + 1);
    (file, other)
}

#[test]
fn two_processes_share_one_table() {
    everywhere(2, |world, process, cpu| {
        let (_, other) = two(world, process, cpu, 2);
        // Each process has a root and an upper table. The table of huge pages exists once.
        assert_eq!(tables(world), 2 * (LEVELS - 2) + 1);
        other.check();
        other.munmap(BASE + 3 * SPAN, SPAN).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + HUGE), Ok(2));
    });
}

/// A process that leaves a shared table loses the translations of the whole span of the table.
#[test]
fn device_loses_the_pages_of_a_table_that_is_unshared() {
    everywhere(2, |world, process, cpu| {
        let (_, other) = two(world, process, cpu, 2);
        let (device, _) = Shadow::attach(other.space()).unwrap();
        let at = |page: u64| BASE + 3 * SPAN + page * HUGE;
        for page in 0..2 {
            assert_eq!(device.load(&other, at(page)), Ok(page + 1));
        }
        other.mprotect(at(0), HUGE, R).unwrap();
        assert_eq!([0, 1].map(|page| device.translation(at(page))), [None; 2]);
        device.check(&other);
        assert_eq!(device.load(&other, at(1)), Ok(2));
    });
}

/// Two mappings share a table only if they cover a whole aligned span of the same part of the file with the
/// same rights.
#[test]
fn mappings_that_differ_share_no_table() {
    everywhere(1, |world, process, cpu| {
        let file = file(world, 2 * SPAN);
        map_span(process, &file, BASE);
        process.store(cpu, BASE, 1u64).unwrap();
        let mapped = |at, len, prot, offset| {
            let other = world.process(process.locking());
            assert_eq!(other.mmap(at, len, prot, SHARED, Some(&file), offset), Ok(at));
            other
        };
        for other in [
            mapped(BASE, SPAN - HUGE, RW, 0),
            mapped(BASE + HUGE, SPAN, RW, 0),
            mapped(BASE, SPAN, R, 0),
            mapped(BASE, SPAN, RW, HUGE),
        ] {
            let before = tables(world);
            let _ = other.touch(cpu, BASE + HUGE, freehold::fault::Access::READ);
            // The pool has one page, so the access may fail.
            let added = tables(world) - before;
            assert_eq!(added, LEVELS - 2, "upper tables and the mapping's own table of huge pages");
            other.check();
        }
    });
}

/// C-17: a process that unshares a table must flush the whole span of the table, not only the range of the
/// call. The other processes keep the table.
#[test]
fn c17_unsharing_flushes_the_whole_span_of_the_table() {
    everywhere(4, |world, process, cpu| {
        let (file, other) = two(world, process, cpu, 4);
        let mut away = world.machine.cpu(1);
        for n in 0..4 {
            assert_eq!(process.load::<u64>(&mut away, BASE + n * HUGE), Ok(n + 1));
        }
        process.madvise(BASE + HUGE, HUGE, Advice::DontNeed).unwrap();
        // A cached translation of another page would outlive the page here.
        other.munmap(BASE + 3 * SPAN, SPAN).unwrap();
        file.mapping().truncate(0).unwrap();
        assert_eq!(counts(world), all_free(4));
        for n in 0..4 {
            let at = BASE + n * HUGE;
            assert_eq!(process.load::<u64>(&mut away, at), Err(FaultError::Bus { addr: at }));
        }
    });
}

/// C-14: a munmap flushes once for all tables that it unshares.
#[test]
fn c14_munmap_flushes_once_for_all_unshared_tables() {
    everywhere(4, |world, process, cpu| {
        if !matches!(process.locking().unmap, Unmap::Exclusive | Unmap::Released) {
            // A sectioned or downgraded munmap flushes once per section.
            return;
        }
        let file = file(world, 4 * SPAN);
        let flushes = |spans: u64, cpu: &mut Vcpu| {
            let other = world.process(process.locking());
            for process in [process, &other] {
                assert_eq!(process.mmap(BASE, spans * SPAN, RW, SHARED, Some(&file), 0), Ok(BASE));
                for n in 0..spans {
                    process.store(cpu, BASE + n * SPAN, n).unwrap();
                }
            }
            let before = world.machine.stats();
            other.munmap(BASE, spans * SPAN).unwrap();
            let after = world.machine.stats();
            for n in 0..spans {
                assert_eq!(process.load::<u64>(cpu, BASE + n * SPAN), Ok(n));
            }
            process.munmap(BASE, spans * SPAN).unwrap();
            after.range_flushes + after.full_flushes - before.range_flushes - before.full_flushes
        };
        assert_eq!(flushes(1, cpu), flushes(4, cpu));
    });
}

/// C-12: a VMA that ends inside a span has a table of its own there, whether munmap, mprotect or mremap split
/// it.
#[test]
fn c12_vma_split_unshares_the_table() {
    for call in 0..3 {
        everywhere(3, |world, process, cpu| {
            let (_, other) = two(world, process, cpu, 3);
            let before = tables(world);
            match call {
                0 => process.munmap(BASE + HUGE, HUGE).unwrap(),
                1 => process.mprotect(BASE + HUGE, HUGE, R).unwrap(),
                _ => {
                    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                    let to = BASE + 7 * SPAN + HUGE;
                    assert_eq!(process.mremap(BASE + HUGE, HUGE, HUGE, flags, to), Ok(to));
                    assert_eq!(process.load::<u64>(cpu, to), Ok(2));
                }
            }
            process.check();
            assert_eq!(process.load::<u64>(cpu, BASE + 2 * HUGE), Ok(3));
            assert!(tables(world) > before, "the table is still shared");
            for n in 0..3 {
                assert_eq!(other.load::<u64>(cpu, BASE + 3 * SPAN + n * HUGE), Ok(n + 1));
            }
            other.check();
        });
    }
}

#[test]
fn mprotect_unshares_the_table_of_one_process() {
    everywhere(2, |world, process, cpu| {
        let (_, other) = two(world, process, cpu, 2);
        process.mprotect(BASE, SPAN, R).unwrap();
        assert!(matches!(process.store(cpu, BASE, 9u64), Err(FaultError::Segv { .. })));
        other.store(cpu, BASE + 3 * SPAN, 9u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(9));
        assert!(matches!(process.store(cpu, BASE, 9u64), Err(FaultError::Segv { .. })));
        process.mprotect(BASE, SPAN, RW).unwrap();
        process.store(cpu, BASE + HUGE, 8u64).unwrap();
        assert_eq!(other.load::<u64>(cpu, BASE + 3 * SPAN + HUGE), Ok(8));
        // The rights are equal again, so the processes share a table after the next fault.
        process.madvise(BASE, SPAN, Advice::DontNeed).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(9));
        other.check();
    });
}

/// C-16: a child shares the table of its parent, and neither process counts the pages as its own.
#[test]
fn c16_child_shares_the_table() {
    everywhere(2, |world, process, cpu| {
        let (file, other) = two(world, process, cpu, 2);
        let child = Process::of(process.fork().unwrap());
        assert_eq!(child.load::<u64>(cpu, BASE + HUGE), Ok(2));
        assert_eq!(tables(world), 3 * (LEVELS - 2) + 1);
        child.store(cpu, BASE, 7u64).unwrap();
        assert_eq!(other.load::<u64>(cpu, BASE + 3 * SPAN), Ok(7));
        for process in [process, &other, &child] {
            assert_eq!((process.rss().anon, process.rss().file, process.rss().shmem), (0, 0, 0));
            process.check();
        }
        drop(child);
        file.mapping().punch(0..SPAN).unwrap();
        assert_eq!(counts(world).free, 2);
    });
}

#[test]
fn truncation_unmaps_pages_in_all_processes() {
    everywhere(2, |world, process, cpu| {
        let (file, other) = two(world, process, cpu, 2);
        file.mapping().truncate(HUGE).unwrap();
        assert_eq!(counts(world).free, 1);
        for (process, at) in [(process, BASE), (&other, BASE + 3 * SPAN)] {
            assert_eq!(process.load::<u64>(cpu, at), Ok(1));
            assert_eq!(process.load::<u64>(cpu, at + HUGE), Err(FaultError::Bus { addr: at + HUGE }));
        }
        other.check();
        assert_eq!(file.mapping().truncate(PAGE).unwrap_err().errno(), Errno::EINVAL);
        // A hole that begins and ends inside pages zeroes the partial pages and frees the whole pages.
        file.mapping().punch(PAGE..3 * PAGE).unwrap();
        process.store(cpu, BASE + PAGE - 8, 3u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(1));
        assert_eq!(counts(world).free, 1);
    });
}

#[test]
fn shared_mappings_share_the_reservations_of_the_file() {
    everywhere(4, |world, process, cpu| {
        let file = file(world, 3 * HUGE);
        let flags = MapFlags::SHARED;
        let at = process.mmap(0, 2 * HUGE, RW, flags, Some(&file), 0).unwrap();
        assert_eq!(counts(world).reserved, 2);
        // A range that is reserved is not reserved again.
        let again = process.mmap(0, 3 * HUGE, RW, flags, Some(&file), 0).unwrap();
        assert_eq!(counts(world).reserved, 3);
        process.store(cpu, at, 1u64).unwrap();
        assert_eq!((counts(world).free, counts(world).reserved), (3, 2));
        process.munmap(at, 2 * HUGE).unwrap();
        process.munmap(again, 3 * HUGE).unwrap();
        assert_eq!((counts(world).free, counts(world).reserved), (3, 2));
        file.mapping().punch(0..2 * HUGE).unwrap();
        assert_eq!((counts(world).free, counts(world).reserved), (4, 1));
        file.mapping().truncate(0).unwrap();
        assert_eq!(counts(world), all_free(4));
        // A writable mapping enlarges the file.
        process.mmap(0, HUGE, RW, flags, Some(&file), 0).unwrap();
        assert_eq!(file.mapping().size(), HUGE);
    });
}

#[test]
fn page_in_a_shared_table_is_migrated() {
    everywhere(3, |world, process, cpu| {
        let (_, other) = two(world, process, cpu, 2);
        let frame = process.frame_at(BASE + 5 * PAGE).unwrap();
        let new = world.engine().migrate(frame).unwrap();
        assert_ne!(frame, new);
        for (process, at) in [(process, BASE), (&other, BASE + 3 * SPAN)] {
            assert_eq!(process.load::<u64>(cpu, at), Ok(1));
        }
        assert_eq!(counts(world).free, 1);
        other.check();
    });
}

/// Frames with a memory failure stay out of use. The other frames of the huge page return to the machine.
#[test]
fn only_failed_frames_of_a_huge_page_stay_out_of_use() {
    for locking in designs() {
        let world = world(5);
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        let (file, other) = two(&world, &process, &mut cpu, 2);
        let both = [(&process, BASE), (&other, BASE + 3 * SPAN)];
        world.engine().memory_failure(process.frame_at(BASE + 7 * PAGE).unwrap()).unwrap();
        for (process, at) in both {
            assert_eq!(process.load::<u64>(&mut cpu, at), Err(FaultError::MemoryFailed { addr: at }));
            assert_eq!(process.load::<u64>(&mut cpu, at + HUGE), Ok(2));
        }
        assert_eq!((counts(&world).total, counts(&world).free), (4, 3));
        file.mapping().punch(0..HUGE).unwrap();
        assert_eq!(process.load::<u64>(&mut cpu, BASE), Ok(0));
        // Soft offlining: the page is migrated before the frame fails.
        world.engine().soft_offline(process.frame_at(BASE + HUGE + PAGE).unwrap()).unwrap();
        assert_eq!(process.load::<u64>(&mut cpu, BASE + HUGE), Ok(2));
        assert_eq!((counts(&world).total, counts(&world).free), (3, 1));
        // The memory of a private page fails. The hole below returns the page of the file to the pool.
        let at = process.mmap(0, HUGE, RW, PRIVATE, None, 0).unwrap();
        process.store(&mut cpu, at, 1u64).unwrap();
        world.engine().memory_failure(process.frame_at(at + PAGE).unwrap()).unwrap();
        assert_eq!(process.load::<u64>(&mut cpu, at), Err(FaultError::MemoryFailed { addr: at }));
        assert_eq!((counts(&world).total, counts(&world).free, counts(&world).reserved), (2, 0, 0));
        file.mapping().punch(0..HUGE).unwrap();
        assert_eq!(counts(&world).free, 1);
        process.check();
        other.check();
        let World { machine, engine } = world;
        drop((process, other, file, cpu, engine));
        assert_eq!(machine.accounting().frames, 3, "{locking:?}");
    }
}
