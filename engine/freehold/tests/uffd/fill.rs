//! Fills (`src/uffd/fill.rs`): small pages that the pager supplies by COPY, ZEROPAGE, CONTINUE and POISON.
//! The tests check the contents, the threads that are woken, and the order in which errors are checked. The
//! order is that of Linux. Fills of huge pages are tested in `pools.rs`, fills during a change in
//! `changes_during_fills.rs`. A new error is one more line of `fills_check_errors_in_the_order_of_linux`.

use super::*;
use freehold::{
    PageIndex,
    call::Advice,
    error::{Errno, PopulateError},
};

#[test]
fn copy_and_zeropage_resolve_missing_faults() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 4, MISSING, Features::empty());
        let program = |cpu: &mut Vcpu| {
            assert_eq!(process.load(cpu, page(1) + 8), Ok(0u64));
            process.store(cpu, page(2), 5u64).unwrap();
        };
        with_pager(world, program, || {
            assert_fault(&uffd, page(1), FaultReason::Missing, false);
            assert_eq!(uffd.copy(page(1), &bytes(71), WAKE), Ok(PAGE));
            assert_fault(&uffd, page(2), FaultReason::Missing, true);
            assert_eq!(uffd.zeropage(page(2), PAGE, WAKE), Ok(PAGE));
        });
        assert!(uffd.try_read().is_none());
        assert_eq!(process.load(cpu, page(1)), Ok(71u64));
        assert_eq!(process.load(cpu, page(2)), Ok(5u64));
        assert_eq!(process.rss().anon, 2);
        // Pages that did not fault can be filled in advance, several at once.
        process.madvise(BASE, 4 * PAGE, Advice::DontNeed).unwrap();
        assert_eq!(uffd.copy(BASE, &pages_of(10..14), WAKE), Ok(4 * PAGE));
        assert_filled(process, cpu, BASE, 4, 10);
    });
}

#[test]
fn fills_check_errors_in_the_order_of_linux() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 4, MISSING, Features::EVENT_REMAP);
        let other = Userfaultfd::new(process.space(), UffdConfig::default()).unwrap();
        use UffdError::*;
        let strange = FillMode::from_bits_retain(4);
        assert_eq!(uffd.copy(BASE, &[], WAKE), Err(Invalid), "no bytes");
        assert_eq!(uffd.copy(BASE, &[0; 5], WAKE), Err(Invalid), "not a page");
        assert_eq!(uffd.copy(BASE + 1, &bytes(0), WAKE), Err(Invalid), "unaligned");
        assert_eq!(uffd.copy(u64::MAX - PAGE + 1, &bytes(0), WAKE), Err(Invalid), "beyond the address space");
        assert_eq!(uffd.copy(page(9), &bytes(0), strange), Err(Invalid), "the mode is checked first");
        assert_eq!(uffd.zeropage(BASE, PAGE, FillMode::WP), Err(Invalid), "zeropage takes no WP mode");
        assert_eq!(uffd.poison(BASE, PAGE, FillMode::WP), Err(Invalid));
        assert_eq!(uffd.copy(page(9), &bytes(0), WAKE), Err(NotRegistered), "nothing is mapped");
        assert_eq!(
            uffd.copy(page(3), &pages_of(0..2), WAKE),
            Err(NotRegistered),
            "the range is not in one VMA"
        );
        assert_eq!(other.copy(BASE, &bytes(0), WAKE), Err(NotRegistered), "registered with another context");
        assert_eq!(
            uffd.copy(BASE, &bytes(0), FillMode::WP),
            Err(Invalid),
            "not registered for write protection"
        );
        assert_eq!(uffd.continue_with(BASE, PAGE, WAKE), Err(Invalid), "anonymous memory has no cache");
        assert_eq!(uffd.copy(page(1), &bytes(1), WAKE), Ok(PAGE));
        // A fill fails at a page that is present. If pages were filled before that page, the fill returns the
        // number of their bytes.
        for fill in [Uffd::zeropage, Uffd::poison] {
            assert_eq!(fill(&uffd, page(1), PAGE, WAKE), Err(Present));
        }
        assert_eq!(uffd.copy(page(1), &pages_of(5..7), WAKE), Err(Present));
        assert_eq!(uffd.zeropage(BASE, 3 * PAGE, WAKE), Ok(PAGE), "only a part was filled");
        assert_eq!(uffd.zeropage(BASE, 3 * PAGE, WAKE), Err(Present));
        process.madvise(page(2), PAGE, Advice::GuardInstall).unwrap();
        assert_eq!(uffd.zeropage(page(2), PAGE, WAKE), Err(Present), "a guard");
        assert_eq!(uffd.poison(page(2), PAGE, WAKE), Err(Present), "a guard");
        assert_eq!(uffd.copy(page(2), &bytes(0), WAKE), Ok(PAGE), "copy replaces a guard, as on Linux");
        assert_eq!(process.load(cpu, page(1)), Ok(1u64));
        assert_eq!(
            [Present, Changing, BadAddress, NotRegistered].map(UffdError::errno),
            [Errno::EEXIST, Errno::EAGAIN, Errno::EFAULT, Errno::ENOENT]
        );
        assert_eq!(uffd.wake(BASE + 1, PAGE), Err(Invalid));
        // A fill ignores the rights of the VMA: read-only memory gets pages, too.
        process.mprotect(page(3), PAGE, R).unwrap();
        assert_eq!(uffd.copy(page(3), &bytes(3), WAKE), Ok(PAGE));
        assert_eq!(process.load(cpu, page(3)), Ok(3u64));
        assert!(process.store(cpu, page(3), 1u64).is_err());
        process.mprotect(page(3), PAGE, RW).unwrap();
        process.store(cpu, page(3), 1u64).unwrap();
        let _ = world;
    });
}

#[test]
fn fills_wake_only_threads_in_their_range() {
    everywhere(|world, process, _| {
        let uffd = registered(process, 2, MISSING, Features::EXACT_ADDRESS);
        let program = |cpu: &mut Vcpu| process.load::<u64>(cpu, page(1) + 16).unwrap();
        let (read, ()) = with_pager(world, program, || {
            assert_fault(&uffd, page(1) + 16, FaultReason::Missing, false);
            // After a fill elsewhere and a fill with DONTWAKE, the thread still sleeps and has not faulted
            // again.
            assert_eq!(uffd.copy(page(0), &bytes(1), WAKE), Ok(PAGE));
            assert_eq!(uffd.copy(page(1), &bytes(2), FillMode::DONTWAKE), Ok(PAGE));
            assert!(uffd.try_read().is_none());
            uffd.wake(page(0), 2 * PAGE).unwrap();
        });
        assert_eq!(read, 0);
        // A thread that is woken without a page faults again.
        process.madvise(page(1), PAGE, Advice::DontNeed).unwrap();
        with_pager(world, program, || {
            assert_fault(&uffd, page(1) + 16, FaultReason::Missing, false);
            uffd.wake(page(1), PAGE).unwrap();
            assert_fault(&uffd, page(1) + 16, FaultReason::Missing, false);
            uffd.unregister(page(1), PAGE).unwrap();
        });
    });
}

/// With THREAD_ID, the message names the faulting thread. Without the feature, the number is 0.
#[test]
fn message_names_the_faulting_thread() {
    for (features, number) in [(Features::empty(), 0), (Features::THREAD_ID, 2)] {
        everywhere(|world, process, _| {
            let uffd = registered(process, 1, MISSING, features);
            let program = |cpu: &mut Vcpu| process.load::<u64>(cpu, page(0)).unwrap();
            with_pager(world, program, || {
                assert!(matches!(uffd.read(), Ok(Message::Fault { thread, .. }) if thread == number));
                uffd.copy(page(0), &bytes(1), WAKE).unwrap();
            });
        });
    }
}

#[test]
fn copy_fills_the_page_cache_of_shared_memory() {
    everywhere(|world, process, cpu| {
        let file = shmem(world, 3);
        map_shmem(process, BASE, 4, MapFlags::SHARED, &file);
        map_shmem(process, page(8), 4, MapFlags::PRIVATE, &file);
        map_shmem(process, page(16), 4, MapFlags::SHARED, &file);
        let uffd = uffd(process, Features::empty());
        uffd.register(BASE, 4 * PAGE, MISSING).unwrap();
        uffd.register(page(8), 4 * PAGE, MISSING).unwrap();
        // Copied pages belong to the file, and are visible in other mappings.
        assert_eq!(uffd.copy(BASE, &bytes(50), WAKE), Ok(PAGE));
        assert_eq!(uffd.zeropage(page(1), PAGE, WAKE), Ok(PAGE));
        assert_eq!(process.load(cpu, page(16)), Ok(50u64));
        assert!(file.mapping().has_page(PageIndex::new(1)) && !file.mapping().has_page(PageIndex::new(2)));
        // A page in the cache is not missing and cannot be filled.
        process.store(cpu, page(18), 60u64).unwrap();
        assert_eq!(uffd.copy(page(2), &bytes(1), WAKE), Err(UffdError::Present));
        assert_eq!(process.load(cpu, page(2)), Ok(60u64));
        // This page is beyond the end of the file.
        for at in [page(3), page(11)] {
            assert_eq!(uffd.copy(at, &bytes(1), WAKE), Err(UffdError::BadAddress));
            assert_eq!(uffd.zeropage(at, PAGE, WAKE), Err(UffdError::BadAddress));
            assert_eq!(uffd.poison(at, PAGE, WAKE), Err(UffdError::BadAddress));
            assert_eq!(process.load::<u64>(cpu, at), Err(FaultError::Bus { addr: at }));
        }
        // A private mapping gets an anonymous page, whether the file has a page or not.
        file.mapping().punch(0..PAGE).unwrap();
        let program = |cpu: &mut Vcpu| process.load::<u64>(cpu, page(8)).unwrap();
        let (read, ()) = with_pager(world, program, || {
            assert_fault(&uffd, page(8), FaultReason::Missing, false);
            assert_eq!(uffd.copy(page(8), &bytes(70), WAKE), Ok(PAGE));
        });
        assert_eq!(read, 70);
        assert!(!file.mapping().has_page(PageIndex::new(0)));
        assert_eq!(process.load(cpu, page(9)), Ok(0u64), "the file has no page here");
    });
}

#[test]
fn continue_maps_pages_of_the_cache() {
    everywhere(|world, process, cpu| {
        let file = shmem(world, 3);
        map_shmem(process, BASE, 4, MapFlags::SHARED, &file);
        map_shmem(process, page(8), 4, MapFlags::SHARED, &file);
        let uffd = uffd(process, Features::empty());
        uffd.register(BASE, 4 * PAGE, MINOR | MISSING).unwrap();
        process.store(cpu, page(8), 1u64).unwrap();
        process.store(cpu, page(9), 2u64).unwrap();
        let program = |cpu: &mut Vcpu| {
            assert_eq!(process.load(cpu, page(0)), Ok(11u64));
            process.store(cpu, page(1), 22u64).unwrap();
            process.store(cpu, page(2), 33u64).unwrap();
        };
        with_pager(world, program, || {
            assert_fault(&uffd, page(0), FaultReason::Minor, false);
            // The pager updates the page before the program sees it.
            process.store(cpu, page(8), 11u64).unwrap();
            assert_eq!(uffd.continue_with(page(0), PAGE, WAKE), Ok(PAGE));
            assert_fault(&uffd, page(1), FaultReason::Minor, true);
            assert_eq!(
                uffd.continue_with(page(1), 2 * PAGE, WAKE),
                Ok(PAGE),
                "up to the first page that is not in the cache"
            );
            assert_fault(&uffd, page(2), FaultReason::Missing, true);
            assert_eq!(
                uffd.continue_with(page(2), PAGE, WAKE),
                Err(UffdError::BadAddress),
                "not in the cache"
            );
            process.store(cpu, page(10), 3u64).unwrap();
            assert_eq!(uffd.continue_with(page(2), PAGE, WAKE), Ok(PAGE));
        });
        assert_eq!((process.load(cpu, page(9)), process.load(cpu, page(10))), (Ok(22u64), Ok(33u64)));
        assert_eq!(uffd.continue_with(page(1), PAGE, WAKE), Err(UffdError::Present));
        assert_eq!(uffd.continue_with(page(3), PAGE, WAKE), Err(UffdError::BadAddress), "beyond the end");
    });
}

/// C-52: a page that CONTINUE mapped read-only is never written by a forced write.
#[test]
fn c52_forced_write_after_continue_goes_to_a_copy() {
    use freehold::remote::AccessMode;
    everywhere(|world, process, cpu| {
        let file = shmem(world, 1);
        map_shmem(process, BASE, 1, MapFlags::PRIVATE, &file);
        map_shmem(process, page(8), 1, MapFlags::SHARED, &file);
        let uffd = uffd(process, Features::empty());
        uffd.register(BASE, PAGE, MINOR).unwrap();
        process.store(cpu, page(8), 5u64).unwrap();
        assert_eq!(uffd.continue_with(BASE, PAGE, WAKE), Ok(PAGE));
        process.mprotect(BASE, PAGE, R).unwrap();
        assert_eq!(process.write_memory(BASE, &6u64.to_le_bytes(), AccessMode::Forced), Ok(8));
        assert_eq!((process.load(cpu, BASE), process.load(cpu, page(8))), (Ok(6u64), Ok(5u64)));
    });
}

#[test]
fn poisoned_page_behaves_like_failed_memory() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 3, MISSING, Features::POISON);
        assert_eq!(uffd.poison(page(1), PAGE, WAKE), Ok(PAGE));
        assert_eq!(process.load::<u64>(cpu, page(1)), Err(FaultError::MemoryFailed { addr: page(1) }));
        for fill in [Uffd::zeropage, Uffd::poison] {
            assert_eq!(fill(&uffd, page(1), PAGE, WAKE), Err(UffdError::Present));
        }
        let populated = process.madvise(page(1), PAGE, Advice::PopulateRead);
        assert_eq!(populated.map_err(|error| error.errno()), Err(PopulateError::MemoryFailed.errno()));
        // A child inherits the marker, although its memory is not registered.
        let child = Process::of(process.fork().unwrap());
        assert_eq!(child.load::<u64>(cpu, page(1)), Err(FaultError::MemoryFailed { addr: page(1) }));
        assert_eq!(child.load(cpu, page(0)), Ok(0u64));
        drop(child);
        process.madvise(page(1), PAGE, Advice::DontNeed).unwrap();
        assert_eq!(uffd.poison(page(1), PAGE, WAKE), Ok(PAGE));
        // copy replaces the marker, as on Linux.
        assert_eq!(uffd.copy(page(1), &bytes(1), WAKE), Ok(PAGE));
        assert_eq!(process.load(cpu, page(1)), Ok(1u64));
        let program = |cpu: &mut Vcpu| process.load::<u64>(cpu, page(2));
        let (read, ()) = with_pager(world, program, || {
            assert_fault(&uffd, page(2), FaultReason::Missing, false);
            assert_eq!(uffd.poison(page(2), PAGE, WAKE), Ok(PAGE));
        });
        assert_eq!(read, Err(FaultError::MemoryFailed { addr: page(2) }));
    });
}

#[test]
fn sigbus_feature_raises_sigbus_instead_of_a_message() {
    everywhere(|_, process, cpu| {
        let uffd = registered(process, 2, MISSING, Features::SIGBUS);
        assert_eq!(process.load::<u64>(cpu, page(1) + 4), Err(FaultError::Bus { addr: page(1) + 4 }));
        assert_eq!(uffd.copy(page(1), &bytes(1), WAKE), Ok(PAGE));
        assert_eq!(process.load(cpu, page(1)), Ok(1u64));
        assert!(uffd.try_read().is_none());
    });
}

#[test]
fn user_mode_only_context_ignores_kernel_faults() {
    use freehold::{error::AccessError, remote::AccessMode};
    everywhere(|world, process, _| {
        anon(process, BASE, 2);
        let config = UffdConfig::new().features(Features::empty()).user_mode_only(true);
        let uffd = Userfaultfd::new(process.space(), config).unwrap();
        uffd.register(BASE, 2 * PAGE, MISSING).unwrap();
        let mut out = [0; 8];
        assert_eq!(process.read_memory(BASE, &mut out, AccessMode::Plain), Err(AccessError::BadAddress));
        let program = |cpu: &mut Vcpu| process.load::<u64>(cpu, BASE).unwrap();
        let (read, ()) = with_pager(world, program, || {
            assert_fault(&uffd, BASE, FaultReason::Missing, false);
            assert_eq!(uffd.copy(BASE, &bytes(4), WAKE), Ok(PAGE));
        });
        assert_eq!(read, 4);
        assert_eq!(process.read_memory(BASE, &mut out, AccessMode::Plain), Ok(8));
    });
}

/// Fills, faults and discards of the same pages by several threads.
#[test]
fn concurrent_fills_faults_and_discards() {
    const PAGES: u64 = 64;
    everywhere(|world, process, _| {
        let uffd = registered(process, PAGES, MISSING, Features::empty());
        std::thread::scope(|scope| {
            let programs: Vec<_> = (1..4)
                .map(|number| {
                    scope.spawn(move || {
                        let (mut cpu, mut dice) = (world.machine.cpu(number), Dice::new(number as u64));
                        for _ in 0..300 {
                            let at = page(dice.roll(PAGES));
                            match dice.roll(8) {
                                0 => process.madvise(at, PAGE, Advice::DontNeed).unwrap(),
                                1 => process.store(&mut cpu, at + 8, 1u64).unwrap(),
                                _ => assert_eq!(process.load(&mut cpu, at), Ok((at - BASE) / PAGE)),
                            }
                        }
                    })
                })
                .collect();
            let pager = scope.spawn(|| {
                loop {
                    match uffd.read() {
                        Ok(Message::Fault { addr, .. }) => {
                            match uffd.copy(addr, &bytes((addr - BASE) / PAGE), WAKE) {
                                Ok(_) => {}
                                // Two threads faulted on the page.
                                Err(UffdError::Present) => uffd.wake(addr, PAGE).unwrap(),
                                Err(error) => panic!("{error:?}"),
                            }
                        }
                        Ok(other) => panic!("{other:?}"),
                        Err(UffdReadError::Closed) => break,
                        Err(error) => panic!("{error:?}"),
                    }
                }
            });
            for program in programs {
                program.join().unwrap();
            }
            uffd.close();
            pager.join().unwrap();
        });
    });
}
