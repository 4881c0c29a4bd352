//! System V shared memory (`src/call/shm.rs`, `src/file/kinds/segment.rs`): placement of attaches, effects of
//! detaches, and the end of a removed segment.
//!
//! An *attach* is the set of VMAs that one shmat has created; mprotect or munmap can cut it into parts. A
//! removed segment is destroyed when its last attach ends, and no later call may attach the segment (C-71).
//! The tests compare the number of attaches, the VMAs and the errors. Most tests run on every design.
//! `lab/freehold-machine/tests/shuttle_engine/segments.rs` explores concurrent attaches. Segments of huge
//! pages are tested in `hugetlb/calls.rs`.

use crate::support::{
    BASE, Counted, Locking, Machine, PAGE, Process, R, RW, USER_END, Vcpu, World, anon, everywhere,
    failure::{Failure, at_every_allocation},
    layout,
};
use freehold::{
    PageIndex,
    call::{LockAllFlags, RemapFlags, ShmFlags},
    error::{Errno, MprotectError, RemapFilePagesError, ShmatError, ShmdtError},
    fault::FaultError,
    file::Segment,
    space::{MapFlags, Prot},
};
use std::thread;

const PAGES: u64 = 8;
const NONE: ShmFlags = ShmFlags::empty();

fn segment(world: &World) -> Counted<Segment<Machine>> {
    // The last page is partial.
    Segment::new(world.engine(), 0xabcd, PAGES * PAGE - 8).unwrap()
}

fn with_segment(scenario: impl Fn(&World, &Process, &mut Vcpu, &Counted<Segment<Machine>>)) {
    everywhere(|world, process, cpu| scenario(world, process, cpu, &segment(world)));
}

#[test]
fn segments_are_attached_at_the_given_address() {
    with_segment(|_, process, cpu, segment| {
        let at = process.shmat(segment, 0, NONE).unwrap();
        assert_eq!(process.shmat(segment, BASE, NONE), Ok(BASE));
        // Two attaches of one segment never merge, even if they are adjacent.
        assert_eq!(process.shmat(segment, BASE + PAGES * PAGE, NONE), Ok(BASE + PAGES * PAGE));
        assert_eq!((segment.attached(), process.counts().map_count), (3, 3));
        process.store(cpu, at + PAGE, 5u64).unwrap();
        assert_eq!(process.load(cpu, BASE + PAGE), Ok(5u64));
        assert_eq!(process.rss().shmem, 2);
        let mut text = String::new();
        process.write_maps(&mut text).unwrap();
        let line = text.lines().find(|line| line.starts_with("1000000000-1000008000")).unwrap();
        assert!(line.contains("rw-s") && line.ends_with("/SYSV0000abcd"), "{line}");
    });
}

#[test]
fn shmat_checks_its_arguments() {
    with_segment(|_, process, _, segment| {
        let shmat = |addr, flags| process.shmat(segment, addr, flags);
        let (rnd, remap) = (ShmFlags::RND, ShmFlags::REMAP);
        assert_eq!(shmat(BASE + 5, NONE), Err(ShmatError::Invalid), "unaligned");
        assert_eq!(shmat(BASE + 5, rnd), Ok(BASE), "rounded down");
        assert_eq!(shmat(0, remap), Err(ShmatError::Invalid), "SHM_REMAP without an address");
        assert_eq!(shmat(5, remap | rnd), Err(ShmatError::Invalid), "SHM_REMAP at address 0");
        assert_eq!(shmat(5, rnd), Err(ShmatError::NotPermitted), "0 is below the lowest address");
        assert_eq!(shmat(BASE + 7 * PAGE, NONE), Err(ShmatError::Invalid), "occupied");
        assert_eq!(shmat(u64::MAX - 2 * PAGE + 1, NONE), Err(ShmatError::Invalid), "a range that wraps");
        assert_eq!(shmat(USER_END, NONE), Err(ShmatError::NoSpace), "beyond user space");
        assert_eq!(segment.attached(), 1, "a failed attach does not count");
        assert_eq!(shmat(BASE + 7 * PAGE, remap), Ok(BASE + 7 * PAGE));
        assert_eq!(layout(process), [(0, 7), (7, 15)]);
        assert_eq!(segment.attached(), 2);
        assert_eq!(ShmatError::Removed.errno(), Errno::EIDRM);
    });
}

#[test]
fn read_only_attach_never_becomes_writable() {
    with_segment(|_, process, cpu, segment| {
        let at = process.shmat(segment, 0, ShmFlags::RDONLY | ShmFlags::EXEC).unwrap();
        assert_eq!(process.load(cpu, at), Ok(0u64));
        assert!(matches!(process.store(cpu, at, 1u64), Err(FaultError::Segv { .. })));
        assert_eq!(process.mprotect(at, PAGE, RW), Err(MprotectError::AccessDenied));
        let line = process.maps(at).next().unwrap();
        assert!(line.to_string().contains("r-xs"), "{line}");
    });
}

#[test]
fn attach_count_follows_fragments_forks_and_moves() {
    with_segment(|_, process, _, segment| {
        let at = process.shmat(segment, BASE, NONE).unwrap();
        process.mprotect(at + 2 * PAGE, PAGE, R).unwrap();
        // A border between two parts of an attach may move.
        process.mprotect(at + 3 * PAGE, PAGE, R).unwrap();
        assert_eq!(layout(process), [(0, 2), (2, 4), (4, 8)]);
        // The three parts do not merge when their rights become equal, because a merge would end an attach.
        process.mprotect(at + 2 * PAGE, 2 * PAGE, RW).unwrap();
        assert_eq!(segment.attached(), 3);
        assert_eq!(layout(process), [(0, 2), (2, 4), (4, 8)]);
        let child = process.fork().unwrap();
        assert_eq!(segment.attached(), 6);
        process.munmap(at + PAGE, 2 * PAGE).unwrap();
        assert_eq!(segment.attached(), 6, "trimming a part ends no attach");
        drop(child);
        assert_eq!(segment.attached(), 3);
        // mremap with an old length of zero makes another mapping of the segment.
        let copy = process.mremap(at + 4 * PAGE, 0, PAGE, RemapFlags::MAYMOVE, 0).unwrap();
        assert_eq!(segment.attached(), 4);
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        process.mremap(copy, PAGE, PAGE, flags, BASE + 100 * PAGE).unwrap();
        assert_eq!(segment.attached(), 4);
        process.shmdt(at).unwrap();
        assert_eq!(
            (segment.attached(), layout(process)),
            (1, vec![(100, 101)]),
            "the copy at another address stays"
        );
    });
}

#[test]
fn shmdt_removes_the_remaining_parts_of_one_attach() {
    with_segment(|world, process, _, segment| {
        let shmdt = |addr| process.shmdt(addr);
        assert_eq!(shmdt(BASE), Err(ShmdtError::Invalid), "nothing is attached");
        process.shmat(segment, BASE, NONE).unwrap();
        assert_eq!(shmdt(BASE + 5), Err(ShmdtError::Invalid), "unaligned");
        assert_eq!(shmdt(BASE + PAGE), Err(ShmdtError::Invalid), "no attach begins there");
        // The attach has holes, and one hole contains other memory. Another attach of the same segment
        // follows at a different offset, and another segment is after a hole.
        process.munmap(BASE, PAGE).unwrap();
        process.munmap(BASE + 2 * PAGE, 3 * PAGE).unwrap();
        anon(process, BASE + 2 * PAGE, 1);
        process.shmat(segment, BASE + 8 * PAGE, NONE).unwrap();
        process.munmap(BASE + 10 * PAGE, 6 * PAGE).unwrap();
        let other = Segment::new(world.engine(), 1, PAGE).unwrap();
        process.shmat(&other, BASE + 3 * PAGE, NONE).unwrap();
        assert_eq!(layout(process), [(1, 2), (2, 3), (3, 4), (5, 8), (8, 10)]);
        // The first page is unmapped. shmdt finds the remaining parts nevertheless.
        assert_eq!(shmdt(BASE), Ok(()));
        assert_eq!(layout(process), [(2, 3), (3, 4), (8, 10)]);
        assert_eq!((segment.attached(), other.attached()), (1, 1));
        assert_eq!(
            shmdt(BASE),
            Err(ShmdtError::Invalid),
            "the other mappings belong to no attach at this address"
        );
        // A sealed part stays mapped, and shmdt reports no error.
        process.mseal(BASE + 8 * PAGE, PAGE, 0).unwrap();
        assert_eq!(shmdt(BASE + 8 * PAGE), Ok(()));
        assert_eq!(layout(process), [(2, 3), (3, 4), (8, 9)]);
    });
}

#[test]
fn c71_segment_is_destroyed_with_its_last_attach() {
    with_segment(|world, process, cpu, segment| {
        let at = process.shmat(segment, BASE, NONE).unwrap();
        for page in 0..PAGES {
            process.store(cpu, at + page * PAGE, 1u64).unwrap();
        }
        segment.remove();
        assert!(segment.is_removed() && !segment.is_destroyed());
        segment.remove();
        // A marked segment can be attached by its identifier as long as any process has it attached.
        let again = process.shmat(segment, 0, NONE).unwrap();
        process.shmdt(again).unwrap();
        let child = process.fork().unwrap();
        process.shmdt(at).unwrap();
        assert_eq!((segment.attached(), child.rss().shmem), (1, 0));
        assert_eq!(segment.mapping().size(), PAGES * PAGE - 8);
        assert!((0..PAGES).all(|page| segment.mapping().has_page(PageIndex::new(page))));
        let child = Process::of(child);
        // munmap cuts the attach into parts. The attach ends when the last part is unmapped.
        child.munmap(at + PAGE, PAGE).unwrap();
        child.munmap(at, PAGE).unwrap();
        assert_eq!((segment.attached(), child.load(cpu, at + 2 * PAGE)), (1, Ok(1u64)));
        child.munmap(at, PAGES * PAGE).unwrap();
        assert!(segment.is_destroyed());
        assert_eq!(segment.mapping().size(), 0, "the memory of the destroyed segment was not freed");
        assert_eq!(process.shmat(segment, 0, NONE), Err(ShmatError::Removed));
        let never = Segment::new(world.engine(), 2, PAGE).unwrap();
        never.remove();
        assert!(never.is_destroyed(), "a segment without attaches");
    });
}

/// C-71: every allocation of an attach fails once, while the segment is marked for removal. The failed call
/// then ends the last attach.
#[test]
fn c71_failed_attach_destroys_a_marked_segment() {
    let mut failures = 0;
    at_every_allocation(&[Failure::Heap], |point| {
        let world = World::new();
        let process = world.process(Locking::default());
        let (first, marked) = (segment(&world), segment(&world));
        // The address space has an adjacent mapping, and another attach keeps the marked segment until the
        // call has begun.
        process.shmat(&first, BASE, NONE).unwrap();
        let there = process.shmat(&marked, BASE + 100 * PAGE, NONE).unwrap();
        let attached = point.fail(|| process.shmat(&marked, BASE + 8 * PAGE, NONE));
        marked.remove();
        process.check();
        assert_eq!(marked.attached(), 1 + u64::from(attached.is_ok()));
        process.shmdt(there).unwrap();
        assert_eq!(marked.is_destroyed(), attached.is_err());
        if let Ok(at) = attached {
            process.shmdt(at).unwrap();
        } else {
            assert_eq!(attached, Err(ShmatError::OutOfMemory));
            failures += 1;
        }
        assert!(marked.is_destroyed());
        drop((process, first, marked));
        world.end();
    });
    assert!(failures > 1, "{failures} failures");
}

#[test]
fn shmat_applies_limits_and_locks_like_mmap() {
    with_segment(|_, process, _, segment| {
        process.mlockall(LockAllFlags::FUTURE).unwrap();
        let at = process.shmat(segment, 0, NONE).unwrap();
        assert_eq!((process.counts().locked_vm, process.rss().shmem), (PAGES, PAGES as i64));
        process.shmdt(at).unwrap();
        assert_eq!(process.counts().locked_vm, 0);
        process.munlockall().unwrap();
        process.limits().set(&process.limits().get().address_space(2 * PAGE));
        assert_eq!(process.shmat(segment, 0, NONE), Err(ShmatError::Limit));
        assert_eq!(segment.attached(), 0);
    });
}

/// C-71: attaches, detaches and forks run concurrently with the removal. The last detach destroys the segment
/// once, and a later attach is refused.
#[test]
fn c71_concurrent_removal_destroys_the_segment_once() {
    for locking in Locking::ALL {
        for _ in 0..20 {
            let world = World::new();
            let process = world.process(locking);
            let segment = segment(&world);
            process.shmat(&segment, BASE, NONE).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| segment.remove());
                scope.spawn(|| drop(process.fork().unwrap()));
                scope.spawn(|| match process.shmat(&segment, 0, NONE) {
                    Ok(at) => {
                        let mut cpu = world.machine.cpu(0);
                        process.store(&mut cpu, at, 1u64).unwrap();
                        process.shmdt(at).unwrap();
                    }
                    Err(error) => assert_eq!(error, ShmatError::Removed),
                });
                scope.spawn(|| process.shmdt(BASE).unwrap());
            });
            assert!(segment.is_destroyed());
            assert!(!segment.mapping().has_page(PageIndex::new(0)));
            process.check();
            drop((process, segment));
            world.end();
        }
    }
}

/// mremap moves several VMAs in one call, but not if one of them is a part of a segment.
#[test]
fn mremap_moves_parts_of_a_segment_one_at_a_time() {
    with_segment(|_, process, _, segment| {
        process.shmat(segment, BASE, NONE).unwrap();
        process.mprotect(BASE, 3 * PAGE, R).unwrap();
        let to = BASE + 100 * PAGE;
        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        for flags in [fixed, fixed | RemapFlags::DONTUNMAP] {
            let moved = process.mremap(BASE, 4 * PAGE, 4 * PAGE, flags, to);
            assert_eq!(moved.map_err(|error| error.errno()), Err(Errno::EFAULT));
        }
        assert_eq!(layout(process), [(0, 3), (3, 8)]);
        // A range with a hole after the part is refused, too.
        let beyond = process.mremap(BASE + 3 * PAGE, 6 * PAGE, 6 * PAGE, fixed, to);
        assert_eq!(beyond.map_err(|error| error.errno()), Err(Errno::EFAULT));
        assert_eq!(process.mremap(BASE, 3 * PAGE, 3 * PAGE, fixed, to), Ok(to));
    });
}

/// remap_file_pages unmaps the range before it maps the range again. If a removed segment has no other
/// attach, the segment is destroyed in between.
#[test]
fn c71_remap_file_pages_cannot_revive_a_removed_segment() {
    with_segment(|_, process, cpu, segment| {
        let remap =
            |at, pages| process.remap_file_pages(at, pages * PAGE, Prot::empty(), 1, MapFlags::NONBLOCK);
        process.shmat(segment, BASE, NONE).unwrap();
        process.store(cpu, BASE, 1u64).unwrap();
        // The two calls of mprotect cut the attach into two parts. Parts of an attach do not merge, even with
        // equal rights.
        process.mprotect(BASE, PAGE, R).unwrap();
        process.mprotect(BASE, PAGE, RW).unwrap();
        assert_eq!(remap(BASE, PAGES), Ok(()), "not removed");
        process.mprotect(BASE, PAGE, R).unwrap();
        process.mprotect(BASE, PAGE, RW).unwrap();
        segment.remove();
        assert_eq!(remap(BASE, 1), Ok(()), "the other part stays");
        let other = process.shmat(segment, BASE + 100 * PAGE, NONE).unwrap();
        assert_eq!(remap(BASE, PAGES), Ok(()), "attached elsewhere");
        process.shmdt(other).unwrap();
        let child = process.fork().unwrap();
        assert_eq!(remap(BASE, PAGES), Ok(()), "attached in a child");
        drop(child);
        process.mprotect(BASE, PAGE, R).unwrap();
        process.mprotect(BASE, PAGE, RW).unwrap();
        // A call that fails for another reason changes nothing.
        assert_eq!(remap(BASE, PAGES + 1), Err(RemapFilePagesError::Invalid), "a hole after it");
        assert_eq!((segment.attached(), segment.is_destroyed()), (2, false));
        assert_eq!(remap(BASE, PAGES), Err(RemapFilePagesError::Invalid));
        assert!(segment.is_destroyed() && !segment.mapping().has_page(PageIndex::new(0)));
        assert_eq!((layout(process), segment.attached(), process.rss().shmem), (vec![], 0, 0));
        assert_eq!(process.shmdt(BASE), Err(ShmdtError::Invalid));
        assert_eq!(process.shmat(segment, 0, NONE), Err(ShmatError::Removed));
        assert_eq!(process.counts().map_count, 0);
    });
}

/// C-71: a sealed part keeps the whole attach.
#[test]
fn c71_sealed_attach_keeps_a_removed_segment() {
    with_segment(|_, process, _, segment| {
        process.shmat(segment, BASE, NONE).unwrap();
        process.mlock(BASE, PAGES * PAGE).unwrap();
        segment.remove();
        let remap = || process.remap_file_pages(BASE, PAGES * PAGE, Prot::empty(), 0, MapFlags::empty());
        let child = process.fork().unwrap();
        let sealed = Process::of(child);
        sealed.mseal(BASE, PAGES * PAGE, 0).unwrap();
        assert_eq!(remap(), Ok(()));
        process.shmdt(BASE).unwrap();
        assert_eq!(process.counts().locked_vm, 0);
        let again = sealed.remap_file_pages(BASE, PAGES * PAGE, Prot::empty(), 0, MapFlags::empty());
        assert_eq!(again, Err(RemapFilePagesError::NotPermitted));
        assert_eq!((layout(&sealed), segment.attached()), (vec![(0, PAGES)], 1));
    });
}

/// C-71: an attach by another process runs concurrently with remap_file_pages. Either the attach keeps the
/// segment for the remap, or both calls are refused.
#[test]
fn c71_attach_concurrent_with_the_last_detach_is_consistent() {
    for locking in Locking::ALL {
        for _ in 0..50 {
            let world = World::new();
            let (process, other) = (world.process(locking), world.process(locking));
            let segment = segment(&world);
            process.shmat(&segment, BASE, NONE).unwrap();
            segment.remove();
            thread::scope(|scope| {
                let remapped = scope.spawn(|| {
                    process.remap_file_pages(BASE, PAGES * PAGE, Prot::empty(), 0, MapFlags::NONBLOCK)
                });
                let attached = other.shmat(&segment, BASE, NONE);
                let remapped = remapped.join().unwrap();
                assert_eq!(remapped.is_ok(), attached.is_ok(), "{remapped:?}, {attached:?}");
            });
            process.check();
            drop((process, other));
            assert!(segment.is_destroyed());
            drop(segment);
            world.end();
        }
    }
}
