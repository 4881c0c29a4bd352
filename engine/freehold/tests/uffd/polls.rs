//! poll(2) of a userfaultfd, and the effect of signals on tasks that wait for the pager. A signal ends the
//! wait of a fault, and the fault is repeated after the handler. A wait inside a call ends only with a fatal
//! signal. The tests check the results of the interrupted accesses and the queue of messages.

use super::*;
use freehold::{call::Advice, platform::Host, remote::AccessMode};
use freehold_machine::Task;

/// Polls until a message is available or the context is closed. Returns the number of sleeps.
fn poll(uffd: &Uffd) -> u32 {
    let mut sleeps = 0;
    loop {
        let poll = uffd.poll();
        if poll.readable || poll.closed {
            return sleeps;
        }
        sleeps += 1;
        <Machine>::wait_interruptible(poll.bell, poll.seen).unwrap();
    }
}

#[test]
fn poll_reports_a_message_without_removing_it() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 4, MISSING, Features::EVENT_UNMAP);
        assert!(!uffd.poll().readable);
        let seen = uffd.poll().seen;
        let (read, ()) = with_pager(
            world,
            |cpu| process.load::<u64>(cpu, page(0)),
            || {
                poll(&uffd);
                assert_ne!(uffd.poll().seen, seen, "the message did not change the poll word");
                assert!(uffd.poll().readable, "the poll removed the message");
                assert_fault(&uffd, page(0), FaultReason::Missing, false);
                assert!(!uffd.poll().readable, "a message that was read is still reported");
                uffd.copy(page(0), &bytes(1), WAKE).unwrap();
            },
        );
        assert_eq!(read, Ok(1));
        let ((), ()) = with_pager(
            world,
            |_| process.munmap(page(3), PAGE).unwrap(),
            || {
                poll(&uffd);
                assert!(matches!(uffd.try_read(), Some(Message::Unmap(_))));
            },
        );
        assert!(!uffd.poll().readable);
        assert_eq!(process.load(cpu, page(0)), Ok(1u64));
    });
}

/// A message wakes every thread that sleeps in poll, and so does closing the context.
#[test]
fn message_and_close_wake_every_poller() {
    everywhere(|world, process, _| {
        let uffd = registered(process, 1, MISSING, Features::empty());
        let seen = uffd.poll().seen;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| poll(&uffd));
            }
            let (read, ()) = with_pager(
                world,
                |cpu| process.load::<u64>(cpu, page(0)),
                || {
                    poll(&uffd);
                    uffd.copy(page(0), &bytes(1), WAKE).unwrap();
                },
            );
            assert_eq!(read, Ok(1));
            // Wakes the pollers that did not run while the fault waited.
            uffd.close();
        });
        assert!(uffd.poll().closed && uffd.poll().seen != seen);
    });
}

/// Any signal interrupts an access by the program. The access is repeated after the handler.
#[test]
fn signal_interrupts_a_fault_that_waits_for_the_pager() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 1, MISSING, Features::empty());
        let read = load_in_disturbed_task(world, process, &uffd, Task::signal, Task::handle_signal);
        assert_eq!(read, Err(FaultError::Interrupted));
        assert!(uffd.try_read().is_none(), "the interrupted fault is still queued");
        let again = |cpu: &mut Vcpu| process.load::<u64>(cpu, page(0));
        let (read, ()) = with_pager(world, again, || {
            assert_fault(&uffd, page(0), FaultReason::Missing, false);
            uffd.copy(page(0), &bytes(1), WAKE).unwrap();
        });
        assert_eq!(read, Ok(1));
        let reader = || {
            Task::current().signal();
            let read = uffd.read().unwrap_err();
            (Task::current().handle_signal(), read).1
        };
        assert_eq!(reader(), UffdReadError::Interrupted);
        assert_eq!(process.load(cpu, page(0)), Ok(1u64));
    });
}

/// A call that waits for the pager in the middle of its work cannot be restarted, so the wait continues after
/// a signal. Only a fatal signal ends the wait.
#[test]
fn only_fatal_signals_end_waits_inside_calls() {
    everywhere(|world, process, _| {
        let uffd = registered(process, 3, MISSING, Features::EVENT_UNMAP);
        let program = |cpu: &mut Vcpu| {
            let task = Task::current();
            task.signal();
            let mut found = [0; 8];
            assert_eq!(process.read_memory(page(0), &mut found, AccessMode::Plain), Ok(8));
            process.madvise(page(1), PAGE, Advice::PopulateWrite).unwrap();
            let kernel = Access { user: false, ..Access::READ };
            process.handle_fault(page(2), kernel).unwrap();
            process.munmap(page(0), PAGE).unwrap();
            // A fatal signal does end such a wait.
            process.mmap(page(0), PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
            uffd.register(page(0), PAGE, MISSING).unwrap();
            task.kill();
            assert_eq!(process.load::<u64>(cpu, page(0)), Err(FaultError::Killed));
            (task.revive(), task.handle_signal(), found[0]).2
        };
        let (found, ()) = with_pager(world, program, || {
            for n in 0..3 {
                assert_fault(&uffd, page(n), FaultReason::Missing, n == 1);
                uffd.copy(page(n), &bytes(n + 1), WAKE).unwrap();
            }
            assert!(matches!(uffd.read(), Ok(Message::Unmap(_))));
        });
        assert_eq!(found, 1);
    });
}
