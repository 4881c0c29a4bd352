//! Search for free addresses (`src/space/placement.rs`, `src/call/mmap/place.rs`): top-down or bottom-up, in
//! the second GiB, and above 4 GiB. `laid_out` creates a process with a layout. The expected addresses are
//! those of Linux 6.18 without randomisation; freehold-model compares random calls with the running kernel.
//! `places.rs` tests hints, stacks and the ends of the address space.

use super::*;
use freehold::{call::RemapFlags, error::MmapError, space::Layout};

const DEFAULT_MAP_WINDOW: u64 = <Process>::MAP_WINDOW_END;
const LEGACY_BASE: u64 = <Process>::LEGACY_BASE;
const LOW: u64 = 1 << 30;
const FOUR_GIB: u64 = 4 << 30;
const STACK: MapFlags = ANON.union(MapFlags::GROWSDOWN).union(MapFlags::FIXED);

/// Runs `scenario` in a process with this layout.
fn laid_out(mmap_base: u64, layout: Layout, scenario: impl Fn(&World, &Process)) {
    let world = World::new();
    let config = SpaceConfig::new().mmap_base(Some(mmap_base)).layout(layout);
    let process = Process::new(world.engine(), &config).unwrap();
    scenario(&world, &process);
    process.check();
    drop(process);
    world.end();
}

/// Runs `scenario` with the layout that places mappings upwards.
fn upwards(scenario: impl Fn(&World, &Process)) {
    laid_out(LEGACY_BASE, Layout::BottomUp, scenario);
}

fn try_place(process: &Process, hint: u64, len: u64, flags: MapFlags) -> Result<u64, MmapError> {
    process.mmap(hint, len, RW, flags, None, 0)
}

fn place(process: &Process, hint: u64, len: u64, flags: MapFlags) -> u64 {
    try_place(process, hint, len, flags).unwrap()
}

/// Returns a file whose mappings are aligned for huge pages.
fn aligned_file(world: &World) -> Counted<File<Machine>> {
    let file = world.file(4 * HUGE / PAGE);
    file.mapping().align_to_huge_pages(true);
    file
}

#[test]
fn bottom_up_search_takes_the_first_gap() {
    upwards(|_, process| {
        let base = LEGACY_BASE;
        for page in 0..4 {
            assert_eq!(place(process, 0, PAGE, ANON), base + page * PAGE);
        }
        process.munmap(base + PAGE, PAGE).unwrap();
        assert_eq!(place(process, 0, 2 * PAGE, ANON), base + 4 * PAGE, "no gap below fits");
        assert_eq!(place(process, 0, PAGE, ANON), base + PAGE);
        // Hints below the base are followed, too, up to the end of the window.
        for hint in [0x20_0000_0000, DEFAULT_MAP_WINDOW - PAGE] {
            assert_eq!(place(process, hint, PAGE, ANON), hint);
        }
        let mut next = base + 6 * PAGE;
        let beyond = <Process>::TASK_SIZE;
        for hint in [base, beyond, beyond + PAGE, 1 << 60, !(PAGE - 1)] {
            assert_eq!(place(process, hint, PAGE, ANON), next, "{hint:#x}");
            next += PAGE;
        }
        // A child and a moving mremap search bottom-up, too.
        let child = Process::of(process.fork().unwrap());
        assert_eq!(place(&child, 0, PAGE, ANON), next);
        assert_eq!(process.mremap(base, PAGE, 3 * PAGE, RemapFlags::MAYMOVE, 0), Ok(next));
    });
}

/// The search takes an address that is already aligned. The top-down search of Linux skips such an address.
#[test]
fn bottom_up_search_packs_huge_mappings() {
    upwards(|world, process| {
        let file = aligned_file(world);
        let mapped = |flags, offset| process.mmap(0, 2 * HUGE, R, flags, Some(&file), offset).unwrap();
        let first = LEGACY_BASE.next_multiple_of(HUGE);
        place(process, 0, PAGE, ANON);
        assert_eq!(place(process, 0, 2 * HUGE, ANON), first);
        assert_eq!(place(process, 0, 2 * HUGE, ANON), first + 2 * HUGE);
        assert_eq!(mapped(MapFlags::PRIVATE, 0), first + 4 * HUGE);
        assert_eq!(mapped(MapFlags::PRIVATE, PAGE), first + 6 * HUGE + PAGE);
        let low = ANON | MapFlags::BIT32;
        assert_eq!(place(process, 0, PAGE, low), LOW);
        assert_eq!(place(process, 0, 2 * HUGE, low), LOW + HUGE);
        assert_eq!(place(process, 0, HUGE, low), LOW + 3 * HUGE);
        assert_eq!(mapped(MapFlags::PRIVATE | MapFlags::BIT32, PAGE), LOW + 4 * HUGE + PAGE);
    });
}

#[test]
fn files_mapped_with_map_32bit_are_aligned() {
    laid_out(<Process>::DEFAULT_MMAP_BASE, Layout::TopDown, |world, process| {
        let file = aligned_file(world);
        let low = MapFlags::PRIVATE | MapFlags::BIT32;
        let mapped = |hint, offset| process.mmap(hint, 2 * HUGE, R, low, Some(&file), offset).unwrap();
        place(process, 0, PAGE, ANON | MapFlags::BIT32);
        assert_eq!(mapped(0, 0), LOW + HUGE);
        assert_eq!(mapped(0, PAGE), LOW + 3 * HUGE + PAGE);
        // At a hint, the search needs room for one more huge page.
        assert_eq!(mapped(2 * LOW - 2 * HUGE, PAGE), LOW + 6 * HUGE + PAGE);
        assert_eq!(mapped(LOW + 100 * HUGE, PAGE), LOW + 100 * HUGE);
    });
}

/// C-67, bottom-up.
#[test]
fn c67_bottom_up_search_keeps_the_stack_gap() {
    upwards(|_, process| {
        let gap = Config::default().stack_gap;
        let stack = LEGACY_BASE + gap + 4 * PAGE;
        place(process, stack, PAGE, STACK);
        assert_eq!(place(process, 0, 5 * PAGE, ANON), stack + PAGE, "the gap is too near to the stack");
        assert_eq!(place(process, 0, 4 * PAGE, ANON), LEGACY_BASE);
        assert_eq!(place(process, 0, PAGE, ANON), stack + 6 * PAGE);
    });
}

/// A case for a huge page of a pool that is placed in a gap near a stack. In KiB: the distance of the gap
/// from an aligned address, the length of the gap, and the expected offset in the gap. `None` stands for a
/// place outside of the gap.
type NearStack = (u64, u64, Option<u64>);

fn assert_placed_near_stacks(process: &Process, near: u64, cases: &[NearStack]) {
    const KIB: u64 = 1 << 10;
    let huge = ANON | MapFlags::HUGETLB | MapFlags::NORESERVE;
    for &(offset, gap, expected) in cases {
        let (first, len) = (near + offset * KIB, gap * KIB);
        process.munmap(first, len + PAGE).unwrap();
        place(process, first + len, PAGE, STACK);
        let at = process.mmap(0, HUGE, RW, huge, None, 0).unwrap();
        process.munmap(at, HUGE).unwrap();
        let within = (first..first + len).contains(&at).then(|| (at - first) / KIB);
        assert_eq!(within, expected, "{gap} KiB, {offset} KiB after an aligned address");
        place(process, first, len + PAGE, ANON | MapFlags::FIXED);
    }
}

/// C-67: a gap next to a stack must hold the mapping, its largest alignment padding and the stack gap. The
/// answers are those of Linux 6.18.
#[test]
fn c67_aligned_bottom_up_search_keeps_the_stack_gap() {
    upwards(|_, process| {
        let near = LEGACY_BASE.next_multiple_of(HUGE) + HUGE;
        place(process, LEGACY_BASE, near - LEGACY_BASE + 6 * HUGE, ANON | MapFlags::FIXED);
        let cases = [
            (0, 4092, None),
            (0, 5112, None),
            (0, 5116, Some(0)),
            (4, 6144, None),
            (4, 7156, None),
            (4, 7160, Some(2044)),
        ];
        assert_placed_near_stacks(process, near, &cases);
    });
}

/// C-67: the rule of [`c67_aligned_bottom_up_search_keeps_the_stack_gap`], top-down.
#[test]
fn c67_aligned_top_down_search_keeps_the_stack_gap() {
    let base = LEGACY_BASE.next_multiple_of(HUGE) + 64 * HUGE;
    laid_out(base, Layout::TopDown, |_, process| {
        let near = base - 8 * HUGE;
        place(process, near - HUGE, base - near + HUGE, ANON | MapFlags::FIXED);
        let cases = [
            (0, 4096, None),
            (0, 5112, None),
            (0, 5116, Some(0)),
            (0, 5120, Some(2048)),
            (512, 5112, None),
            (512, 5116, Some(1536)),
            (1024, 4096, None),
            (1024, 5112, None),
            (1024, 5116, Some(1024)),
            (1024, 6144, Some(3072)),
            (1536, 5112, None),
            (1536, 5120, Some(512)),
            (1536, 5632, Some(2560)),
        ];
        assert_placed_near_stacks(process, near, &cases);
    });
}

/// The top-down search tries addresses below the base first, and then searches bottom-up from a third of the
/// window.
#[test]
fn top_down_search_falls_back_to_bottom_up() {
    laid_out(1 << 30, Layout::TopDown, |_, process| {
        assert_eq!(place(process, 0, PAGE, ANON), (1 << 30) - PAGE);
        assert_eq!(place(process, 0, 1 << 30, ANON), LEGACY_BASE.next_multiple_of(HUGE));
        assert_eq!(place(process, 0, (1 << 30) + PAGE, ANON), LEGACY_BASE.next_multiple_of(HUGE) + (1 << 30));
        let end = process.mmap(0, DEFAULT_MAP_WINDOW - LEGACY_BASE, RW, ANON, None, 0);
        assert_eq!(end, Err(MmapError::NoSpace));
    });
}

#[test]
fn above_4g_mappings_are_placed_above_4_gib() {
    let above = ANON | MapFlags::ABOVE_4G;
    let fill = |process: &Process, start: u64, end: u64| {
        let len = end - start;
        process.mmap(start, len, Prot::empty(), ANON | MapFlags::FIXED, None, 0).unwrap();
    };
    laid_out(<Process>::DEFAULT_MMAP_BASE, Layout::TopDown, |_, process| {
        fill(process, FOUR_GIB + 4 * PAGE, DEFAULT_MAP_WINDOW);
        assert_eq!(try_place(process, 0, 5 * PAGE, above), Err(MmapError::NoSpace));
        assert_eq!(place(process, 0, PAGE, above), FOUR_GIB + 3 * PAGE);
        fill(process, FOUR_GIB, FOUR_GIB + 4 * PAGE);
        assert_eq!(try_place(process, 0, PAGE, above), Err(MmapError::NoSpace));
        // A hint below 4 GiB is still followed, and MAP_32BIT requests the second GiB explicitly.
        assert_eq!(place(process, 0x3000_0000, PAGE, above), 0x3000_0000);
        assert_eq!(try_place(process, 0x3000_0000, PAGE, above), Err(MmapError::NoSpace));
        assert_eq!(place(process, 0, PAGE, above | MapFlags::BIT32), LOW);
        assert_eq!(place(process, 0, PAGE, ANON), FOUR_GIB - PAGE);
    });
    upwards(|_, process| {
        fill(process, LEGACY_BASE, DEFAULT_MAP_WINDOW);
        assert_eq!(try_place(process, 0, PAGE, ANON), Err(MmapError::NoSpace), "below the base");
    });
}
