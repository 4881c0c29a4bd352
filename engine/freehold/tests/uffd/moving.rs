//! UFFDIO_MOVE (`src/uffd/move_pages.rs`): pages that move within an address space. The moved frame must be
//! the same as before, and the source must be empty. The tests cover each kind of entry at the source, the
//! order of errors of Linux, and concurrent moves in both directions. A new kind of entry belongs in
//! `c42_c49_move_handles_every_kind_of_source_entry`.

use super::*;
use freehold::{call::Advice, uffd::MoveMode};

const PLAIN: MoveMode = MoveMode::empty();
const HOLES: MoveMode = MoveMode::ALLOW_SRC_HOLES;

#[test]
fn move_moves_frames_without_a_copy() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 8, MISSING, Features::MOVE);
        anon(process, page(600), 8);
        fill(process, cpu, page(600), 4, 10);
        let frame = process.frame_at(page(601));
        let program = |cpu: &mut Vcpu| process.load::<u64>(cpu, page(1)).unwrap();
        let (read, ()) = with_pager(world, program, || {
            assert_fault(&uffd, page(1), FaultReason::Missing, false);
            assert_eq!(uffd.move_pages(page(1), page(601), PAGE, PLAIN), Ok(PAGE));
        });
        assert_eq!((read, process.frame_at(page(1)), process.frame_at(page(601))), (11, frame, None));
        // The source is empty and reads as zeroes.
        assert_eq!(process.load(cpu, page(601)), Ok(0u64));
        process.madvise(page(601), PAGE, Advice::DontNeed).unwrap();
        // Moves the other pages, with and without the mode that allows holes.
        assert_eq!(
            uffd.move_pages(page(2), page(602), 3 * PAGE, PLAIN),
            Ok(2 * PAGE),
            "up to the first hole"
        );
        assert_eq!(uffd.move_pages(page(4), page(604), PAGE, PLAIN), Err(UffdError::SourceHole));
        assert_eq!(uffd.move_pages(page(4), page(604), 4 * PAGE, HOLES), Ok(4 * PAGE));
        assert_eq!(process.rss().anon, 4);
        assert_eq!([2, 3].map(|n| process.load(cpu, page(n))), [Ok(12u64), Ok(13)]);
        // The moved page is writable at once, is found by the reverse map, and can move again.
        process.store(cpu, page(2), 22u64).unwrap();
        let pfn = process.frame_at(page(3)).unwrap();
        world.engine().migrate(pfn).unwrap();
        assert_eq!(process.load(cpu, page(3)), Ok(13u64));
        process.check();
        // Moves the page within one VMA, and back to its first address.
        assert_eq!(uffd.move_pages(page(5), page(3), PAGE, PLAIN), Ok(PAGE));
        uffd.register(page(600), 8 * PAGE, MISSING).unwrap();
        assert_eq!(uffd.move_pages(page(607), page(5), PAGE, PLAIN), Ok(PAGE));
        assert_eq!(process.load(cpu, page(607)), Ok(13u64));
    });
}

#[test]
fn move_checks_errors_in_the_order_of_linux() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 4, MISSING, Features::MOVE);
        anon(process, page(600), 4);
        fill(process, cpu, page(600), 4, 1);
        let from = page(600);
        use UffdError::*;
        let strange = MoveMode::from_bits_retain(4);
        assert_eq!(uffd.move_pages(BASE + 1, from, PAGE, PLAIN), Err(Invalid));
        assert_eq!(uffd.move_pages(BASE, from + 1, PAGE, PLAIN), Err(Invalid));
        assert_eq!(uffd.move_pages(BASE, from, 0, PLAIN), Err(Invalid));
        assert_eq!(uffd.move_pages(BASE, page(99), PAGE, strange), Err(Invalid));
        assert_eq!(uffd.move_pages(BASE, page(99), PAGE, PLAIN), Err(NotRegistered), "no source");
        assert_eq!(uffd.move_pages(page(99), from, PAGE, PLAIN), Err(NotRegistered), "no target");
        assert_eq!(uffd.move_pages(page(2), from, 3 * PAGE, PLAIN), Err(Invalid), "target too short");
        assert_eq!(uffd.move_pages(BASE, page(602), 3 * PAGE, PLAIN), Err(Invalid), "source too short");
        assert_eq!(uffd.move_pages(from, BASE, PAGE, PLAIN), Err(Invalid), "target not registered");
        let other = Userfaultfd::new(process.space(), UffdConfig::default()).unwrap();
        assert_eq!(
            other.move_pages(BASE, from, PAGE, PLAIN),
            Err(Invalid),
            "registered with another context"
        );
        process.mprotect(from, PAGE, R).unwrap();
        assert_eq!(uffd.move_pages(BASE, from, PAGE, PLAIN), Err(Invalid), "rights differ");
        process.mprotect(BASE, PAGE, R).unwrap();
        assert_eq!(uffd.move_pages(BASE, from, PAGE, PLAIN), Err(Invalid), "not writable");
        process.mprotect(BASE, PAGE, RW).unwrap();
        process.mprotect(from, PAGE, RW).unwrap();
        process.mlock(from, PAGE).unwrap();
        assert_eq!(uffd.move_pages(BASE, from, PAGE, PLAIN), Err(Invalid), "one VMA is locked");
        process.munlock(from, PAGE).unwrap();
        let file = shmem(world, 1);
        map_shmem(process, page(700), 1, MapFlags::SHARED, &file);
        map_shmem(process, page(702), 1, MapFlags::PRIVATE, &file);
        assert_eq!(uffd.move_pages(BASE, page(700), PAGE, PLAIN), Err(Invalid), "shared");
        assert_eq!(uffd.move_pages(BASE, page(702), PAGE, PLAIN), Err(Invalid), "a file");
        // A present target page is reported before a missing source page.
        assert_eq!(uffd.copy(page(1), &bytes(9), WAKE), Ok(PAGE));
        process.madvise(page(601), PAGE, Advice::DontNeed).unwrap();
        assert_eq!(uffd.move_pages(page(1), page(601), PAGE, PLAIN), Err(Present));
        assert_eq!(uffd.move_pages(BASE, from, 2 * PAGE, PLAIN), Ok(PAGE), "only a part was moved");
        assert_eq!(process.load(cpu, page(1)), Ok(9u64));
    });
}

/// C-42, C-49: every kind of entry is the source of a move.
#[test]
fn c42_c49_move_handles_every_kind_of_source_entry() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 8, MISSING | WP, Features::MOVE | Features::WP_UNPOPULATED);
        let from = page(600);
        anon(process, from, 8);
        uffd.register(from, 8 * PAGE, WP | MISSING).unwrap();
        // The source is the shared zero page.
        assert_eq!(uffd.zeropage(from, PAGE, WAKE), Ok(PAGE));
        assert_eq!(uffd.move_pages(BASE, from, PAGE, PLAIN), Ok(PAGE));
        assert_eq!((process.load(cpu, BASE), process.rss().anon), (Ok(0u64), 0));
        assert_eq!(uffd.move_pages(page(1), from, PAGE, PLAIN), Err(UffdError::SourceHole));
        // Markers.
        uffd.poison(from, PAGE, WAKE).unwrap();
        process.madvise(page(601), PAGE, Advice::GuardInstall).unwrap();
        uffd.write_protect(page(602), PAGE, freehold::uffd::ProtectMode::WP).unwrap();
        for n in 0..3 {
            let moved = uffd.move_pages(page(1), page(600 + n), PAGE, HOLES);
            assert_eq!(moved, Err(UffdError::BadAddress), "marker {n}");
        }
        // A write-protected page is not protected at its target.
        assert_eq!(uffd.copy(page(603), &bytes(3), FillMode::WP), Ok(PAGE));
        assert_eq!(uffd.move_pages(page(3), page(603), PAGE, PLAIN), Ok(PAGE));
        process.store(cpu, page(3), 4u64).unwrap();
        // move_pages refuses a page that a child shares. After the child has ended, the call still refuses
        // the page until a store finds that the page is exclusive.
        assert_eq!(uffd.copy(page(604), &bytes(4), WAKE), Ok(PAGE));
        let child = Process::of(process.fork().unwrap());
        assert_eq!(uffd.move_pages(page(4), page(604), PAGE, PLAIN), Err(UffdError::Busy));
        drop(child);
        assert_eq!(
            uffd.move_pages(page(4), page(604), PAGE, PLAIN),
            Err(UffdError::Busy),
            "the page has not been found exclusive yet"
        );
        process.store(cpu, page(604), 5u64).unwrap();
        assert_eq!(uffd.move_pages(page(4), page(604), PAGE, PLAIN), Ok(PAGE));
        assert_eq!(process.load(cpu, page(4)), Ok(5u64));
        let _ = world;
    });
}

#[test]
fn move_splits_a_huge_page() {
    use freehold::engine::HugePages;
    let config = Config::new().huge_pages(HugePages::Always);
    for locking in Locking::ALL {
        World::with(16 << 20, config.clone()).live(locking, |_, process, cpu| {
            process.mmap(BASE + HUGE, HUGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
            process.store(cpu, page(512 + 7), 7u64).unwrap();
            let uffd = registered(process, 512, MISSING, Features::MOVE);
            assert_eq!(uffd.move_pages(BASE, BASE + HUGE, HUGE, PLAIN), Ok(HUGE));
            assert_eq!((process.load(cpu, page(7)), process.rss().anon), (Ok(7u64), 512));
            assert!(process.frame_at(page(512 + 7)).is_none());
        });
    }
}

/// C-50: two pagers move pages back and forth while other threads map, unmap and fork.
#[test]
fn c50_concurrent_moves_unmaps_and_forks() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 8, MISSING, Features::MOVE);
        anon(process, page(600), 8);
        uffd.register(page(600), 8 * PAGE, MISSING).unwrap();
        for n in 0..4 {
            uffd.copy(page(n), &bytes(n), WAKE).unwrap();
        }
        std::thread::scope(|scope| {
            for (from, to) in [(0, 600), (600, 0)] {
                let uffd = &uffd;
                scope.spawn(move || {
                    for round in 0..200 {
                        let n = round % 4;
                        match uffd.move_pages(page(to + n), page(from + n), PAGE, PLAIN) {
                            // The page may be at the other address at the moment.
                            Ok(_) | Err(UffdError::SourceHole | UffdError::Present | UffdError::Busy) => {}
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..50 {
                    anon(process, page(20), 1);
                    process.mprotect(page(4), PAGE, R).unwrap();
                    process.mprotect(page(4), PAGE, RW).unwrap();
                    process.munmap(page(20), PAGE).unwrap();
                }
            });
            scope.spawn(|| {
                for _ in 0..100 {
                    for n in 0..4 {
                        for at in [page(n), page(600 + n)] {
                            if let Some(pfn) = process.frame_at(at) {
                                let _ = world.engine().migrate(pfn);
                            }
                        }
                    }
                }
            });
        });
        assert_eq!(process.rss().anon, 4);
        for n in 0..4 {
            let at = [page(n), page(600 + n)].into_iter().find(|at| process.frame_at(*at).is_some()).unwrap();
            assert_eq!(process.load(cpu, at), Ok(n));
        }
    });
}
