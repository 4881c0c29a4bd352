//! Placement of mappings (C-38), gaps below stacks (C-67), and moves at both ends of the address space
//! (C-43).
//!
//! The bugs in Linux: mmap returned the start of the VMA that the new mapping had merged into, and rounded
//! hints to align huge pages. A large stack frame jumped over the gap of one page below a stack. A write
//! through a descriptor of another task made a stack grow down to address zero. A move counted its progress
//! by a subtraction that wrapped for a source at address zero.
//!
//! The tests call mmap with hints and lengths near stacks, holes and the ends, and compare the addresses; for
//! growing stacks they also compare the faults. Every test runs on every design. `layouts.rs` tests the
//! search itself, and `range_writers.rs` tests stacks that grow while other tasks map.

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
fn c38_mmap_returns_the_requested_address() {
    everywhere(|_, process, _| {
        // The new VMA merges with VMAs on both sides, with the VMA above, or with the VMA below. The address
        // is fixed or a hint.
        for flags in [ANON, ANON | MapFlags::FIXED, ANON | MapFlags::FIXED_NOREPLACE] {
            for page in [0, 4, 2, 1, 3, 5, 100] {
                assert_eq!(place(process, BASE + page * PAGE, PAGE, flags), BASE + page * PAGE);
            }
            // A large mapping also gets the address of its hint.
            for at in [BASE + 1000 * PAGE, BASE + 0x10_1000_0000] {
                assert_eq!(place(process, at, 2 * HUGE, flags), at);
            }
            // A hint is rounded down to a page.
            assert_eq!(place(process, BASE + 9000 * PAGE + 5, PAGE, ANON), BASE + 9000 * PAGE);
            process.munmap(0, TASK_SIZE).unwrap();
        }
        place(process, BASE, PAGE, ANON);
        assert_ne!(place(process, BASE, PAGE, ANON), BASE, "a hint replaced a mapping");
        assert_eq!(
            process.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED_NOREPLACE, None, 0),
            Err(MmapError::Occupied)
        );
    });
}

/// The expected addresses were measured on Linux 6.18 without randomisation.
#[test]
fn map_32bit_places_mappings_in_the_second_gib() {
    everywhere(|_, process, _| {
        const LOW: u64 = 1 << 30;
        let low = ANON | MapFlags::BIT32;
        assert_eq!(place(process, 0, PAGE, low), LOW);
        assert_eq!(place(process, 0, PAGE, low), LOW + PAGE);
        // Hints are followed up to 2 GiB, also below 1 GiB.
        for hint in [LOW + (1 << 20), 0x2000_0000, 2 * LOW - PAGE] {
            assert_eq!(place(process, hint, PAGE, low), hint);
        }
        assert_eq!(place(process, 0x7f00_0000_0000, PAGE, low), LOW + 2 * PAGE);
        assert_eq!(place(process, 2 * LOW - PAGE, 2 * PAGE, low), LOW + 3 * PAGE);
        // Large private memory is aligned there, too.
        assert_eq!(place(process, 0, 2 * HUGE, low), LOW + HUGE);
        let full = process.mmap(0, LOW, RW, low, None, 0);
        assert_eq!(full, Err(MmapError::NoSpace), "an address above 2 GiB was used instead");
        assert_eq!(place(process, LOW, PAGE, low | MapFlags::FIXED), LOW);
    });
}

/// C-38.
#[test]
fn c38_only_large_private_memory_without_a_hint_is_aligned() {
    everywhere(|world, process, _| {
        let file = world.file(HUGE / PAGE);
        let mut top = <Process>::DEFAULT_MMAP_BASE;
        let mut expect_packed = |len: u64, at: u64| {
            assert_eq!(at, top - len, "{len:#x} bytes are not directly below the last mapping");
            top = at;
        };
        // The first mapping has an odd number of pages, so that no address is aligned by chance.
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

/// Returns the fault of an access where nothing is mapped.
fn hole<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::Segv { addr, code: SegvCode::Maperr })
}

/// C-67: a stack grows towards the mapping below it. Inaccessible memory counts as a gap, and a stack needs
/// no gap to another stack.
#[test]
fn c67_growing_stack_keeps_its_gap() {
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
                // An access below the gap reaches the mapping there, or a hole.
                assert_eq!(process.load::<u64>(cpu, BASE + PAGE), hole(BASE + PAGE));
            }
            process.store(cpu, lowest, 1u64).unwrap();
            assert_eq!(process.space().read().find(lowest).map(|vma| vma.start()), Some(lowest));
        });
    }
}

/// C-67: mappings are placed below a stack.
#[test]
fn c67_hints_in_a_stack_gap_are_not_followed() {
    everywhere(|_, process, _| {
        let stack = BASE + 2000 * PAGE;
        place(process, stack, PAGE, STACK);
        let near = stack - GAP;
        // A hint that keeps the gap is followed, and a hint inside the gap is not followed. A fixed address
        // is used as given.
        assert_eq!(place(process, near - PAGE, PAGE, ANON), near - PAGE);
        process.munmap(near - PAGE, PAGE).unwrap();
        for hint in [near, stack - PAGE, near - 2 * PAGE] {
            let at = place(process, hint, 3 * PAGE, ANON);
            assert!(at + 3 * PAGE <= near || at > stack, "{at:#x} is too near");
        }
        assert_eq!(place(process, stack - PAGE, PAGE, ANON | MapFlags::FIXED), stack - PAGE);
        // There is no gap directly above a stack.
        assert_eq!(place(process, stack + PAGE, PAGE, ANON), stack + PAGE);
    });
}

/// C-67: the top-down search for a free range near stacks.
#[test]
fn c67_top_down_search_keeps_the_stack_gap() {
    everywhere(|_, process, _| {
        let base = <Process>::DEFAULT_MMAP_BASE;
        let stack = base - 4 * PAGE;
        place(process, stack, 4 * PAGE, STACK);
        for _ in 0..3 {
            let at = place(process, 0, PAGE, ANON);
            assert!(at + PAGE <= stack - GAP, "{at:#x} is too near to {stack:#x}");
        }
        assert!(
            process.space().read().find(stack - GAP - PAGE).is_some(),
            "the highest possible address was not used"
        );
    });
}

/// C-67: the heap grows towards a stack.
#[test]
fn c67_heap_keeps_the_stack_gap() {
    everywhere(|_, process, _| {
        let heap = process.brk(0).unwrap();
        let stack = heap + GAP + 10 * PAGE;
        place(process, stack, PAGE, STACK);
        // The heap keeps one more page free.
        let most = stack - GAP - PAGE;
        assert_eq!(process.brk(most + 1).unwrap(), heap);
        assert_eq!(process.brk(most).unwrap(), most);
        assert_eq!(process.brk(most + 1).unwrap(), most);
    });
}

/// C-67: no stack grows to the lowest addresses, whatever rights its owner or a debugger has.
#[test]
fn c67_no_stack_grows_below_the_minimum() {
    everywhere(|_, process, cpu| {
        process.limits().set(&Limits::new().may_map_low(true));
        let minimum = Config::default().mmap_min_addr;
        place(process, minimum + 4 * PAGE, PAGE, STACK);
        for addr in [minimum - 1, minimum - PAGE, 0] {
            assert_eq!(process.load::<u8>(cpu, addr), hole(addr));
            for mode in [AccessMode::Plain, AccessMode::Forced, AccessMode::Report] {
                assert_eq!(process.write_memory(addr, &[1], mode), Err(AccessError::BadAddress));
            }
        }
        process.store(cpu, minimum, 1u64).unwrap();
        assert_eq!(process.load::<u8>(cpu, minimum - 1), hole(minimum - 1));
    });
}

/// C-67: RLIMIT_STACK is exact to the page.
#[test]
fn c67_stack_grows_up_to_its_limit() {
    everywhere(|_, process, cpu| {
        process.limits().set(&Limits::new().stack(10 * PAGE));
        let stack = BASE + 2000 * PAGE;
        place(process, stack, PAGE, STACK);
        let lowest = stack - 9 * PAGE;
        assert_eq!(process.store(cpu, lowest - PAGE, 1u64), hole(lowest - PAGE));
        process.store(cpu, lowest, 1u64).unwrap();
        assert_eq!(process.counts().stack_vm, 10);
    });
}

/// C-43: a whole mapping and parts of it move to and from each end of the address space.
#[test]
fn c43_mappings_move_at_both_ends_of_the_space() {
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    everywhere(|_, process, cpu| {
        process.limits().set(&Limits::new().may_map_low(true));
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
        // No mapping grows beyond the end. A mapping that moves in order to grow keeps its pages.
        let top = TASK_SIZE - PAGE;
        anon(process, top, 1);
        process.store(cpu, top, 5u64).unwrap();
        assert!(process.mremap(top, PAGE, 2 * PAGE, RemapFlags::empty(), 0).is_err());
        let at = process.mremap(top, PAGE, 2 * PAGE, RemapFlags::MAYMOVE, 0).unwrap();
        assert_eq!(process.load::<u64>(cpu, at), Ok(5));
    });
}
