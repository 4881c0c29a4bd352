//! Range writers (`src/space/claim.rs`, `src/space/range_writer.rs`; `docs/guide/ranges.md`): the changes
//! that take no mmap lock, the claims that a change waits for, and the limits that range writers enforce
//! exactly.
//!
//! In most tests one range writer is stopped while it holds its claim: the writer has to wait for a reader of
//! the VMA that it will change. A second call on a thread with a pending fatal signal (`unwaiting`) then
//! returns `Killed` if it would have to wait. `is_claimed` tells whether a VMA is claimed. Every test runs
//! with wide and with narrow nodes of the VMA tree. `lab/freehold-machine/tests/shuttle_engine/ranges.rs`
//! explores the interleavings. A call that becomes a range writer needs a test here that shows for which
//! claims the call waits.

use crate::support::*;
use freehold::{
    call::{Advice, LockAllFlags, RemapFlags},
    engine::Overcommit,
    error::{BrkError, MmapError, MremapError},
    fault::{FaultError, SegvCode},
    space::{Limits, Mdwe, Write},
};
use freehold_machine::Task;
use std::thread;

const RANGE_WRITERS: Locking = DEFAULT.write(Write::RangesOnly);
const DEFAULT: Locking = Locking::ALL[Locking::ALL.len() - 1];
const STACK: MapFlags = ANON.union(MapFlags::GROWSDOWN).union(MapFlags::FIXED);
const NEW: MapFlags = ANON.union(MapFlags::FIXED_NOREPLACE);
const AT: u64 = BASE + (1 << 30);

/// Returns the guard gap below a stack, in bytes.
fn gap() -> u64 {
    Config::default().stack_gap
}

/// Returns the fault of an access where nothing is mapped.
fn hole(addr: u64) -> FaultError {
    FaultError::Segv { addr, code: SegvCode::Maperr }
}

/// Runs `scenario` in a process whose changes are made by range writers.
fn with_range_writers(scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    with_range_writers_in(Placement::PerCpu, scenario);
}

/// Runs `scenario` like [`with_range_writers`], with mappings placed by `placement`. The first run has wide
/// nodes, so that neighbours are in one leaf of the VMA tree. The second run has narrow nodes, so that most
/// neighbours are in different leaves.
fn with_range_writers_in(placement: Placement, scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    for vma_nodes in [NodeWidth::Wide, NodeWidth::Narrow] {
        let world = World::with(16 << 20, Config::new().vma_nodes(vma_nodes));
        let locking = RANGE_WRITERS;
        let config = SpaceConfig::new().locking(locking).placement(placement).lock_stats(true);
        let process = Process::new(world.engine(), &config).unwrap();
        // The first change opens the gate for range writers.
        anon(&process, BASE, 1);
        let mut cpu = world.machine.cpu(0);
        scenario(&world, &process, &mut cpu);
        process.check();
        drop((process, cpu));
        world.end();
    }
}

/// Makes a call on a thread that has a fatal signal pending. The call returns `Killed` where it would have to
/// wait.
fn unwaiting<R: Send>(call: impl FnOnce() -> R + Send) -> R {
    let thread = || {
        Task::current().kill();
        call()
    };
    thread::scope(|scope| scope.spawn(thread).join().unwrap())
}

/// Returns true if the VMA at `addr`, which must be readable and writable, is claimed.
fn is_claimed(process: &Process, addr: u64) -> bool {
    unwaiting(|| process.mprotect(addr, PAGE, RW)).is_err()
}

/// A munmap of two VMAs finds a reader in the second VMA. By then the munmap has write-locked the first VMA
/// without a claim, and must unlock that VMA, which assertions of the engine check. In the first case the
/// VMAs touch. In the second case they have a hole between them and cannot be claimed.
#[test]
fn munmap_that_finds_a_reader_locks_no_vma_without_a_claim() {
    with_range_writers(|_, process, _| {
        for last in [AT + PAGE, AT + 4 * PAGE] {
            anon(process, AT, 1);
            process.mmap(last, PAGE, R, ANON | MapFlags::FIXED, None, 0).unwrap();
            let reader = process.find_vma(last).unwrap();
            thread::scope(|scope| {
                let munmap = scope.spawn(|| process.munmap(AT, last + PAGE - AT));
                until(|| is_claimed(process, AT) || munmap.is_finished());
                drop(reader);
                munmap.join().unwrap().unwrap();
            });
        }
    });
}

/// mprotect of memory that was never touched changes the VMAs with a leaf of the tree latched. The call needs
/// a claim if it may wait, flush or allocate: if a page is mapped, if a VMA has an anon_vma or a reader, or if
/// this CPU has no free VMAs. Assertions of the machine and of the lock order check this.
#[test]
fn mprotect_with_a_latched_leaf_neither_waits_nor_flushes_nor_allocates() {
    with_range_writers(|_, process, cpu| {
        let protect = |prot| process.mprotect(AT + 2 * PAGE, PAGE, prot).unwrap();
        let protect_and_back = || {
            protect(R);
            protect(RW);
            assert_eq!(process.counts().map_count, 2);
        };
        anon(process, AT, 5);
        protect_and_back();
        // Each call needs two VMAs, and so uses up the free VMAs of this CPU several times.
        let many = AT + 64 * PAGE;
        anon(process, many, 401);
        for number in (1..400).step_by(2) {
            process.mprotect(many + number * PAGE, PAGE, R).unwrap();
        }
        process.munmap(many, 401 * PAGE).unwrap();
        // Maps the page of zeroes, without an anon_vma.
        assert_eq!(process.load(cpu, AT + 2 * PAGE), Ok(0u64));
        protect(Prot::empty());
        let error = process.load::<u64>(cpu, AT + 2 * PAGE);
        assert_eq!(error, Err(FaultError::Segv { addr: AT + 2 * PAGE, code: SegvCode::Accerr }));
        protect_and_back();
        let reader = process.find_vma(AT).unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(protect_and_back);
            until(|| is_claimed(process, AT) || writer.is_finished());
            drop(reader);
            writer.join().unwrap();
        });
        process.store(cpu, AT + 2 * PAGE, 1u64).unwrap();
        protect_and_back();
        // Frees the page. The VMA keeps its anon_vma.
        process.madvise(AT, 5 * PAGE, Advice::DontNeed).unwrap();
        protect_and_back();
        process.munmap(AT, 5 * PAGE).unwrap();
    });
}

/// mmap at an end of a VMA that was never touched, and munmap of the new pages, change the bounds of the VMA
/// with a leaf of the tree latched. Both calls need a claim if they may wait: if a page is mapped in the
/// range, or if the VMA has a reader or an anon_vma.
#[test]
fn bounds_that_change_with_a_latched_leaf_neither_wait_nor_leave_pages() {
    with_range_writers(|_, process, cpu| {
        let (low, high, end) = (AT - 2 * PAGE, AT + 4 * PAGE, AT + 6 * PAGE);
        let bounds = || {
            let range = process.vma_info(AT).unwrap().range;
            (range.start(), range.end())
        };
        let shrink = || {
            for at in [low, high] {
                process.munmap(at, 2 * PAGE).unwrap();
            }
            assert_eq!(bounds(), (AT, high));
        };
        let grow = || {
            for at in [low, high] {
                anon(process, at, 2);
            }
            assert_eq!(bounds(), (low, end));
        };
        // These mappings keep the page tables. The leaf of the tree does not end with the VMA.
        for at in [AT - 16 * PAGE, AT + 16 * PAGE] {
            anon(process, at, 1);
            process.store(cpu, at, 1u64).unwrap();
        }
        anon(process, AT, 4);
        grow();
        shrink();
        // munmap of a hole and an end, and of an end at a time.
        grow();
        process.munmap(high + PAGE, 3 * PAGE).unwrap();
        process.munmap(low - PAGE, 2 * PAGE).unwrap();
        assert_eq!(bounds(), (low + PAGE, high + PAGE));
        shrink();
        // Maps the page of zeroes, without an anon_vma.
        grow();
        for at in [low, high, AT] {
            assert_eq!(process.load(cpu, at), Ok(0u64));
        }
        shrink();
        for at in [low, high] {
            assert_eq!(process.load::<u64>(cpu, at), Err(hole(at)));
        }
        assert_eq!(process.load(cpu, AT), Ok(0u64));
        let reader = process.find_vma(AT).unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(grow);
            until(|| is_claimed(process, AT) || writer.is_finished());
            drop(reader);
            writer.join().unwrap();
        });
        process.store(cpu, AT, 1u64).unwrap();
        shrink();
        grow();
        assert_eq!(process.load(cpu, AT), Ok(1u64));
        process.munmap(AT - 16 * PAGE, 40 * PAGE).unwrap();
    });
}

/// A fixed range that must not replace mappings begins with a hole and ends with a mapping. The call reports
/// that the range is occupied, although a later check would fail too.
#[test]
fn fixed_range_that_begins_with_a_hole_is_occupied() {
    with_range_writers(|_, process, _| {
        anon(process, AT + PAGE, 1);
        process.set_mdwe(Mdwe::REFUSE_EXEC_GAIN).unwrap();
        let writable = RW | Prot::EXEC;
        let map = |pages| process.mmap(AT, pages * PAGE, writable, NEW, None, 0);
        assert_eq!((map(2), map(1)), (Err(MmapError::Occupied), Err(MmapError::AccessDenied)));
    });
}

/// A VMA without pages is removed without a claim, and leaves the trees of the reverse map.
#[test]
fn unmapped_vma_without_pages_leaves_the_reverse_map() {
    with_range_writers(|world, process, cpu| {
        // This mapping stays, so the page tables and the leaf of the tree of VMAs stay too.
        anon(process, AT + 8 * PAGE, 1);
        anon(process, AT, 1);
        for at in [AT, AT + 8 * PAGE] {
            process.store(cpu, at, 1u64).unwrap();
        }
        process.madvise(AT, PAGE, Advice::DontNeed).unwrap();
        process.munmap(AT, PAGE).unwrap();
        let file = world.file(1);
        process.mmap(AT, PAGE, R, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        process.munmap(AT, PAGE).unwrap();
        // Visits the VMAs of the file.
        file.mapping().truncate(0).unwrap();
        let frame = process.frame_at(AT + 8 * PAGE).unwrap();
        world.engine().migrate(frame).unwrap();
    });
}

/// mremap in place, stack growth and faults at unmapped addresses do not take the mmap lock.
#[test]
fn mremap_in_place_and_stack_growth_take_no_mmap_lock() {
    with_range_writers(|_, process, cpu| {
        let holds = || {
            let stats = process.lock_stats().unwrap();
            (stats.read.held.count(), stats.write.held.count())
        };
        let heap = process.brk(0).unwrap();
        anon(process, AT, 4);
        process.mmap(AT + 8 * PAGE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        let stack = AT + 4 * gap();
        process.mmap(stack, PAGE, RW, STACK, None, 0).unwrap();
        process.store(cpu, stack, 1u64).unwrap();
        let before = holds();
        for to in [0, heap + 1, heap + 2, heap + 4 * PAGE, heap + 9 * PAGE, heap + 2 * PAGE, heap] {
            assert_eq!(process.brk(to), Ok(to.max(heap)));
            assert_eq!(holds(), before, "brk({to:#x})");
        }
        let remap = |old, new| process.mremap(AT, old * PAGE, new * PAGE, RemapFlags::empty(), 0);
        for (old, new) in [(4, 3), (3, 3), (3, 6), (6, 8), (9, 5)] {
            assert_eq!(remap(old, new), Ok(AT));
            assert_eq!(holds(), before, "mremap from {old} to {new} pages");
        }
        // The grown VMA has merged with the VMA after it.
        let range = process.vma_info(AT).unwrap().range;
        assert_eq!((range.start(), range.end()), (AT, AT + 5 * PAGE));
        let before = holds();
        for addr in [stack - PAGE, stack - gap(), stack - 2 * gap()] {
            process.store(cpu, addr, 2u64).unwrap();
            assert_eq!(holds(), before, "stack growth to {addr:#x}");
        }
        for addr in [BASE + 5 * PAGE, AT - PAGE, TASK_SIZE - PAGE] {
            assert_eq!(process.load::<u64>(cpu, addr), Err(hole(addr)));
            assert_eq!(holds(), before, "fault at unmapped {addr:#x}");
        }
    });
}

/// brk waits while another brk moves the break, whatever address each of the two requests. Other changes do
/// not wait.
#[test]
fn brk_waits_for_another_brk() {
    with_range_writers(|_, process, _| {
        let heap = process.brk(0).unwrap();
        process.brk(heap + PAGE).unwrap();
        let reader = process.find_vma(heap).unwrap();
        thread::scope(|scope| {
            let grown = scope.spawn(|| process.brk(heap + 3 * PAGE));
            until(|| is_claimed(process, heap));
            for to in [0, heap, heap + PAGE - 8, heap + PAGE, heap + 2 * PAGE, heap + 4 * PAGE] {
                assert_eq!(
                    unwaiting(|| process.brk(to)),
                    Err(BrkError::Killed),
                    "{:#x}",
                    to.wrapping_sub(heap)
                );
            }
            // The range that the break grows into is claimed. Addresses above the page that the break keeps
            // free are not claimed.
            let map = |at| unwaiting(|| process.mmap(at, PAGE, RW, NEW, None, 0));
            for page in 1..3 {
                assert_eq!(map(heap + page * PAGE), Err(MmapError::Killed));
            }
            assert_eq!(map(heap + 4 * PAGE), Ok(heap + 4 * PAGE));
            drop(reader);
            assert_eq!(grown.join().unwrap(), Ok(heap + 3 * PAGE));
        });
        assert_eq!(process.brk(heap + 3 * PAGE + 1), Ok(heap + 3 * PAGE), "one page stays free");
        assert_eq!(process.brk(heap), Ok(heap));
        assert_eq!(process.brk(heap + 4 * PAGE), Ok(heap));
    });
}

/// The reported break agrees with the mapped heap, also after a brk was killed.
#[test]
fn killed_brk_leaves_the_break_consistent() {
    with_range_writers(|_, process, _| {
        let heap = process.brk(0).unwrap();
        process.brk(heap + 4 * PAGE).unwrap();
        let reader = process.find_vma(heap).unwrap();
        thread::scope(|scope| {
            let other = scope.spawn(|| process.mprotect(heap, PAGE, R));
            until(|| unwaiting(|| process.mprotect(heap, PAGE, RW)).is_err());
            for to in [heap, heap + 8 * PAGE] {
                assert_eq!(killed(|| process.brk(to)), Err(BrkError::Killed));
            }
            // This call moves no page, so it does not wait for another brk.
            assert_eq!(unwaiting(|| process.brk(0)), Ok(heap + 4 * PAGE));
            drop(reader);
            assert_eq!(other.join().unwrap(), Ok(()));
        });
        assert_eq!(process.brk(heap + 8 * PAGE), Ok(heap + 8 * PAGE));
    });
}

/// A mapping that is placed while a stack grows keeps the stack gap below the new start of the stack.
#[test]
fn mmap_keeps_the_gap_below_a_growing_stack() {
    with_range_writers(|world, process, cpu| {
        let stack = AT;
        process.mmap(stack, PAGE, RW, STACK, None, 0).unwrap();
        process.store(cpu, stack, 1u64).unwrap();
        let to = stack - 8 * PAGE;
        let reader = process.find_vma(stack).unwrap();
        thread::scope(|scope| {
            let grown = scope.spawn(|| process.store(&mut world.machine.cpu(1), to, 2u64));
            until(|| is_claimed(process, stack));
            let map = |at, flags| unwaiting(|| process.mmap(at, PAGE, RW, flags, None, 0));
            // The first hint was free before the stack began to grow.
            for hint in [stack - gap() - PAGE, to - gap() + PAGE, to - 2 * PAGE] {
                let at = map(hint, ANON).unwrap();
                assert!(at + PAGE <= to - gap() || at > stack, "{at:#x} is in the gap below {to:#x}");
            }
            let below = to - gap() - 2 * PAGE;
            assert_eq!(map(below, ANON), Ok(below));
            assert_eq!(map(to - PAGE, NEW), Err(MmapError::Killed));
            drop(reader);
            assert_eq!(grown.join().unwrap(), Ok(()));
        });
        assert_eq!(process.load(cpu, to), Ok(2u64));
        assert_eq!(process.vma_info(stack).map(|vma| vma.range.start()), Some(to));
        // The mapping below is now too near for the stack to grow further.
        assert_eq!(process.load::<u64>(cpu, to - 2 * PAGE), Err(hole(to - 2 * PAGE)));
    });
}

/// A stack may grow although stacks or inaccessible mappings lie in its gap. Only an exclusive writer can
/// check this, so the growth takes the mmap lock.
#[test]
fn stack_grows_close_to_stacks_and_inaccessible_mappings() {
    let near = [(ANON | MapFlags::GROWSDOWN, RW), (ANON, Prot::empty()), (ANON, R)];
    for (n, (flags, prot)) in near.into_iter().enumerate() {
        with_range_writers(|_, process, cpu| {
            process.mmap(AT, PAGE, RW, STACK, None, 0).unwrap();
            process.mmap(AT - 9 * PAGE, PAGE, prot, flags | MapFlags::FIXED, None, 0).unwrap();
            let to = AT - 8 * PAGE;
            let expected = if n < 2 { Ok(()) } else { Err(hole(to)) };
            assert_eq!(process.store(cpu, to, 1u64), expected);
        });
    }
}

/// A fault that waits for another change of the stack ends with a fatal signal.
#[test]
fn stack_growth_is_killed_while_waiting() {
    with_range_writers(|world, process, cpu| {
        process.mmap(AT, 2 * PAGE, RW, STACK, None, 0).unwrap();
        process.store(cpu, AT, 1u64).unwrap();
        let reader = process.find_vma(AT).unwrap();
        thread::scope(|scope| {
            let other = scope.spawn(|| process.mprotect(AT, PAGE, R));
            until(|| unwaiting(|| process.mprotect(AT, PAGE, RW)).is_err());
            let touch = || process.store(&mut world.machine.cpu(1), AT - PAGE, 1u64);
            assert_eq!(killed(touch), Err(FaultError::Killed));
            drop(reader);
            assert_eq!(other.join().unwrap(), Ok(()));
        });
        assert_eq!(process.vma_info(AT).map(|vma| vma.range.start()), Some(AT));
    });
}

/// mremap in place waits for claims that touch its range, and for no others.
#[test]
fn mremap_in_place_waits_only_for_touching_claims() {
    with_range_writers(|_, process, cpu| {
        for (page, prot) in [(0, RW), (4, R), (8, RW)] {
            process.mmap(AT + page * PAGE, 2 * PAGE, prot, ANON | MapFlags::FIXED, None, 0).unwrap();
        }
        fill(process, cpu, AT, 2, 1);
        let reader = process.find_vma(AT).unwrap();
        let remap =
            |at, old, new| unwaiting(|| process.mremap(at, old * PAGE, new * PAGE, RemapFlags::empty(), 0));
        thread::scope(|scope| {
            let grown = scope.spawn(|| process.mremap(AT, 2 * PAGE, 4 * PAGE, RemapFlags::empty(), 0));
            until(|| is_claimed(process, AT));
            for (old, new) in [(2, 1), (2, 2), (2, 3)] {
                assert_eq!(remap(AT, old, new), Err(MremapError::Killed), "from {old} to {new}");
            }
            // This target touches the range that the other mremap grows into.
            assert_eq!(remap(AT + 4 * PAGE, 2, 3), Err(MremapError::Killed));
            assert_eq!(remap(AT + 8 * PAGE, 2, 1), Ok(AT + 8 * PAGE));
            assert_eq!(remap(AT + 8 * PAGE, 1, 3), Ok(AT + 8 * PAGE));
            drop(reader);
            assert_eq!(grown.join().unwrap(), Ok(AT));
        });
        for (page, pages) in [(0, 4), (4, 2), (8, 3)] {
            let range = process.vma_info(AT + page * PAGE).unwrap().range;
            assert_eq!((range.start() - AT, range.pages().get()), (page * PAGE, pages));
        }
        assert_eq!(remap(AT, 4, 5), Err(MremapError::NoSpace));
        assert_filled(process, cpu, AT, 2, 1);
    });
}

/// mremap that shrinks the middle of a VMA leaves two VMAs, also if a leaf of the VMA tree has no free slot.
#[test]
fn mremap_shrinks_the_middle_of_a_vma() {
    with_range_writers(|_, process, _| {
        let at = |n: u64| AT + 8 * n * PAGE;
        for n in 0..40 {
            let prot = if n % 2 == 0 { RW } else { Prot::READ };
            process.mmap(at(n), 8 * PAGE, prot, NEW, None, 0).unwrap();
        }
        for n in 0..40 {
            assert_eq!(process.mremap(at(n), 4 * PAGE, PAGE, RemapFlags::empty(), 0), Ok(at(n)));
            let mapped = |page| process.find_vma(at(n) + page * PAGE).is_some();
            assert_eq!([0, 1, 3, 4].map(mapped), [true, false, false, true]);
        }
    });
}

/// A moving mremap does not take the mmap lock. The test moves the middle of a VMA, to a target directly
/// below the source and to a distant target, with and without merging at the target, for anonymous memory and
/// for a file.
#[test]
fn moving_mremap_takes_no_mmap_lock() {
    with_range_writers(|world, process, cpu| {
        let holds = || {
            let stats = process.lock_stats().unwrap();
            (stats.read.held.count(), stats.write.held.count())
        };
        let file = world.file(4);
        process.mmap(0, 8 * PAGE, Prot::READ, ANON, None, 0).unwrap();
        let at = process.mmap(0, 4 * PAGE, RW, ANON, None, 0).unwrap();
        let of_file = process.mmap(0, 2 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        assert_eq!(of_file, at - 2 * PAGE);
        fill(process, cpu, at, 4, 1);
        fill(process, cpu, of_file, 2, 8);
        let before = holds();
        let remap = |at, old, new| process.mremap(at, old * PAGE, new * PAGE, RemapFlags::MAYMOVE, 0);
        // The first target is below the file mapping, and the second target is below the first. The file
        // mapping then moves to a place where it merges with nothing.
        assert_eq!(remap(at + PAGE, 2, 6), Ok(of_file - 6 * PAGE));
        assert_eq!(remap(of_file - 6 * PAGE, 6, 7), Ok(of_file - 13 * PAGE));
        assert_eq!(remap(of_file, 2, 3), Ok(of_file - 3 * PAGE));
        // Two pieces of the first mapping remain. The first piece grows in place, and the second piece moves
        // below the first.
        assert_eq!(remap(at, 1, 2), Ok(at));
        assert_eq!(remap(at + 3 * PAGE, 1, 2), Ok(of_file));
        assert_eq!(holds(), before);
        assert_filled(process, cpu, of_file - 13 * PAGE, 2, 2);
        assert_filled(process, cpu, of_file - 3 * PAGE, 2, 8);
        assert_filled(process, cpu, at, 1, 1);
        assert_filled(process, cpu, of_file, 1, 4);
        drop(file);
    });
}

/// A moving mremap claims its source and its target, and waits for other claims on either.
#[test]
fn moving_mremap_waits_for_claims_on_source_and_target() {
    // First fit makes the placement independent of the CPU that a thread runs on.
    with_range_writers_in(Placement::FirstFit, |_, process, cpu| {
        let wall = process.mmap(0, PAGE, Prot::READ, ANON, None, 0).unwrap();
        let at = process.mmap(0, 2 * PAGE, RW, ANON, None, 0).unwrap();
        assert_eq!(at, wall - 2 * PAGE);
        let away = anon(process, AT, 2);
        process.mmap(AT + 2 * PAGE, PAGE, Prot::READ, NEW, None, 0).unwrap();
        fill(process, cpu, at, 2, 1);
        let reader = process.find_vma(at).unwrap();
        let remap = |at, old, new| process.mremap(at, old * PAGE, new * PAGE, RemapFlags::MAYMOVE, 0);
        thread::scope(|scope| {
            let moved = scope.spawn(|| remap(at, 2, 3));
            until(|| is_claimed(process, at));
            assert_eq!(unwaiting(|| remap(at, 2, 3)), Err(MremapError::Killed));
            assert_eq!(unwaiting(|| remap(at + PAGE, 1, 2)), Err(MremapError::Killed));
            // The first move claims its target. The target of the next move would touch that target. The next
            // move holds no claim while it waits.
            assert_eq!(unwaiting(|| remap(away, 2, 3)), Err(MremapError::Killed));
            assert_eq!(unwaiting(|| process.mprotect(away, PAGE, RW)), Ok(()));
            drop(reader);
            assert_eq!(moved.join().unwrap(), Ok(at - 3 * PAGE));
        });
        assert_filled(process, cpu, at - 3 * PAGE, 2, 1);
        // Only the added pages count against the limit.
        let room = |pages| {
            let bytes = (process.counts().total_vm + pages) * PAGE;
            process.limits().set(&Limits::new().address_space(bytes));
            remap(away, 2, 5)
        };
        assert_eq!(room(2), Err(MremapError::Limit));
        assert_eq!(room(3), Ok(at - 8 * PAGE));
        process.limits().set(&Limits::default());
    });
}

/// RLIMIT_AS and RLIMIT_MEMLOCK are exact to the page.
#[test]
fn address_space_and_memlock_limits_are_exact() {
    with_range_writers(|_, process, cpu| {
        process.mmap(AT, PAGE, RW, STACK, None, 0).unwrap();
        process.store(cpu, AT, 1u64).unwrap();
        anon(process, AT + gap(), 1);
        let heap = process.brk(0).unwrap();
        for locked in [false, true] {
            let now = process.counts();
            let pages = if locked { now.locked_vm } else { now.total_vm };
            let bytes = (pages + 6) * PAGE;
            process.limits().set(&match locked {
                false => Limits::new().address_space(bytes),
                true => Limits::new().memlock(bytes),
            });
            let end = process.brk(0).unwrap();
            assert_eq!(process.brk(end + 7 * PAGE), Ok(end));
            assert_eq!(process.brk(end + 2 * PAGE), Ok(end + 2 * PAGE));
            let start = process.vma_info(AT).unwrap().range.start();
            assert_eq!(process.load::<u64>(cpu, start - 5 * PAGE), Err(hole(start - 5 * PAGE)));
            assert_eq!(process.load(cpu, start - 2 * PAGE), Ok(0u64));
            let refused = if locked { MremapError::LockLimit } else { MremapError::Limit };
            assert_eq!(grow(process, AT + gap(), 3), Err(refused));
            assert_eq!(grow(process, AT + gap(), 2), Ok(AT + gap()));
            assert_eq!(grow(process, AT + gap(), 1), Err(refused));
            process.limits().set(&Limits::default());
            process.mlockall(LockAllFlags::CURRENT | LockAllFlags::FUTURE).unwrap();
        }
        assert_eq!(process.brk(heap), Ok(heap));
    });
}

/// Changed settings of an engine apply at once, also to existing address spaces and to CPUs that hold credit.
#[test]
fn changed_engine_settings_apply_at_once() {
    with_range_writers(|world, process, _| {
        let engine = world.engine();
        let mapped = |first: u64| {
            let map = |n: u64| process.mmap(AT + (first + 2 * n) * PAGE, PAGE, RW, NEW, None, 0);
            (0..6).map(map).take_while(Result::is_ok).count() as u64
        };
        let before = process.counts().map_count;
        engine.set_max_map_count(before + 3);
        assert_eq!(engine.max_map_count(), before + 3);
        let many = mapped(0);
        assert!((3..=4).contains(&many), "Linux admits one more");
        assert_eq!(mapped(20), 0);
        engine.set_max_map_count(Config::default().max_map_count);
        assert_eq!(mapped(40), 6);
        let map =
            |pages: u64| process.mmap(0, pages * PAGE, RW, MapFlags::PRIVATE | MapFlags::ANONYMOUS, None, 0);
        engine.set_overcommit(Overcommit::Heuristic(freehold::PageCount::new(4)));
        assert_eq!((map(4).is_ok(), map(5)), (true, Err(MmapError::Limit)));
        engine.set_overcommit(Config::default().overcommit);
        assert!(map(5).is_ok());
    });
}

/// A limit that is set while a change waits does not make the change fail: the change was admitted before,
/// and the new limit does not forbid its result.
#[test]
fn new_limit_does_not_refuse_a_waiting_change() {
    with_range_writers(|_, process, _| {
        anon(process, AT - PAGE, 1);
        process.mmap(AT, PAGE, Prot::READ, NEW, None, 0).unwrap();
        let reader = process.find_vma(AT);
        thread::scope(|scope| {
            let change = scope.spawn(|| process.mprotect(AT, PAGE, RW));
            // The preceding VMA is claimed too.
            until(|| is_claimed(process, AT - PAGE));
            process.limits().set(&Limits::new().data(1 << 40));
            drop(reader);
            assert_eq!(change.join().unwrap(), Ok(()));
        });
        process.limits().set(&Limits::default());
    });
}

/// A mapping that needs the space of arena boundaries waits for the claims of other range writers. Their VMAs
/// stay mapped.
#[test]
fn mapping_of_all_free_space_waits_for_claims() {
    with_range_writers(|_, process, _| {
        // Leaves an arena boundary above the range.
        let at = process.mmap(0, PAGE, RW, ANON, None, 0).unwrap();
        process.munmap(at, PAGE).unwrap();
        let (low, high) = (AT + PAGE, <Process>::DEFAULT_MMAP_BASE);
        anon(process, AT, 1);
        let room = || process.mmap(0, high - low, RW, ANON | MapFlags::NORESERVE, None, 0);
        let reader = process.find_vma(AT);
        thread::scope(|scope| {
            let change = scope.spawn(|| process.mprotect(AT, PAGE, R));
            until(|| is_claimed(process, AT));
            assert_eq!(unwaiting(room), Err(MmapError::Killed));
            drop(reader);
            assert_eq!(change.join().unwrap(), Ok(()));
        });
        assert_eq!(room(), Ok(low));
    });
}

/// Grows the VMA at `at` in place.
fn grow(process: &Process, at: u64, pages: u64) -> Result<u64, MremapError> {
    let len = process.vma_info(at).unwrap().range.pages().bytes();
    process.mremap(at, len, len + pages * PAGE, RemapFlags::empty(), 0)
}
