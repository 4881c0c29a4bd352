//! mremap: moved, grown and shrunk mappings, the order of its errors, and moves that run out of memory. Most
//! scenarios run on every design. Addresses are page numbers from `BASE` on (`remap`). The tests check the
//! words at the old and the new address, the VMAs and the counts. The machine detects a stale translation of
//! the old address.
//!
//! `range_writers.rs` of this folder compares the results of range writers with those of the exclusive
//! writer, and `stack.rs` tests exec's stack move. A new error is one more row of
//! `errors_are_checked_in_the_order_of_linux`.

use super::*;
use freehold::{
    call::{Advice, RemapFlags},
    error::Errno,
    fault::{FaultError, SegvCode},
    vma::flags::VmFlags,
};
use support::failure::{Failure, Point, at_every_allocation};

const MOVE: RemapFlags = RemapFlags::MAYMOVE;
const FIXED: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);
const KEEP: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::DONTUNMAP);

/// Calls mremap. Addresses are pages counted from `BASE`.
fn remap(process: &Process, from: u64, old: u64, new: u64, flags: RemapFlags, to: u64) -> Result<u64, Errno> {
    let moved = process.mremap(BASE + from * PAGE, old * PAGE, new * PAGE, flags, BASE + to * PAGE);
    moved.map(|at| at.wrapping_sub(BASE) / PAGE).map_err(|error| error.errno())
}

/// Returns true if nothing is mapped at the address.
fn unmapped(process: &Process, cpu: &mut Vcpu, addr: u64) -> bool {
    process.load::<u64>(cpu, addr) == Err(FaultError::Segv { addr, code: SegvCode::Maperr })
}

#[test]
fn move_keeps_the_pages() {
    // Moves within one page table, from one table to another, and from one table into two.
    for (pages, to) in
        [(4, 8), (4, 512), (4, 510), (700, 1000), (512, 512), (1024, 2048), (1300, 2048), (1, 511)]
    {
        everywhere(|_, process, cpu| {
            anon(process, BASE, pages);
            fill(process, cpu, BASE, pages, 100);
            assert_eq!(remap(process, 0, pages, pages, FIXED, to), Ok(to));
            assert_eq!(layout(process), [(to, to + pages)]);
            assert_filled(process, cpu, BASE + to * PAGE, pages, 100);
            assert!(unmapped(process, cpu, BASE) && unmapped(process, cpu, BASE + (pages - 1) * PAGE));
            // The old translations are flushed, and a new mapping at the old address has new memory.
            anon(process, BASE, pages.min(to));
            assert_filled(process, cpu, BASE, 1, 0);
        });
    }
}

#[test]
fn part_of_a_mapping_moves_and_merges_back() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 6);
        fill(process, cpu, BASE, 6, 10);
        assert_eq!(remap(process, 2, 2, 2, FIXED, 100), Ok(100));
        assert_eq!(layout(process), [(0, 2), (4, 6), (100, 102)]);
        assert_filled(process, cpu, BASE + 100 * PAGE, 2, 12);
        assert_filled(process, cpu, BASE, 2, 10);
        assert_filled(process, cpu, BASE + 4 * PAGE, 2, 14);
        // The part moves back to its old address, where the offsets continue, so the parts merge.
        assert_eq!(remap(process, 100, 2, 2, FIXED, 2), Ok(2));
        assert_eq!(layout(process), [(0, 6)]);
        assert_filled(process, cpu, BASE, 6, 10);
    });
}

#[test]
fn mapping_grows_and_shrinks_in_place() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        assert_eq!(remap(process, 0, 4, 8, RemapFlags::empty(), 0), Ok(0));
        assert_eq!(layout(process), [(0, 8)]);
        assert_eq!(remap(process, 0, 8, 3, RemapFlags::empty(), 0), Ok(0));
        assert_eq!(layout(process), [(0, 3)]);
        assert!(unmapped(process, cpu, BASE + 3 * PAGE));
        // Another mapping prevents growth in place. C-46: growing from the middle of a mapping fails.
        anon(process, BASE + 5 * PAGE, 1);
        assert_eq!(remap(process, 0, 3, 6, RemapFlags::empty(), 0), Err(Errno::ENOMEM));
        assert_eq!(remap(process, 0, 2, 3, RemapFlags::empty(), 0), Err(Errno::ENOMEM));
        let at = process.mremap(BASE, 3 * PAGE, 6 * PAGE, MOVE, 0).unwrap();
        assert_filled(process, cpu, at, 3, 1);
        assert_filled(process, cpu, at + 3 * PAGE, 1, 0);
        // Shrinking may extend over the end of the VMA and unmap the following VMAs.
        anon(process, BASE, 4);
        assert_eq!(remap(process, 0, 6, 1, RemapFlags::empty(), 0), Ok(0));
        assert_eq!(layout(process)[0], (0, 1));
        assert!(unmapped(process, cpu, BASE + 5 * PAGE));
        // With a fixed target and a smaller size, the tail is unmapped and the rest moves.
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        assert_eq!(remap(process, 0, 4, 2, FIXED, 50), Ok(50));
        assert_filled(process, cpu, BASE + 50 * PAGE, 2, 1);
        assert!(unmapped(process, cpu, BASE) && unmapped(process, cpu, BASE + 3 * PAGE));
    });
}

#[test]
fn errors_are_checked_in_the_order_of_linux() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        let none = RemapFlags::empty();
        let bad = [
            ((0, 4, 0, none, 0), Errno::EINVAL),
            ((0, 4, 1 << 50, MOVE, 0), Errno::EINVAL),
            ((0, 4, 4, RemapFlags::from_bits_retain(8), 0), Errno::EINVAL),
            ((0, 4, 4, RemapFlags::FIXED, 100), Errno::EINVAL),
            ((0, 4, 4, FIXED, 2), Errno::EINVAL),
            ((0, 4, 4, FIXED, 1 << 50), Errno::EINVAL),
            ((0, 4, 2, KEEP, 100), Errno::EINVAL),
            ((8, 4, 8, MOVE, 0), Errno::EFAULT),
            ((0, 5, 8, MOVE, 0), Errno::EFAULT),
            ((0, 0, 4, MOVE, 0), Errno::EINVAL),
            ((8, 4, 4, FIXED, 100), Errno::EFAULT),
        ];
        for ((from, old, new, flags, to), errno) in bad {
            assert_eq!(
                remap(process, from, old, new, flags, to),
                Err(errno),
                "{from} {old} {new} {flags:?} {to}"
            );
        }
        assert_eq!(
            process.mremap(BASE + 1, PAGE, PAGE, MOVE, 0).map_err(|error| error.errno()),
            Err(Errno::EINVAL)
        );
        // The target is below the lowest address: the source stays mapped.
        let low = process.mremap(BASE, PAGE, PAGE, FIXED, PAGE).map_err(|error| error.errno());
        assert_eq!(low, Err(Errno::EPERM));
        assert_eq!(layout(process), [(0, 4)]);
        assert_filled(process, cpu, BASE, 4, 1);
        // An old length of zero duplicates a shared mapping.
        let file = world.file(8);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        process.mmap(BASE + 10 * PAGE, 4 * PAGE, RW, flags, Some(&file), 0).unwrap();
        assert_eq!(remap(process, 11, 0, 2, RemapFlags::empty(), 0), Err(Errno::ENOMEM));
        let twin = process.mremap(BASE + 11 * PAGE, 0, 2 * PAGE, MOVE, 0).unwrap();
        process.store(cpu, twin, 77u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + 11 * PAGE), Ok(77));
    });
}

#[test]
fn c45_dontunmap_leaves_an_empty_unlocked_source() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        process.mlock(BASE, 4 * PAGE).unwrap();
        // C-45: moves the whole mapping, then a part of it. `check` recounts the pages after each move.
        assert_eq!(remap(process, 0, 4, 4, KEEP | FIXED, 100), Ok(100));
        process.check();
        assert_filled(process, cpu, BASE + 100 * PAGE, 4, 1);
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(0));
        let locked: Vec<_> = process.maps(0).map(|line| line.flags.contains(VmFlags::LOCKED)).collect();
        assert_eq!(locked, [false, true]);
        assert_eq!(remap(process, 101, 2, 2, KEEP | FIXED, 200), Ok(200));
        process.check();
        assert_filled(process, cpu, BASE + 200 * PAGE, 2, 2);
        assert_eq!(process.load::<u64>(cpu, BASE + 101 * PAGE), Ok(0));
        assert_eq!(process.load::<u64>(cpu, BASE + 100 * PAGE), Ok(1));
    });
}

#[test]
fn dontunmap_source_keeps_its_offsets() {
    everywhere(|_, process, cpu| {
        // The mapping moves once with pages, so its offsets do not correspond to its address. The second move
        // leaves the mapping empty. As on Linux, the empty mapping does not merge with new adjacent memory.
        anon(process, BASE, 2);
        fill(process, cpu, BASE, 2, 1);
        remap(process, 0, 2, 2, FIXED, 100).unwrap();
        remap(process, 100, 2, 2, KEEP | FIXED, 200).unwrap();
        anon(process, BASE + 102 * PAGE, 2);
        assert_eq!(layout(process), [(100, 102), (102, 104), (200, 202)]);
    });
}

#[test]
fn several_mappings_move_with_their_gaps() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 2);
        process.mmap(BASE + 4 * PAGE, 2 * PAGE, R, ANON | MapFlags::FIXED, None, 0).unwrap();
        anon(process, BASE + 6 * PAGE, 2);
        fill(process, cpu, BASE, 2, 1);
        fill(process, cpu, BASE + 6 * PAGE, 2, 7);
        assert_eq!(remap(process, 1, 6, 6, FIXED, 100), Ok(100));
        assert_eq!(layout(process), [(0, 1), (7, 8), (100, 101), (103, 105), (105, 106)]);
        assert_filled(process, cpu, BASE + 100 * PAGE, 1, 2);
        assert_filled(process, cpu, BASE + 105 * PAGE, 1, 7);
        // Nothing is mapped at the start of the range.
        assert_eq!(remap(process, 99, 4, 4, FIXED, 200), Err(Errno::EFAULT));
    });
}

#[test]
fn unpopulated_mapping_merges_at_its_new_address() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 2);
        anon(process, BASE + 10 * PAGE, 2);
        assert_eq!(remap(process, 0, 2, 2, FIXED, 12), Ok(12));
        assert_eq!(layout(process), [(10, 14)]);
        // The target is adjacent to the remaining part of the mapping, and merges with that part.
        assert_eq!(remap(process, 10, 2, 2, FIXED, 14), Ok(14));
        assert_eq!(layout(process), [(12, 16)]);
        assert_eq!(remap(process, 14, 2, 2, FIXED, 10), Ok(10));
        assert_eq!(layout(process), [(10, 14)]);
        // A mapping that has pages keeps its offsets and does not merge. C-34: the reverse map finds its
        // pages at every address.
        fill(process, cpu, BASE + 12 * PAGE, 2, 5);
        assert_eq!(remap(process, 12, 2, 2, FIXED, 8), Ok(8));
        assert_eq!(layout(process), [(8, 10), (10, 12)]);
        assert_filled(process, cpu, BASE + 8 * PAGE, 2, 5);
        // The target is between two mappings, one of which is the source that stays mapped.
        anon(process, BASE + 30 * PAGE, 2);
        anon(process, BASE + 34 * PAGE, 2);
        assert_eq!(remap(process, 30, 2, 2, KEEP | FIXED, 32), Ok(32));
        assert_eq!(layout(process), [(8, 10), (10, 12), (30, 36)]);
    });
}

#[test]
fn c42_every_kind_of_entry_moves() {
    // C-42: moves an anonymous page, a page of a file, the zero page, a guard, and a page without rights.
    everywhere(|world, process, cpu| {
        anon(process, BASE, 4);
        process.store(cpu, BASE, 1u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(0));
        process.madvise(BASE + 2 * PAGE, PAGE, Advice::GuardInstall).unwrap();
        process.store(cpu, BASE + 3 * PAGE, 4u64).unwrap();
        assert_eq!(remap(process, 0, 4, 4, FIXED, 510), Ok(510));
        let at = BASE + 510 * PAGE;
        assert_eq!(process.load::<u64>(cpu, at), Ok(1));
        assert_eq!(process.load::<u64>(cpu, at + PAGE), Ok(0));
        assert!(unmapped(process, cpu, at + 2 * PAGE));
        process.mprotect(at + 3 * PAGE, PAGE, Prot::empty()).unwrap();
        assert_eq!(remap(process, 513, 1, 1, FIXED, 600), Ok(600));
        process.mprotect(BASE + 600 * PAGE, PAGE, RW).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + 600 * PAGE), Ok(4));
        let file = world.file(4);
        process.mmap(BASE, 4 * PAGE, RW, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(Disk::number(1)));
        process.store(cpu, BASE, 9u64).unwrap();
        assert_eq!(remap(process, 0, 4, 4, FIXED, 700), Ok(700));
        assert_eq!(process.load::<u64>(cpu, BASE + 700 * PAGE), Ok(9));
        assert_eq!(process.load::<u64>(cpu, BASE + 701 * PAGE), Ok(Disk::number(1)));
    });
}

#[test]
fn truncation_finds_moved_pages() {
    everywhere(|world, process, cpu| {
        let file = world.file(16);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // The target merges with the first mapping, which precedes the source in the tree of the file.
        process.mmap(BASE, 4 * PAGE, RW, flags, Some(&file), 0).unwrap();
        process.mmap(BASE + 100 * PAGE, 4 * PAGE, RW, flags, Some(&file), 4 * PAGE).unwrap();
        fill(process, cpu, BASE + 100 * PAGE, 4, 50);
        assert_eq!(remap(process, 100, 4, 4, FIXED, 4), Ok(4));
        assert_eq!(layout(process), [(0, 8)]);
        assert_filled(process, cpu, BASE + 4 * PAGE, 4, 50);
        file.mapping().check();
        file.mapping().truncate(6 * PAGE).unwrap();
        assert_filled(process, cpu, BASE + 4 * PAGE, 2, 50);
        let addr = BASE + 6 * PAGE;
        assert_eq!(process.load::<u64>(cpu, addr), Err(FaultError::Bus { addr }));
    });
}

/// Moves 1,024 pages from page `first` to page `to` while an allocation fails at `point`.
fn move_without_memory(first: u64, to: u64, point: &Point) {
    let written = [0, 5, 300, 511, 512, 699, 1024];
    let world = World::new();
    let process = world.process(Locking::default());
    let mut cpu = world.machine.cpu(0);
    anon(&process, BASE, first + 1024);
    for page in written.into_iter().filter(|&page| page < first + 1024) {
        process.store(&mut cpu, BASE + page * PAGE, page + 1).unwrap();
    }
    let moved = point.fail(|| remap(&process, first, 1024, 1024, FIXED, to));
    process.check();
    if let Err(error) = moved {
        assert_eq!(error, Errno::ENOMEM);
        assert!(point.reached() && unmapped(&process, &mut cpu, BASE + to * PAGE));
    }
    for page in written.into_iter().filter(|page| (first..first + 1024).contains(page)) {
        let at = if moved.is_ok() { BASE + (to - first) * PAGE } else { BASE };
        assert_eq!(process.load::<u64>(&mut cpu, at + page * PAGE), Ok(page + 1), "{point}");
    }
    drop((process, cpu));
    world.end();
}

#[test]
fn c47_failed_move_changes_nothing() {
    // C-47: each allocation fails once, for moves of entries and of whole page tables.
    for (first, to) in [(1, 5000), (0, 512 * 512 * 2)] {
        let points = at_every_allocation(&[Failure::Memory, Failure::Heap], |point| {
            move_without_memory(first, to, point);
        });
        assert!(points > 0, "no failure was injected");
    }
}

#[test]
fn c39_c40_moved_pages_are_never_used_after_free() {
    // C-39, C-40: one thread moves shared pages back and forth, another thread punches holes into the file,
    // and a third thread stores wherever it can. The oracles of the machine detect every use of a free frame.
    for locking in [Locking::default(), Locking::ALL[0], Locking::ALL[6]] {
        let world = World::new();
        let process = world.process(locking);
        let file = world.file(8);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        process.mmap(BASE, 4 * PAGE, RW, flags, Some(&file), 0).unwrap();
        process.mmap(BASE + 100 * PAGE, 4 * PAGE, RW, flags, Some(&file), 4 * PAGE).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let cpu = world.machine.cpu(0);
                for _ in 0..300 {
                    cpu.call(|| {
                        remap(&process, 100, 4, 4, FIXED, 4).unwrap();
                        remap(&process, 4, 4, 4, FIXED, 100).unwrap();
                    });
                }
            });
            scope.spawn(|| {
                for round in 0..300 {
                    file.mapping().punch(round % 8 * PAGE..8 * PAGE).unwrap();
                }
            });
            scope.spawn(|| {
                let mut cpu = world.machine.cpu(1);
                for round in 0..3000u64 {
                    let place = if round % 2 == 0 { 4 } else { 100 };
                    // The store may fault, because the page may not be mapped here at the moment.
                    let _ = process.store(&mut cpu, BASE + (place + round % 4) * PAGE, round);
                }
            });
        });
        process.check();
        file.mapping().check();
        drop((process, file));
        world.end();
    }
}
