//! Tasks that sleep for the pager (`src/uffd/state/queue.rs`): closing a context wakes every task that waits
//! for its pager (C-54), and the page that a task waits for may be unmapped (C-25). A task that is not woken
//! makes the test hang. The test of C-54 has one thread for each kind of call that can wait; a new kind needs
//! one more thread there.

use super::*;
use freehold::{call::Advice, remote::AccessMode};
use freehold_machine::Task;

#[test]
fn c54_close_wakes_every_waiting_task() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 16, MISSING | WP, Features::EVENT_UNMAP | Features::EVENT_FORK);
        uffd.copy(page(0), &bytes(1), FillMode::WP).unwrap();
        let file = shmem(world, 1);
        map_shmem(process, page(40), 1, MapFlags::SHARED, &file);
        process.store(cpu, page(40), 1u64).unwrap();
        process.madvise(page(40), PAGE, Advice::DontNeed).unwrap();
        uffd.register(page(40), PAGE, MINOR).unwrap();
        std::thread::scope(|scope| {
            let run = |number: usize, f: Box<dyn FnOnce(&mut Vcpu) + Send>| {
                scope.spawn(move || f(&mut world.machine.cpu(number)))
            };
            let uffd = &uffd;
            // The tasks wait in a load, a store, a store to a protected page, a minor fault, a remote read,
            // two populating calls of madvise, and a partial munmap.
            run(1, Box::new(|cpu| assert_eq!(process.load(cpu, page(1)), Ok(0u64))));
            run(2, Box::new(|cpu| process.store(cpu, page(2), 2u64).unwrap()));
            run(3, Box::new(|cpu| process.store(cpu, page(0), 3u64).unwrap()));
            run(4, Box::new(|cpu| assert_eq!(process.load(cpu, page(40)), Ok(1u64))));
            let debugger = || assert_eq!(process.read_memory(page(3), &mut [0; 8], AccessMode::Plain), Ok(8));
            run(5, Box::new(move |_| debugger()));
            run(6, Box::new(|_| process.madvise(page(4), PAGE, Advice::PopulateWrite).unwrap()));
            let mut faults = 0;
            until(|| {
                faults += u64::from(matches!(uffd.try_read(), Some(Message::Fault { .. })));
                faults == 6
            });
            // The messages of these tasks were read. The messages of the following two tasks stay unread.
            scope.spawn(|| assert_eq!(process.madvise(page(5), PAGE, Advice::PopulateRead), Ok(())));
            scope.spawn(|| process.munmap(page(12), 4 * PAGE).unwrap());
            until(|| uffd.zeropage(page(6), PAGE, FillMode::from_bits_retain(8)) == Err(UffdError::Changing));
            uffd.close();
        });
        assert_eq!(process.load(cpu, page(0)), Ok(3u64));
        assert_eq!(layout(process), [(0, 12), (40, 41)]);
        assert!(matches!(uffd.read(), Err(UffdReadError::Closed)));
    });
}

#[test]
fn c54_close_wakes_waiting_readers() {
    everywhere(|_, process, _| {
        let uffd = registered(process, 1, MISSING, Features::empty());
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3).map(|_| scope.spawn(|| uffd.read().unwrap_err())).collect();
            uffd.close();
            for reader in readers {
                assert_eq!(reader.join().unwrap(), UffdReadError::Closed);
            }
        });
    });
}

/// C-25: the page that a task waits for is unmapped, and the task then finds another mapping there, or none.
#[test]
fn c25_page_may_be_unmapped_during_the_wait() {
    everywhere(|world, process, _| {
        let file = shmem(world, 4);
        map_shmem(process, BASE, 4, MapFlags::SHARED, &file);
        let uffd = uffd(process, Features::empty());
        uffd.register(BASE, 4 * PAGE, MISSING).unwrap();
        let program = |cpu: &mut Vcpu| [0, 1, 2].map(|n| process.load::<u64>(cpu, page(n)));
        let (read, ()) = with_pager(world, program, || {
            assert_fault(&uffd, page(0), FaultReason::Missing, false);
            anon(process, page(0), 1);
            uffd.wake(page(0), PAGE).unwrap();
            assert_fault(&uffd, page(1), FaultReason::Missing, false);
            process.munmap(page(1), PAGE).unwrap();
            uffd.wake(page(1), PAGE).unwrap();
            assert_fault(&uffd, page(2), FaultReason::Missing, false);
            file.mapping().truncate(PAGE).unwrap();
            uffd.wake(page(2), PAGE).unwrap();
        });
        assert_eq!(read[0], Ok(0));
        assert!(matches!(read[1], Err(FaultError::Segv { addr, .. }) if addr == page(1)), "{read:?}");
        assert_eq!(read[2], Err(FaultError::Bus { addr: page(2) }));
    });
}

#[test]
fn c72_fatal_signal_ends_the_wait_for_a_pager() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 2, MISSING, Features::empty());
        let read = load_in_disturbed_task(world, process, &uffd, Task::kill, Task::revive);
        assert_eq!(read, Err(FaultError::Killed));
        assert!(uffd.try_read().is_none());
        assert_eq!(uffd.copy(page(0), &bytes(1), WAKE), Ok(PAGE));
        assert_eq!(process.load(cpu, page(0)), Ok(1u64));
        let reader = || {
            Task::current().interrupt_wait(1);
            let read = uffd.read().unwrap_err();
            (Task::current().revive(), read).1
        };
        assert_eq!(reader(), UffdReadError::Interrupted);
        let _ = Access::READ;
    });
}
