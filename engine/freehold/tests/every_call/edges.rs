//! Arguments and settings at the edges of their ranges. If the engine cannot honour a value, it rounds the
//! value, caps it, or refuses it with an error that names the problem. Each test states which of the three
//! happens. No call panics. `numbers.rs` tries many more numbers, but checks only that no call panics. A new
//! setting of an engine or a space needs its edges in the first two tests.

use crate::support::*;
use freehold::{
    PageCount, PageIndex,
    call::RemapFlags,
    engine::{HugePages, Overcommit},
    error::{EngineError, HeapError, MincoreError, MmapError, MremapError, SpaceError},
    file::{FillError, Frames, Segment, Special, Zeroes},
    hugetlb::HugePageSize,
    rmap::{MigrateError, OfflineError, PageError},
    vma::flags::VmFlags,
};

/// Largest size of a file in bytes.
const LARGEST: u64 = i64::MAX as u64;

#[test]
fn impossible_space_settings_are_refused() {
    let world = World::new();
    let make = |config: &SpaceConfig| Process::new(world.engine(), config).map(drop);
    let tame = SpaceConfig::default;
    for mmap_base in [u64::MAX, TASK_SIZE + PAGE, TASK_SIZE - 1, 1, 1 << 63] {
        assert_eq!(make(&tame().mmap_base(Some(mmap_base))), Err(SpaceError::MmapBase), "{mmap_base:#x}");
    }
    for brk in [u64::MAX, TASK_SIZE + 1, 1 << 63] {
        assert_eq!(make(&tame().brk(Some(brk))), Err(SpaceError::Heap), "{brk:#x}");
    }
    #[expect(clippy::reversed_empty_ranges, reason = "that is the point")]
    for data in [9999..3, 0..u64::MAX, TASK_SIZE..TASK_SIZE + 1, u64::MAX..0] {
        assert_eq!(make(&tame().data(data)), Err(SpaceError::Data));
    }
    // Settings that leave only few addresses are accepted, and a space with such settings serves a fault.
    for (mmap_base, brk) in [(0, 0), (<Process>::MAP_WINDOW_END, TASK_SIZE), (PAGE, 3)] {
        let config = tame().mmap_base(Some(mmap_base)).brk(Some(brk)).data(TASK_SIZE..TASK_SIZE);
        let process = Process::new(world.engine(), &config).unwrap();
        let at = process.mmap(0, PAGE, RW, ANON, None, 0).unwrap();
        process.store(&mut world.machine.cpu(0), at, 1u64).unwrap();
        assert_eq!(process.brk(u64::MAX), Ok(brk));
        assert_eq!(process.set_heap(0..u64::MAX), Err(HeapError::Invalid));
        assert_eq!(process.set_heap(TASK_SIZE..TASK_SIZE), Ok(()));
        process.check();
    }
    world.end();
}

#[test]
fn impossible_engine_settings_are_refused() {
    let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
    for mmap_min_addr in [TASK_SIZE + 1, u64::MAX] {
        let made = Engine::new(machine.clone(), Config::new().mmap_min_addr(mmap_min_addr));
        assert_eq!(made.map(drop), Err(EngineError::LowestAddress));
    }
    machine.accounting().assert_clean();
    let wild = Config::new()
        .max_map_count(u64::MAX)
        .mmap_min_addr(TASK_SIZE)
        .stack_gap(u64::MAX)
        .overcommit(Overcommit::Heuristic(PageCount::ZERO))
        .huge_pages(HugePages::Always);
    let world = World::with(16 << 20, wild);
    let process = world.process(Locking::default());
    // No address is high enough for a mapping.
    assert_eq!(process.mmap(0, PAGE, R, ANON, None, 0), Err(MmapError::NoSpace));
    drop(process);
    world.end();
}

#[test]
fn special_mapping_refuses_flags_of_other_memory() {
    World::new().live(Locking::default(), |world, process, _| {
        let special = Special::new(world.engine(), Frames::new("[it]", &[]).unwrap()).unwrap();
        let wrong =
            VmFlags::UFFD | VmFlags::HUGETLB | VmFlags::GROWSDOWN | VmFlags::DROPPABLE | VmFlags::WIPEONFORK;
        for flag in wrong.iter().chain([VmFlags::PKEY, VmFlags::from_bits_retain(1 << 63)]) {
            let installed = process.install_special(0, PAGE, VmFlags::READ | flag, &special);
            assert_eq!(installed, Err(MmapError::Invalid), "{flag:?}");
        }
    });
}

#[test]
fn file_sizes_are_capped_at_the_largest_size() {
    let world = World::new();
    let engine = world.engine();
    let size = |mapping: Counted<Mapping<Machine>>| {
        assert_eq!(mapping.fill(PageIndex::new(u64::MAX)), Err(FillError::BeyondEnd));
        mapping.size()
    };
    assert_eq!(size(Mapping::new(engine, Zeroes, u64::MAX, true).unwrap()), LARGEST);
    assert_eq!(size(Mapping::memfd(engine, LARGEST + 1).unwrap()), LARGEST);
    assert_eq!(Segment::new(engine, 1, u64::MAX).unwrap().mapping().size(), LARGEST);
    let page = HugePageSize::Mib2;
    let huge = Mapping::of_huge_pages(engine, page, 0u64.wrapping_sub(page.bytes()), false).unwrap();
    assert_eq!(size(huge), LARGEST + 1 - page.bytes());
    world.end();
}

#[test]
fn lay_out_adds_no_small_pages_to_a_hugetlb_file() {
    let world = World::new();
    let file = Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, 4 << 20, false).unwrap();
    file.lay_out().unwrap();
    assert!(!file.has_page(PageIndex::new(0)), "a small page instead of a huge page");
    drop(file);
    world.end();
}

#[test]
fn reports_round_ranges_to_whole_pages() {
    World::new().live(Locking::default(), |_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        let mut pages = 0;
        process.pagemap(BASE + 1..BASE + PAGE + 1, |part| {
            pages += (part.range.end() - part.range.start()) / PAGE
        });
        assert_eq!(pages, 2);
        process.pagemap(BASE + 3 * PAGE + 5..u64::MAX, |part| {
            assert_eq!(part.range, BASE + 3 * PAGE..BASE + 4 * PAGE)
        });
        assert_eq!(process.smaps(BASE + PAGE + 7).next().unwrap().usage.rss, 3 * PAGE);
        assert_eq!(process.mincore(BASE, 4 * PAGE, &mut [0; 3]), Err(MincoreError::Invalid));
        assert_eq!(process.mincore(BASE, USER_END / 2, &mut []), Err(MincoreError::Invalid));
    });
}

#[test]
fn unknown_nodes_and_frames_are_refused() {
    let world = World::new();
    let (engine, size) = (world.engine(), HugePageSize::Mib2);
    for node in [1, 7, usize::MAX] {
        assert_eq!(engine.resize_huge_pool(size, 1, Some(node)), 0);
        assert_eq!(engine.huge_pool(size).counts(Some(node)).total, 0);
    }
    for pfn in [u64::MAX, 1 << 52, 1 << 63].map(Pfn::new) {
        assert_eq!(engine.migrate(pfn), Err(MigrateError::NoPage));
        assert_eq!(engine.memory_failure(pfn), Err(OfflineError::Busy));
        assert_eq!(engine.soft_offline(pfn), Err(OfflineError::Busy));
        assert_eq!(engine.try_to_unmap(pfn), Err(PageError::NoPage));
        assert_eq!(engine.mkclean(pfn), Err(PageError::NoPage));
        assert_eq!(engine.referenced(pfn), Err(PageError::NoPage));
        assert_eq!(engine.entries_of(pfn), 0);
    }
    world.end();
}

#[test]
fn mremap_refuses_a_length_that_overflows_when_rounded() {
    let world = World::with(24 << 20, Config::default());
    world.engine().resize_huge_pool(HugePageSize::Mib2, 2, None);
    let process = world.process(Locking::default());
    let at = process.mmap(0, 4 << 20, RW, ANON | MapFlags::HUGETLB, None, 0).unwrap();
    for len in [u64::MAX - PAGE + 1, u64::MAX - (1 << 20)] {
        let moved = process.mremap(at, len & !(PAGE - 1), 2 << 20, RemapFlags::empty(), 0);
        assert_eq!(moved, Err(MremapError::Invalid), "{len:#x}");
    }
    drop(process);
    world.end();
}
