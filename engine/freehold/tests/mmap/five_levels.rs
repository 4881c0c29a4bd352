//! Page tables of five levels (format `X86_5`): user space ends at 2^56. Addresses above 2^47 are used only
//! on request, by a hint or a fixed address above 2^47.
//!
//! `wide` runs a scenario on every design with both layouts. All other tests of this program run on four
//! levels, so a call that computes with the end of user space needs a case in
//! `calls_accept_ranges_up_to_the_end_of_the_space`.

use super::*;
use freehold::{
    call::{Advice, RemapFlags, ShmFlags},
    error::{MmapError, MremapError, MunmapError, UffdRegisterError},
    fault::FaultError,
    file::Segment,
    remote::{AccessMode, IoVec},
    space::{DEFAULT_MAP_WINDOW, LEGACY_BASE, Layout},
    uffd::{RegisterMode, UffdConfig, Userfaultfd},
};
use freehold_pagetable::{X86_4, X86_5};

/// A process with page tables of five levels.
type Wide = Process<X86_5>;
/// An engine with page tables of five levels.
type WideEngine = Counted<Engine<Machine<X86_5>>>;
const END: u64 = Wide::TASK_SIZE;
/// End of user space with four levels.
const BORDER: u64 = 1 << 47;
const LOW: u64 = 1 << 30;
const FIXED: MapFlags = ANON.union(MapFlags::FIXED);

/// Runs `scenario` on every design, in an address space with the given layout.
fn laid_out(layout: Layout, scenario: impl Fn(&WideEngine, &Wide, &mut Cpu<X86_5>)) {
    for locking in Locking::ALL {
        let machine: Machine<X86_5> = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
        let engine = Engine::new(machine.clone(), Config::default()).unwrap();
        let config = SpaceConfig::new().locking(locking).layout(layout).mmap_base(Some(base(layout)));
        let process = Process::new(&engine, &config).unwrap();
        let mut cpu = machine.cpu(0);
        scenario(&engine, &process, &mut cpu);
        process.check();
        drop((process, cpu, engine));
        machine.accounting().assert_clean();
    }
}

fn base(layout: Layout) -> u64 {
    match layout {
        Layout::TopDown => Wide::DEFAULT_MMAP_BASE,
        Layout::BottomUp => LEGACY_BASE,
    }
}

/// Runs `scenario` on every design with both layouts.
fn wide(scenario: impl Fn(&WideEngine, &Wide, &mut Cpu<X86_5>)) {
    [Layout::TopDown, Layout::BottomUp].into_iter().for_each(|layout| laid_out(layout, &scenario));
}

fn place(process: &Wide, hint: u64, len: u64, flags: MapFlags) -> u64 {
    process.mmap(hint, len, RW, flags, None, 0).unwrap()
}

#[test]
fn hint_above_the_window_opens_the_upper_space() {
    assert_eq!((END, Process::<X86_4>::TASK_SIZE), ((1 << 56) - PAGE, BORDER - PAGE));
    wide(|_, process, _| {
        let without = place(process, 0, PAGE, ANON);
        assert!(without < DEFAULT_MAP_WINDOW);
        // A mapping at a hint does not cross the border. A mapping at a fixed address may.
        for hint in [DEFAULT_MAP_WINDOW - PAGE, DEFAULT_MAP_WINDOW] {
            let at = place(process, hint, 2 * PAGE, ANON);
            assert!(at != hint && at < DEFAULT_MAP_WINDOW, "{at:#x}");
        }
        assert_eq!(place(process, DEFAULT_MAP_WINDOW - PAGE, PAGE, ANON), DEFAULT_MAP_WINDOW - PAGE);
        assert_eq!(place(process, DEFAULT_MAP_WINDOW, 2 * PAGE, FIXED), DEFAULT_MAP_WINDOW);
        for hint in [BORDER + PAGE, 1 << 50, END - PAGE] {
            assert_eq!(place(process, hint, PAGE, ANON), hint);
        }
        let wide = process.mmap(0, BORDER, RW, ANON | MapFlags::NORESERVE, None, 0);
        assert_eq!(wide, Err(MmapError::NoSpace));
        assert_eq!(process.mmap(END, PAGE, RW, FIXED, None, 0), Err(MmapError::NoSpace));
        // A large mapping without a hint stays below the border, and is aligned.
        let huge = place(process, 0, 2 * HUGE, ANON);
        assert!(huge.is_multiple_of(HUGE) && huge < DEFAULT_MAP_WINDOW);
        assert_eq!(process.mmap(1 << 52, PAGE, RW, ANON | MapFlags::BIT32, None, 0), Ok(LOW));
    });
}

/// An occupied hint above the window makes the search cover the whole space: top-down from its end, bottom-up
/// from the usual base.
#[test]
fn occupied_hint_above_the_window_opens_the_upper_space() {
    for layout in [Layout::TopDown, Layout::BottomUp] {
        laid_out(layout, |_, process, _| {
            let hint = place(process, 1 << 50, PAGE, ANON);
            let (first, second, below) = match layout {
                Layout::TopDown => {
                    let high = base(layout) + (END - DEFAULT_MAP_WINDOW);
                    (high - PAGE, high - 2 * PAGE, Ok(LOW - PAGE))
                }
                Layout::BottomUp => (LEGACY_BASE, LEGACY_BASE + PAGE, Err(MmapError::NoSpace)),
            };
            assert_eq!(place(process, hint, PAGE, ANON), first);
            assert_eq!(place(process, END, PAGE, ANON), second);
            // The window is full now. Only a mapping with a hint above the window finds a free range, above
            // the window.
            let full = DEFAULT_MAP_WINDOW - LOW;
            process.mmap(LOW, full, Prot::empty(), FIXED | MapFlags::NORESERVE, None, 0).unwrap();
            assert_eq!(process.mmap(0, PAGE, RW, ANON, None, 0), below);
            assert!(place(process, hint, PAGE, ANON) >= DEFAULT_MAP_WINDOW);
        });
    }
}

/// Memory across the border and far above it: faults, fork, and moves in both directions.
#[test]
fn memory_moves_across_the_border() {
    let moves = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    wide(|_, process, cpu| {
        let places = [BORDER - 2 * PAGE, BORDER, 1 << 52, END - 4 * PAGE, 0x10_0000_0000];
        for from in places {
            place(process, from, 4 * PAGE, FIXED);
            (0..4).for_each(|n| process.store(cpu, from + n * PAGE, 100 + n).unwrap());
            let child = Process::of(process.fork().unwrap());
            process.store(cpu, from, 7u64).unwrap();
            assert_eq!(child.load::<u64>(cpu, from), Ok(100));
            drop(child);
            for to in places.into_iter().filter(|to| to.abs_diff(from) >= 4 * PAGE) {
                assert_eq!(process.mremap(from, 4 * PAGE, 4 * PAGE, moves, to), Ok(to));
                assert!(process.load::<u64>(cpu, from).is_err());
                assert_eq!(process.load::<u64>(cpu, to), Ok(7));
                assert_eq!(process.load::<u64>(cpu, to + 3 * PAGE), Ok(103));
                assert_eq!(process.mremap(to, 4 * PAGE, 4 * PAGE, moves, from), Ok(from));
            }
            process.munmap(from, 4 * PAGE).unwrap();
        }
        // mremap grows a mapping in place across the border, and up to the end of the space but not beyond. A
        // mapping that moves without a hint is placed below the border.
        let at = place(process, DEFAULT_MAP_WINDOW - PAGE, PAGE, FIXED);
        process.store(cpu, at, 5u64).unwrap();
        assert_eq!(process.mremap(at, PAGE, 4 * PAGE, RemapFlags::empty(), 0), Ok(at));
        let top = place(process, END - PAGE, PAGE, FIXED);
        let further = process.mremap(top, PAGE, 2 * PAGE, RemapFlags::empty(), 0);
        assert_eq!(further, Err(MremapError::NoSpace));
        assert!(process.mremap(top, PAGE, 2 * PAGE, RemapFlags::MAYMOVE, 0).unwrap() < DEFAULT_MAP_WINDOW);
        let beyond = process.mremap(at, PAGE, PAGE, moves, END);
        assert_eq!(beyond, Err(MremapError::Invalid));
        assert_eq!(process.load::<u64>(cpu, at), Ok(5));
    });
}

/// Every call that takes a range accepts ranges up to the end of the space, and refuses longer ranges.
#[test]
fn calls_accept_ranges_up_to_the_end_of_the_space() {
    wide(|engine, process, cpu| {
        let at = place(process, END - 8 * PAGE, 8 * PAGE, FIXED);
        (0..8).for_each(|n| process.store(cpu, at + n * PAGE, n).unwrap());
        process.mprotect(at, PAGE, R).unwrap();
        assert!(matches!(process.store(cpu, at, 1u64), Err(FaultError::Segv { .. })));
        process.mlock(at, 2 * PAGE).unwrap();
        process.madvise(at + 2 * PAGE, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(process.load::<u64>(cpu, at + 2 * PAGE), Ok(0));
        let ranges = [IoVec { base: at + 3 * PAGE, len: 5 * PAGE }];
        assert_eq!(process.process_madvise(&ranges, Advice::Cold, true), Ok(5 * PAGE));
        let mut resident = [0; 9];
        process.mincore(at, 8 * PAGE, &mut resident).unwrap();
        assert_eq!(resident, [1, 1, 1, 1, 1, 1, 1, 1, 0]);
        assert!(process.mincore(at, 9 * PAGE, &mut resident).is_err());
        // The reverse map finds entries at these addresses.
        let frame = process.frame_at(at + 4 * PAGE).unwrap();
        engine.migrate(frame).unwrap();
        assert_eq!(process.load::<u64>(cpu, at + 4 * PAGE), Ok(4));
        process.write_memory(at + 5 * PAGE, &[9], AccessMode::Plain).unwrap();
        assert_eq!(process.load::<u8>(cpu, at + 5 * PAGE), Ok(9));
        let mut present = 0;
        process.pagemap(at..END, |run| present += run.range.end() - run.range.start());
        assert_eq!(present, 8 * PAGE);
        let uffd = Userfaultfd::new(process.space(), UffdConfig::default()).unwrap();
        uffd.register(at + 6 * PAGE, 2 * PAGE, RegisterMode::MISSING).unwrap();
        assert_eq!(uffd.register(at, 9 * PAGE, RegisterMode::MISSING), Err(UffdRegisterError::Invalid));
        drop(uffd);
        let segment = Segment::new(engine, 0, 2 * PAGE).unwrap();
        let here = 1 << 54;
        assert_eq!(process.shmat(&segment, here, ShmFlags::empty()), Ok(here));
        assert!(process.shmat(&segment, 0, ShmFlags::empty()).unwrap() < DEFAULT_MAP_WINDOW);
        process.shmdt(here).unwrap();
        segment.remove();
        assert_eq!(process.munmap(at, 9 * PAGE), Err(MunmapError::Invalid));
        process.munmap(0, END).unwrap();
        assert_eq!(process.counts().map_count, 0);
        assert!(process.load::<u64>(cpu, at).is_err());
    });
}

/// The heap grows up across the border, and a stack grows down across it.
#[test]
fn heap_and_stack_cross_the_border() {
    wide(|_, process, cpu| {
        process.set_heap(BORDER - 2 * PAGE..BORDER - 2 * PAGE).unwrap();
        assert_eq!(process.brk(BORDER + 2 * PAGE), Ok(BORDER + 2 * PAGE));
        process.store(cpu, BORDER, 3u64).unwrap();
        assert_eq!(process.brk(BORDER - 2 * PAGE), Ok(BORDER - 2 * PAGE));
        process.set_heap(END - PAGE..END - PAGE).unwrap();
        assert_eq!(process.brk(END), Ok(END));
        assert_eq!(process.brk(END + PAGE), Ok(END));
        place(process, BORDER + 2 * PAGE, PAGE, FIXED | MapFlags::GROWSDOWN);
        for page in [1, 0, 3] {
            process.store(cpu, BORDER + PAGE - page * PAGE, page).unwrap();
        }
        assert_eq!(process.space().read().find(BORDER).map(|vma| vma.start()), Some(BORDER - 2 * PAGE));
    });
}

/// The pages are far apart. A munmap of everything visits only existing page tables.
#[test]
fn munmap_skips_holes_of_any_width() {
    wide(|_, process, cpu| {
        for bit in 30..56u64 {
            place(process, 1 << bit, PAGE, FIXED);
            process.store(cpu, 1 << bit, bit).unwrap();
        }
        let child = Process::of(process.fork().unwrap());
        process.munmap(1 << 31, END - (1 << 31)).unwrap();
        assert_eq!((process.counts().map_count, process.rss().anon), (1, 1));
        assert!((30..56u64).all(|bit| child.load::<u64>(cpu, 1 << bit) == Ok(bit)));
        child.check();
    });
}
