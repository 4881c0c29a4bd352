//! Where mappings go (C-38), how near stacks let others come (C-67), and moves at both ends of the space
//! (C-43).
//!
//! mmap returned the start of the VMA it had merged into; it rounded hints for the sake of huge pages. One
//! page of gap below a stack was jumped over by a large frame; a stack grew down to address zero by a write
//! through another's descriptor. A move counted its progress by a subtraction that wrapped when the source
//! was at address zero.

use super::*;
use freehold::{
    call::RemapFlags,
    error::{AccessError, MmapError},
    fault::{FaultError, SegvCode},
    remote::AccessMode,
    space::Limits,
};

const GAP: u64 = 256 * PAGE;
const STACK: MapFlags = ANON.union(MapFlags::GROWSDOWN).union(MapFlags::FIXED);

fn place(process: &Process, addr: u64, len: u64, flags: MapFlags) -> u64 {
    process.mmap(addr, len, RW, flags, None, 0).unwrap()
}

/// C-38.
#[test]
fn the_address_is_the_one_asked_for() {
    everywhere(|_, process, _| {
        // Between two that it joins, before one, behind one; fixed and as a hint.
        for flags in [ANON, ANON | MapFlags::FIXED, ANON | MapFlags::FIXED_NOREPLACE] {
            for page in [0, 4, 2, 1, 3, 5, 100] {
                assert_eq!(place(process, BASE + page * PAGE, PAGE, flags), BASE + page * PAGE);
            }
            // Large ones too, wherever the hint is.
            for at in [BASE + 1000 * PAGE, BASE + 0x40_1000_0000] {
                assert_eq!(place(process, at, 2 * HUGE, flags), at);
            }
            // Within its page, a hint is rounded down.
            assert_eq!(place(process, BASE + 9000 * PAGE + 5, PAGE, ANON), BASE + 9000 * PAGE);
            process.munmap(0, TASK_SIZE).unwrap();
        }
        place(process, BASE, PAGE, ANON);
        assert_ne!(place(process, BASE, PAGE, ANON), BASE, "a hint replaced something");
        assert_eq!(
            process.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED_NOREPLACE, None, 0),
            Err(MmapError::Occupied)
        );
    });
}

/// As measured on Linux 6.18 without randomisation.
#[test]
fn memory_for_addresses_of_31_bits() {
    everywhere(|_, process, _| {
        const LOW: u64 = 1 << 30;
        let low = ANON | MapFlags::BIT32;
        assert_eq!(place(process, 0, PAGE, low), LOW);
        assert_eq!(place(process, 0, PAGE, low), LOW + PAGE);
        // A hint counts as far as 2 GiB, also below the first.
        for hint in [LOW + (1 << 20), 0x2000_0000, 2 * LOW - PAGE] {
            assert_eq!(place(process, hint, PAGE, low), hint);
        }
        assert_eq!(place(process, 0x7f00_0000_0000, PAGE, low), LOW + 2 * PAGE);
        assert_eq!(place(process, 2 * LOW - PAGE, 2 * PAGE, low), LOW + 3 * PAGE);
        // Large private memory is aligned there, too.
        assert_eq!(place(process, 0, 2 * HUGE, low), LOW + HUGE);
        let full = process.mmap(0, LOW, RW, low, None, 0);
        assert_eq!(full, Err(MmapError::NoSpace), "no room above is given instead");
        assert_eq!(place(process, LOW, PAGE, low | MapFlags::FIXED), LOW);
    });
}

/// C-38.
#[test]
fn only_large_private_memory_without_a_hint_is_aligned() {
    everywhere(|world, process, _| {
        let file = world.file(HUGE / PAGE);
        let mut top = SpaceConfig::default().mmap_base;
        let mut expect_packed = |len: u64, at: u64| {
            assert_eq!(at, top - len, "{len:#x} bytes are not right below the last");
            top = at;
        };
        // An odd page first, so that nothing is aligned by chance.
        expect_packed(PAGE, place(process, 0, PAGE, ANON));
        expect_packed(HUGE + PAGE, place(process, 0, HUGE + PAGE, ANON));
        expect_packed(HUGE - PAGE, place(process, 0, HUGE - PAGE, ANON));
        let shared = MapFlags::SHARED | MapFlags::ANONYMOUS;
        expect_packed(HUGE, place(process, 0, HUGE, shared));
        expect_packed(HUGE, process.mmap(0, HUGE, RW, MapFlags::PRIVATE, Some(&file), 0).unwrap());
        for len in [HUGE, 2 * HUGE] {
            let at = place(process, 0, len, ANON);
            assert!(at.is_multiple_of(HUGE) && at + len <= top && top - at < len + HUGE, "{at:#x}");
            top = at;
        }
    });
}

fn hole<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::Segv { addr, code: SegvCode::Maperr })
}

/// C-67: growing towards what lies below. What cannot be accessed is a gap by itself, and stacks keep none
/// from stacks.
#[test]
fn a_stack_keeps_its_distance() {
    let below: [(Prot, MapFlags, u64); 4] =
        [(RW, ANON, GAP), (R, ANON, GAP), (Prot::empty(), ANON, 0), (RW, STACK, 0)];
    for (prot, flags, gap) in below {
        everywhere(|_, process, cpu| {
            process.mmap(BASE, PAGE, prot, flags | MapFlags::FIXED, None, 0).unwrap();
            let lowest = BASE + PAGE + gap;
            place(process, BASE + GAP + 20 * PAGE, PAGE, STACK);
            if gap > 0 {
                let addr = lowest - PAGE;
                assert_eq!(process.store(cpu, addr, 1u64), hole(addr));
                assert_eq!(
                    process.write_memory(addr, &[1], AccessMode::Forced),
                    Err(AccessError::BadAddress)
                );
                // Jumping over the gap finds what is there, or nothing.
                assert_eq!(process.load::<u64>(cpu, BASE + PAGE), hole(BASE + PAGE));
            }
            process.store(cpu, lowest, 1u64).unwrap();
            assert_eq!(process.space().read().find(lowest).map(|vma| vma.start()), Some(lowest));
        });
    }
}

/// C-67: coming near from below.
#[test]
fn others_keep_their_distance_from_a_stack() {
    everywhere(|_, process, _| {
        let stack = BASE + 2000 * PAGE;
        place(process, stack, PAGE, STACK);
        let near = stack - GAP;
        // A hint that leaves the gap is taken, one that does not is not; a fixed address is the caller's own
        // business.
        assert_eq!(place(process, near - PAGE, PAGE, ANON), near - PAGE);
        process.munmap(near - PAGE, PAGE).unwrap();
        for hint in [near, stack - PAGE, near - 2 * PAGE] {
            let at = place(process, hint, 3 * PAGE, ANON);
            assert!(at + 3 * PAGE <= near || at > stack, "{at:#x} is too near");
        }
        assert_eq!(place(process, stack - PAGE, PAGE, ANON | MapFlags::FIXED), stack - PAGE);
        // Right behind a stack there is no gap.
        assert_eq!(place(process, stack + PAGE, PAGE, ANON), stack + PAGE);
    });
}

/// C-67: the search for a free place, from above, beside stacks.
#[test]
fn the_search_keeps_its_distance_from_stacks() {
    everywhere(|_, process, _| {
        let base = SpaceConfig::default().mmap_base;
        let stack = base - 4 * PAGE;
        place(process, stack, 4 * PAGE, STACK);
        for _ in 0..3 {
            let at = place(process, 0, PAGE, ANON);
            assert!(at + PAGE <= stack - GAP, "{at:#x} is too near to {stack:#x}");
        }
        assert!(process.space().read().find(stack - GAP - PAGE).is_some(), "the best place was not taken");
    });
}

/// C-67: the heap.
#[test]
fn the_heap_keeps_its_distance_from_a_stack() {
    everywhere(|_, process, _| {
        let heap = process.brk(0).unwrap();
        let stack = heap + GAP + 10 * PAGE;
        place(process, stack, PAGE, STACK);
        // And a page more.
        let most = stack - GAP - PAGE;
        assert_eq!(process.brk(most + 1).unwrap(), heap);
        assert_eq!(process.brk(most).unwrap(), most);
        assert_eq!(process.brk(most + 1).unwrap(), most);
    });
}

/// C-67: nobody's stack reaches the lowest addresses, whatever rights its owner or a debugger has.
#[test]
fn no_stack_grows_below_the_minimum() {
    everywhere(|_, process, cpu| {
        process.limits().set(&Limits { may_map_low: true, ..Limits::default() });
        let minimum = Config::default().mmap_min_addr;
        place(process, minimum + 4 * PAGE, PAGE, STACK);
        for addr in [minimum - 1, minimum - PAGE, 0] {
            assert_eq!(process.load::<u8>(cpu, addr), hole(addr));
            for manner in [AccessMode::Plain, AccessMode::Forced, AccessMode::Report] {
                assert_eq!(process.write_memory(addr, &[1], manner), Err(AccessError::BadAddress));
            }
        }
        process.store(cpu, minimum, 1u64).unwrap();
        assert_eq!(process.load::<u8>(cpu, minimum - 1), hole(minimum - 1));
    });
}

/// C-67: RLIMIT_STACK, to the page.
#[test]
fn a_stack_grows_to_its_limit() {
    everywhere(|_, process, cpu| {
        process.limits().set(&Limits { stack: 10 * PAGE, ..Limits::default() });
        let stack = BASE + 2000 * PAGE;
        place(process, stack, PAGE, STACK);
        let lowest = stack - 9 * PAGE;
        assert_eq!(process.store(cpu, lowest - PAGE, 1u64), hole(lowest - PAGE));
        process.store(cpu, lowest, 1u64).unwrap();
        assert_eq!(process.counts().stack_vm, 10);
    });
}

/// C-43: the whole of a mapping and its parts, to and from each end of the space.
#[test]
fn moves_at_both_ends_of_the_space() {
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    everywhere(|_, process, cpu| {
        process.limits().set(&Limits { may_map_low: true, ..Limits::default() });
        for end in [0, TASK_SIZE - 4 * PAGE] {
            for (first, pages) in [(0, 4), (0, 1), (1, 2), (3, 1), (1, 3)] {
                anon(process, end, 4);
                fill(process, cpu, end, 4, 10);
                let (from, len) = (end + first * PAGE, pages * PAGE);
                assert_eq!(process.mremap(from, len, len, flags, BASE), Ok(BASE));
                assert_filled(process, cpu, BASE, pages, 10 + first);
                for page in 0..4 {
                    let moved = (first..first + pages).contains(&page);
                    let found = process.load::<u64>(cpu, end + page * PAGE);
                    assert_eq!(found, if moved { hole(end + page * PAGE) } else { Ok(10 + page) });
                }
                assert_eq!(process.mremap(BASE, len, len, flags, from), Ok(from));
                assert_filled(process, cpu, end, 4, 10);
                process.check();
                process.munmap(end, 4 * PAGE).unwrap();
            }
        }
        // Nothing grows beyond the end, and what must move for it takes its pages along.
        let top = TASK_SIZE - PAGE;
        anon(process, top, 1);
        process.store(cpu, top, 5u64).unwrap();
        assert!(process.mremap(top, PAGE, 2 * PAGE, RemapFlags::empty(), 0).is_err());
        let at = process.mremap(top, PAGE, 2 * PAGE, RemapFlags::MAYMOVE, 0).unwrap();
        assert_eq!(process.load::<u64>(cpu, at), Ok(5));
    });
}
