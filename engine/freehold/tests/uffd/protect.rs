//! Write protection by the pager (`src/uffd/protect.rs`). A store to a protected page waits for the pager
//! (`store_waits`); no store may succeed after the call that protects the page has returned (C-53). The tests
//! cover missing pages, shared memory, fork, moves and huge pages. The tests with gates (`support/gate.rs`)
//! make a second call during a migration or a fault.

use super::{
    gate::{Gated, before_lock, waits_for_lock},
    pools::START,
    *,
};
use freehold::{
    call::{Advice, RemapFlags},
    hugetlb::HugePageSize,
    remote::{AccessMode, PinFlags},
    space::AddressSpace,
    uffd::ProtectMode,
};
use freehold_sync::Rank;
use std::{sync::Arc, thread};

const ON: ProtectMode = ProtectMode::WP;
const OFF: ProtectMode = ProtectMode::empty();

/// Stores, and checks that the store waits until the pager removes the protection.
fn store_waits(world: &World, process: &Process, uffd: &Uffd, at: u64, value: u64) {
    with_pager(
        world,
        |cpu| process.store(cpu, at, value).unwrap(),
        || {
            assert_fault(uffd, at, FaultReason::WriteProtect, true);
            uffd.write_protect(at, PAGE, OFF).unwrap();
        },
    );
}

#[test]
fn store_to_a_protected_page_waits_for_the_pager() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 3, WP, Features::empty());
        fill(process, cpu, BASE, 2, 10);
        uffd.write_protect(BASE, 3 * PAGE, ON).unwrap();
        assert_filled(process, cpu, BASE, 2, 10);
        store_waits(world, process, &uffd, page(1), 21);
        // The page was not present, so it is not protected.
        process.store(cpu, page(2), 1u64).unwrap();
        // A forced write must not bypass the protection.
        let debugger = |_: &mut Vcpu| process.write_memory(page(0), &31u64.to_le_bytes(), AccessMode::Forced);
        let (written, ()) = with_pager(world, debugger, || {
            assert_fault(&uffd, page(0), FaultReason::WriteProtect, true);
            uffd.write_protect(page(0), PAGE, OFF).unwrap();
        });
        assert_eq!(written, Ok(8));
        assert_eq!([0, 1].map(|n| process.load(cpu, page(n))), [Ok(31u64), Ok(21)]);
    });
}

#[test]
fn write_protect_checks_errors_in_the_order_of_linux() {
    everywhere(|_, process, cpu| {
        let uffd = registered(process, 4, WP, Features::empty());
        uffd.unregister(page(2), PAGE).unwrap();
        let strange = ProtectMode::from_bits_retain(4);
        assert_eq!(uffd.write_protect(BASE + 1, PAGE, strange), Err(UffdError::Invalid));
        assert_eq!(uffd.write_protect(page(2), PAGE, strange), Err(UffdError::Invalid));
        let both = ON | ProtectMode::DONTWAKE;
        assert_eq!(
            uffd.write_protect(page(2), PAGE, both),
            Err(UffdError::Invalid),
            "DONTWAKE is only allowed without WP"
        );
        assert_eq!(uffd.write_protect(page(2), PAGE, ON), Err(UffdError::NotRegistered));
        fill(process, cpu, BASE, 4, 0);
        assert_eq!(
            uffd.write_protect(page(1), 2 * PAGE, ON),
            Err(UffdError::NotRegistered),
            "the part after the registered range"
        );
        assert_eq!(uffd.write_protect(page(8), PAGE, ON), Err(UffdError::NotRegistered), "nothing is mapped");
        // Holes are skipped.
        process.munmap(page(2), PAGE).unwrap();
        assert_eq!(uffd.write_protect(page(1), 3 * PAGE, ON), Ok(()));
        assert_eq!(uffd.write_protect(page(1), 7 * PAGE, OFF), Ok(()));
        assert_eq!(uffd.write_protect(page(2), PAGE, ON), Err(UffdError::NotRegistered));
        uffd.unregister(BASE, 4 * PAGE).unwrap();
        uffd.register(BASE, PAGE, MISSING).unwrap();
        assert_eq!(
            uffd.write_protect(BASE, PAGE, ON),
            Err(UffdError::NotRegistered),
            "not registered for write protection"
        );
    });
}

#[test]
fn copy_can_install_a_protected_page() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 2, WP | MISSING, Features::empty());
        assert_eq!(uffd.copy(BASE, &bytes(5), FillMode::WP), Ok(PAGE));
        assert_eq!(process.load(cpu, BASE), Ok(5u64));
        store_waits(world, process, &uffd, BASE, 6);
        // A zero page is protected, and then copied by a store.
        assert_eq!(uffd.zeropage(page(1), PAGE, WAKE), Ok(PAGE));
        uffd.write_protect(page(1), PAGE, ON).unwrap();
        store_waits(world, process, &uffd, page(1), 7);
        assert_eq!(process.load(cpu, page(1)), Ok(7u64));
    });
}

/// The fault of a pin, or of a read by another process, installs a protected page that is not present.
#[test]
fn protected_missing_page_is_pinned_and_read() {
    everywhere(|_, process, _| {
        let uffd = registered(process, 2, WP, Features::WP_UNPOPULATED);
        uffd.write_protect(BASE, 2 * PAGE, ON).unwrap();
        let mut found = [1; 8];
        assert_eq!(process.read_memory(page(0), &mut found, AccessMode::Plain), Ok(8));
        assert_eq!(found, [0; 8]);
        assert_eq!(process.pin_user_pages(page(1), 1, PinFlags::empty()).unwrap().len(), 1);
    });
}

/// An unpopulated page can be protected, and is protected once it is populated.
#[test]
fn wp_unpopulated_protects_missing_pages() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 4, WP, Features::WP_UNPOPULATED);
        uffd.write_protect(BASE, 4 * PAGE, ON).unwrap();
        assert_eq!(process.load(cpu, page(0)), Ok(0u64));
        store_waits(world, process, &uffd, page(0), 1);
        store_waits(world, process, &uffd, page(1), 2);
        // A discarded anonymous page loses its protection.
        process.madvise(page(2), PAGE, Advice::DontNeed).unwrap();
        process.store(cpu, page(2), 3u64).unwrap();
        uffd.write_protect(page(3), PAGE, OFF).unwrap();
        process.store(cpu, page(3), 4u64).unwrap();
        assert_filled(process, cpu, BASE, 4, 1);
        // A marker does not prevent a copy, but it prevents a zeropage.
        process.madvise(page(2), 2 * PAGE, Advice::DontNeed).unwrap();
        uffd.register(page(2), 2 * PAGE, WP | MISSING).unwrap();
        uffd.write_protect(page(2), 2 * PAGE, ON).unwrap();
        assert_eq!(uffd.zeropage(page(2), PAGE, WAKE), Err(UffdError::Present));
        with_pager(
            world,
            |cpu| assert_eq!(process.load(cpu, page(2)), Ok(9u64)),
            || {
                assert_fault(&uffd, page(2), FaultReason::Missing, false);
                assert_eq!(uffd.copy(page(2), &bytes(9), WAKE), Ok(PAGE));
            },
        );
    });
}

#[test]
fn shared_memory_stays_protected_after_removal() {
    everywhere(|world, process, cpu| {
        let file = shmem(world, 4);
        map_shmem(process, BASE, 4, MapFlags::SHARED, &file);
        let uffd = uffd(process, Features::empty());
        uffd.register(BASE, 4 * PAGE, WP).unwrap();
        fill(process, cpu, BASE, 2, 10);
        uffd.write_protect(BASE, 4 * PAGE, ON).unwrap();
        let protected = |number, cpu: &mut Vcpu| {
            store_waits(world, process, &uffd, page(number), 10 + number);
            uffd.write_protect(page(number), PAGE, ON).unwrap();
            assert_eq!(process.load(cpu, page(number)), Ok(10 + number));
        };
        protected(0, cpu);
        // The protection stays on pages that are removed in different ways and populated again, and on pages
        // that were never present.
        process.madvise(BASE, 4 * PAGE, Advice::DontNeed).unwrap();
        protected(0, cpu);
        protected(3, cpu);
        process.load::<u64>(cpu, page(1)).unwrap();
        let pfn = process.frame_at(page(1)).unwrap();
        assert_eq!(world.engine().try_to_unmap(pfn), Ok(1));
        protected(1, cpu);
        process.load::<u64>(cpu, page(1)).unwrap();
        world.engine().migrate(process.frame_at(page(1)).unwrap()).unwrap();
        protected(1, cpu);
        file.mapping().punch(0..PAGE).unwrap();
        assert_eq!(process.load(cpu, page(0)), Ok(0u64));
        protected(0, cpu);
        // Guards replace the markers.
        process.madvise(page(2), PAGE, Advice::GuardInstall).unwrap();
        process.madvise(page(2), PAGE, Advice::GuardRemove).unwrap();
        process.store(cpu, page(2), 1u64).unwrap();
        uffd.unregister(BASE, 4 * PAGE).unwrap();
        (0..4).for_each(|number| process.store(cpu, page(number), 1u64).unwrap());
    });
}

#[test]
fn protection_survives_mprotect_migration_and_fork() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 2, WP, Features::empty());
        fill(process, cpu, BASE, 2, 1);
        uffd.write_protect(BASE, 2 * PAGE, ON).unwrap();
        process.mprotect(BASE, PAGE, R).unwrap();
        process.mprotect(BASE, PAGE, RW).unwrap();
        store_waits(world, process, &uffd, page(0), 11);
        // The protection moves with the page to another frame.
        let pfn = process.frame_at(page(1)).unwrap();
        world.engine().migrate(pfn).unwrap();
        store_waits(world, process, &uffd, page(1), 12);
        // A store to a protected page that a child shares first waits for the pager and then copies.
        uffd.write_protect(BASE, 2 * PAGE, ON).unwrap();
        let child = Process::of(process.fork().unwrap());
        store_waits(world, process, &uffd, page(1), 13);
        assert_eq!((child.load(cpu, page(1)), process.load(cpu, page(1))), (Ok(12u64), Ok(13u64)));
        // The child is not registered.
        child.store(cpu, page(0), 14u64).unwrap();
        child.check();
        assert_eq!(process.load(cpu, page(0)), Ok(11u64));
    });
}

#[test]
fn unregister_and_close_remove_all_protection() {
    /// A way to end the protection.
    type End = fn(&Uffd);
    let ends: [End; 3] = [
        |uffd| uffd.unregister(BASE, 3 * PAGE).unwrap(),
        |uffd| uffd.close(),
        |uffd| {
            // The memory is registered again for another mode.
            uffd.unregister(BASE, PAGE).unwrap();
            uffd.register(BASE, 3 * PAGE, MISSING).unwrap();
            assert_eq!(uffd.write_protect(page(1), 2 * PAGE, OFF), Err(UffdError::NotRegistered));
        },
    ];
    for end in ends {
        everywhere(|_, process, cpu| {
            let uffd = registered(process, 3, WP, Features::WP_UNPOPULATED);
            fill(process, cpu, BASE, 2, 1);
            uffd.write_protect(BASE, 3 * PAGE, ON).unwrap();
            end(&uffd);
            process.store(cpu, page(0), 5u64).unwrap();
            process.store(cpu, page(1), 6u64).unwrap();
        });
    }
}

/// C-44: without the event, a moved mapping loses its protection. With the event, the mapping keeps its
/// protection.
#[test]
fn c44_moved_mapping_keeps_protection_only_with_the_event() {
    for features in [Features::WP_UNPOPULATED, Features::WP_UNPOPULATED | Features::EVENT_REMAP] {
        everywhere(|world, process, cpu| {
            let uffd = registered(process, 3, WP, features);
            fill(process, cpu, BASE, 2, 1);
            uffd.write_protect(BASE, 3 * PAGE, ON).unwrap();
            let to = page(600);
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            let remap = |_: &mut Vcpu| process.mremap(BASE, 3 * PAGE, 3 * PAGE, flags, to).unwrap();
            if features.contains(Features::EVENT_REMAP) {
                with_pager(world, remap, || match uffd.read() {
                    Ok(Message::Remap { from: BASE, to: at, len }) => assert_eq!((at, len), (to, 3 * PAGE)),
                    other => panic!("{other:?}"),
                });
                (0..3).for_each(|n| store_waits(world, process, &uffd, to + n * PAGE, 1 + n));
            } else {
                remap(cpu);
                fill(process, cpu, to, 3, 1);
            }
            assert_filled(process, cpu, to, 3, 1);
            assert!(uffd.try_read().is_none());
        });
    }
}

#[test]
fn protecting_a_part_splits_a_huge_page() {
    use freehold::engine::HugePages;
    let config = Config::new().huge_pages(HugePages::Always);
    for locking in Locking::ALL {
        World::with(16 << 20, config.clone()).live(locking, |world, process, cpu| {
            process.mmap(BASE, 2 * HUGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
            process.store(cpu, BASE + 5 * PAGE, 5u64).unwrap();
            assert_eq!(process.load(cpu, BASE + HUGE), Ok(0u64));
            let uffd = uffd(process, Features::empty());
            uffd.register(BASE, 2 * HUGE, WP).unwrap();
            uffd.write_protect(page(5), PAGE, ON).unwrap();
            uffd.write_protect(BASE + HUGE + PAGE, PAGE, ON).unwrap();
            process.store(cpu, page(4), 4u64).unwrap();
            store_waits(world, process, &uffd, page(5), 6);
            store_waits(world, process, &uffd, BASE + HUGE + PAGE, 7);
            process.store(cpu, BASE + HUGE + 2 * PAGE, 8u64).unwrap();
            assert_eq!([4, 5, 513, 514].map(|n| process.load(cpu, page(n))), [Ok(4u64), Ok(6), Ok(7), Ok(8)]);
        });
    }
}

/// C-53: no store succeeds after the call has returned, even if another call had removed the right to write
/// before.
#[test]
fn c53_no_store_succeeds_after_write_protect_returns() {
    everywhere(|world, process, _| {
        let uffd = registered(process, 1, WP, Features::SIGBUS);
        std::thread::scope(|scope| {
            let program = scope.spawn(|| {
                let mut cpu = world.machine.cpu(1);
                for value in 1u64.. {
                    if process.store(&mut cpu, BASE, value).is_err() {
                        return value;
                    }
                }
                0
            });
            let mut cpu = world.machine.cpu(2);
            until(|| process.load::<u64>(&mut cpu, BASE).unwrap() > 10);
            uffd.write_protect(BASE, PAGE, ON).unwrap();
            let seen = process.load::<u64>(&mut cpu, BASE).unwrap();
            assert_eq!(program.join().unwrap(), seen + 1);
            assert_eq!(process.load(&mut cpu, BASE), Ok(seen));
        });
    });
}

/// A discarded private page of a file keeps its protection, also while it is migrated and the protection is
/// in the migration entry.
#[test]
fn page_discarded_during_migration_stays_protected() {
    discarded_on_the_move(false);
}

#[test]
fn huge_page_discarded_during_migration_stays_protected() {
    discarded_on_the_move(true);
}

fn discarded_on_the_move(huge: bool) {
    for locking in Locking::ALL {
        let machine: Machine = Machine::new(MachineConfig::backed(6 * HUGE)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 3, None), 3);
        let space = AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        let (len, mapping) = match huge {
            false => (PAGE, Mapping::new(&engine, Zeroes, PAGE, true).unwrap()),
            true => (HUGE, Mapping::of_huge_pages(&engine, HugePageSize::Mib2, HUGE, false).unwrap()),
        };
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/file").unwrap();
        space.mmap(START, len, RW, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
        let config = UffdConfig::new().features(Features::SIGBUS);
        let uffd = Userfaultfd::new(&space, config).unwrap();
        uffd.register(START, len, WP).unwrap();
        space.handle_fault(START, Access::WRITE).unwrap();
        uffd.write_protect(START, len, ON).unwrap();
        let pfn = space.frame_at(START).unwrap();
        let inside = space.clone();
        gated.copy.put(move || {
            // Runs on another thread, because this thread holds the frame's lock.
            let discard = || inside.madvise(START, len, Advice::DontNeed).unwrap();
            thread::scope(|scope| scope.spawn(discard).join().unwrap());
        });
        let _ = engine.migrate(pfn);
        assert!(!gated.copy.is_waiting(), "the page was not migrated");
        assert_eq!(space.frame_at(START), None, "the page was not discarded");
        assert_eq!(space.rss().anon, 0);
        let refused = space.handle_fault(START, Access::WRITE).map(drop);
        assert_eq!(refused, Err(FaultError::Bus { addr: START }), "{locking:?}");
        space.handle_fault(START, Access::READ).unwrap();
        let refused = space.handle_fault(START, Access::WRITE).map(drop);
        assert_eq!(refused, Err(FaultError::Bus { addr: START }), "{locking:?}");
        uffd.unregister(START, len).unwrap();
        space.handle_fault(START, Access::WRITE).unwrap();
        space.check();
        drop((uffd, file, mapping, space, engine, gated));
        machine.accounting().assert_clean();
    }
}

/// C-53: a page is protected after a fault has looked up the VMA and before the fault locks the entry. The
/// fault must not make the page writable.
#[test]
fn c53_fault_in_progress_respects_new_protection() {
    for (locking, huge) in Locking::ALL.into_iter().flat_map(|locking| [(locking, false), (locking, true)]) {
        let machine: Machine = Machine::new(MachineConfig::backed(6 * HUGE)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 1, None), 1);
        let space = AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        let (len, rank, mapping) = match huge {
            false => (PAGE, Rank::PageTable, Mapping::new(&engine, Zeroes, PAGE, true).unwrap()),
            true => {
                let mapping = Mapping::of_huge_pages(&engine, HugePageSize::Mib2, HUGE, false).unwrap();
                (HUGE, Rank::PageTableUpper, mapping)
            }
        };
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/file").unwrap();
        space.mmap(START, len, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        let config = UffdConfig::new().features(Features::SIGBUS);
        let uffd = Arc::new(Userfaultfd::new(&space, config).unwrap());
        uffd.register(START, len, WP).unwrap();
        space.handle_fault(START, Access::WRITE).unwrap();
        // The next store faults for the right to write, although the page is not protected at the moment.
        [ON, OFF].into_iter().for_each(|mode| uffd.write_protect(START, len, mode).unwrap());
        let pager = uffd.clone();
        before_lock(rank, move || {
            // Runs on another thread, because this thread holds the VMA lock.
            let protect = || pager.write_protect(START, len, ON).unwrap();
            thread::scope(|scope| scope.spawn(protect).join().unwrap());
        });
        let refused = space.handle_fault(START, Access::WRITE).map(drop);
        assert!(!waits_for_lock(), "no page table was locked");
        assert_eq!(refused, Err(FaultError::Bus { addr: START }), "{locking:?}, huge: {huge}");
        uffd.write_protect(START, len, OFF).unwrap();
        space.handle_fault(START, Access::WRITE).unwrap();
        space.check();
        drop((uffd, file, mapping, space, engine, gated));
        machine.accounting().assert_clean();
    }
}
