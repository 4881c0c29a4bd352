//! A process that chooses addresses, offsets, orders and lengths to make other processes wait. Each wait is
//! bounded, or ends with a fatal signal.
//!
//! The tests check depths of trees, addresses, numbers of lock acquisitions, and how many bytes a killed call
//! covered. No test checks a time. `docs/reference/bounds.md` lists all such loops and names the test of
//! each; a new row there may need a test here.

use crate::support::*;
use freehold::{
    PageRange,
    call::Advice,
    error::{ForkError, UffdError},
    remote::{AccessMode, IoVec, PinFlags},
    uffd::{FillMode, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
};

/// Returns a hash of a node's address. An earlier version of the tree of a file's VMAs placed its nodes by
/// this hash. The hash uses no secret, so a program could compute it.
fn hash(addr: usize) -> u64 {
    let product = (addr as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

/// The slab hands out the VMA that was freed last. A process can therefore learn the address of its next VMA
/// from a mapping that it unmaps at once. With the tree of an earlier version, the process could then choose
/// offsets in the file by that address to make the tree as deep as possible.
#[test]
fn offsets_chosen_by_vma_addresses_do_not_degrade_the_tree() {
    const VMAS: u64 = 400;
    // The test does not know the offset of the link in a VMA, so it tries all of them.
    for link in (64..192).step_by(8) {
        World::new().live(Locking::default(), |world, hostile, _| {
            let mapping = Mapping::new(world.engine(), Disk, i64::MAX as u64, false).unwrap();
            let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
            for n in 0..VMAS {
                let at = BASE + 2 * n * PAGE;
                let map = |index: u64| {
                    let flags = MapFlags::SHARED | MapFlags::FIXED;
                    hostile.mmap(at, PAGE, R, flags, Some(&file), index * PAGE).unwrap();
                    core::ptr::from_ref(&*hostile.space().find_vma(at).unwrap()).addr()
                };
                let vma = map(0);
                hostile.munmap(at, PAGE).unwrap();
                assert_eq!(map(hash(vma + link) >> 14), vma, "the slab hands out the same VMA again");
            }
            // Verifies the depth, which bounds how far mmap and munmap of other processes descend.
            mapping.check();
            let other = world.process(Locking::default());
            for n in 0..VMAS {
                let at = other.mmap(0, PAGE, R, MapFlags::SHARED, Some(&file), n << 40).unwrap();
                mapping.check();
                if n % 2 == 0 {
                    other.munmap(at, PAGE).unwrap();
                }
            }
            mapping.check();
            drop(other);
            mapping.check();
        });
    }
}

/// Maps a stack of one page. The stack needs 256 free pages below it.
fn stack(process: &Process, at: u64) {
    let flags = ANON | MapFlags::GROWSDOWN | MapFlags::FIXED_NOREPLACE;
    assert_eq!(process.mmap(at, PAGE, RW, flags, None, 0), Ok(at));
}

/// Number of pages between two stacks: too few for any mapping between them.
const BETWEEN: u64 = 258;

/// Maps this number of stacks downwards from the mmap base, and below the stacks two mappings with a gap of 8
/// pages between them. Then maps 4 more pages, and returns the distance in pages from the first of the two
/// mappings down to the new pages.
fn place_below(stacks: u64) -> u64 {
    let world = World::new();
    let config = SpaceConfig::default();
    let process = Process::new(world.engine(), &config).unwrap();
    let mut at = <Process>::DEFAULT_MMAP_BASE - PAGE;
    for _ in 0..stacks {
        stack(&process, at);
        at -= (BETWEEN + 1) * PAGE;
    }
    anon(&process, at, 1);
    anon(&process, at - 9 * PAGE, 1);
    let found = process.mmap(0, 4 * PAGE, R, ANON, None, 0).unwrap();
    process.check();
    drop(process);
    world.end();
    (at - found) / PAGE
}

/// Maps the same layout upwards from a third of the address space, with no free addresses below. Then maps 4
/// more pages, and returns the distance in pages from the first of the two mappings up to the new pages.
fn place_above(stacks: u64) -> u64 {
    let world = World::new();
    let base = 128 << 20;
    let config = SpaceConfig::new().mmap_base(Some(base));
    let process = Process::new(world.engine(), &config).unwrap();
    anon(&process, 1 << 16, (base - (1 << 16)) / PAGE);
    let mut at = <Process>::LEGACY_BASE;
    for _ in 0..stacks {
        at += BETWEEN * PAGE;
        stack(&process, at);
        at += PAGE;
    }
    // The search keeps no gap in front of these stacks, so this mapping fills the gap.
    anon(&process, at, 1);
    anon(&process, at + 9 * PAGE, 1);
    let found = process.mmap(0, 4 * PAGE, R, ANON, None, 0).unwrap();
    process.check();
    drop(process);
    world.end();
    (found - at) / PAGE
}

/// A search for free addresses skips a limited number of stacks one by one, as Linux does, and finds the
/// first gap that is large enough. If there are more stacks, the search takes a gap that has room next to a
/// stack, although a nearer gap exists.
#[test]
fn gap_search_skips_a_bounded_number_of_stacks() {
    assert_eq!([0, 1, 30, 63].map(place_below), [4; 4]);
    assert_eq!([64, 65, 300].map(place_below), [13; 3]);
    assert_eq!([0, 1, 30, 63].map(place_above), [1; 4]);
    assert_eq!([64, 65, 300].map(place_above), [10; 3]);
}

/// A call over a range of any length ends early if a fatal signal is pending.
#[test]
fn calls_of_any_length_end_with_a_fatal_signal() {
    const PAGES: u64 = 300;
    World::with(32 << 20, Config::default()).live(Locking::default(), |_, process, _| {
        let space = process.space();
        // The rights alternate, so that no mapping merges with its neighbours.
        for n in 0..PAGES {
            let rights = if n % 2 == 0 { RW } else { RW | Prot::EXEC };
            process.mmap(BASE + n * PAGE, PAGE, rights, ANON | MapFlags::FIXED, None, 0).unwrap();
        }
        let short = |pages: u64| assert!(0 < pages && pages < PAGES, "{pages} of {PAGES} pages");
        let mut bytes = vec![0; (PAGES * PAGE) as usize];
        let read = killed(|| space.read_memory(BASE, &mut bytes, AccessMode::Plain));
        short(read.unwrap() as u64 / PAGE);
        let written = killed(|| space.write_memory(BASE, &bytes, AccessMode::Forced));
        short(written.unwrap() as u64 / PAGE);
        process.madvise(BASE, PAGES * PAGE, Advice::DontNeed).unwrap();
        for fast in [false, true] {
            let pins = killed(|| match fast {
                true => space.pin_user_pages_fast(BASE, PAGES as usize, PinFlags::WRITE),
                false => space.pin_user_pages(BASE, PAGES as usize, PinFlags::WRITE),
            });
            short(pins.unwrap().len() as u64);
            process.madvise(BASE, PAGES * PAGE, Advice::DontNeed).unwrap();
        }
        let populated = killed(|| process.madvise(BASE, PAGES * PAGE, Advice::PopulateWrite));
        assert!(populated.is_err(), "{populated:?}");
        short(process.rss().anon as u64);
        assert_eq!(killed(|| space.fork()).err(), Some(ForkError::Killed));
        process.check();
    });
}

/// A transfer between two address spaces ends early if a fatal signal is pending.
#[test]
fn transfers_of_any_length_end_with_a_fatal_signal() {
    const PAGES: u64 = 2_000;
    World::with(32 << 20, Config::default()).live(Locking::default(), |world, process, _| {
        let other = world.process(Locking::default());
        let all = [IoVec { base: BASE, len: PAGES * PAGE }];
        for space in [process, &other] {
            anon(space, BASE, PAGES);
        }
        let moved = killed(|| process.space().process_vm_readv(&all, other.space(), &all)).unwrap() as u64;
        assert!(0 < moved && moved < PAGES * PAGE, "{moved:#x}");
        process.check();
    });
}

/// A file is mapped over more addresses than a walk could visit, and has three dirty pages and many clean
/// ones in its cache. Write-back takes the lock of the file's VMAs only a few times.
#[test]
fn write_back_visits_cached_pages_instead_of_mapped_ranges() {
    const BYTES: u64 = <Process>::MAP_WINDOW_END.next_power_of_two() / 4;
    let config = Config::new().lock_stats(true);
    World::with(16 << 20, config).live(Locking::default(), |world, process, cpu| {
        let mapping = Mapping::new(world.engine(), Disk, i64::MAX as u64, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        let at = process.mmap(0, BYTES, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        mapping.read_at(PAGE, &mut vec![0; 2000 * PAGE as usize]).unwrap();
        let places = [0, 1 << 30, BYTES - PAGE];
        for place in places {
            process.store(cpu, at + place, 7u64).unwrap();
        }
        let taken = || world.engine().file_lock_stats().unwrap().read.acquired;
        let before = taken();
        mapping.write_back(PageRange::ALL).unwrap();
        assert!(taken() - before < 20, "the lock was taken {} times", taken() - before);
        for place in places {
            assert_eq!(world.engine().mkclean(process.frame_at(at + place).unwrap()), Ok(0));
        }
    });
}

/// Calls of a pager over a range of any length end early if a fatal signal is pending.
#[test]
fn fills_of_any_length_end_with_a_fatal_signal() {
    const PAGES: u64 = 1 << 13;
    World::with(32 << 20, Config::default()).live(Locking::default(), |_, process, _| {
        anon(process, BASE, PAGES);
        let uffd = Userfaultfd::new(process.space(), UffdConfig::default()).unwrap();
        uffd.register(BASE, PAGES * PAGE, RegisterMode::MISSING).unwrap();
        let filled = killed(|| uffd.zeropage(BASE, PAGES * PAGE, FillMode::empty())).unwrap();
        assert!(0 < filled && filled < PAGES * PAGE, "{filled:#x}");
        let large = BASE + PAGES * PAGE;
        process.mmap(large, 1 << 37, RW, ANON | MapFlags::FIXED | MapFlags::NORESERVE, None, 0).unwrap();
        uffd.register(large, 1 << 37, RegisterMode::WP).unwrap();
        let protected = killed(|| uffd.write_protect(large, 1 << 37, ProtectMode::WP));
        assert_eq!(protected, Err(UffdError::Killed));
        process.check();
    });
}
