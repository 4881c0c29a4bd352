//! Messages to the pager about changes of its memory (`src/uffd/event.rs`), and calls that wait until the
//! pager has read such a message: fork, mremap, munmap, MADV_DONTNEED and MADV_REMOVE. The tests check the
//! order and the contents of the messages, and whether the change takes place before or after the message is
//! read. They also check that the wait ends if the task is killed or the context is closed. A new event
//! belongs in `ALL`, and needs a test in which the pager reads its message ([`with_pager`]).

use super::*;
use freehold::{
    call::{Advice, RemapFlags},
    error::{MadviseError, MremapError},
};
use freehold_machine::Task;

const ALL: Features = Features::EVENT_FORK
    .union(Features::EVENT_REMAP)
    .union(Features::EVENT_REMOVE)
    .union(Features::EVENT_UNMAP);
const TO: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);

/// Waits until fills are refused because a task has begun a change and waits for its message to be read.
fn until_changing(uffd: &Uffd, at: u64) {
    until(|| uffd.zeropage(at, PAGE, FillMode::from_bits_retain(8)) == Err(UffdError::Changing));
}

#[test]
fn fork_event_gives_the_child_its_own_context() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 4, MISSING, ALL);
        process.mprotect(page(2), PAGE, R).unwrap();
        assert_eq!(uffd.copy(BASE, &bytes(5), WAKE), Ok(PAGE));
        assert_eq!(uffd.zeropage(page(3), PAGE, WAKE), Ok(PAGE));
        let fork = |_: &mut Vcpu| Process::of(process.fork().unwrap());
        let (child, own) = with_pager(world, fork, || {
            until_changing(&uffd, page(1));
            assert_eq!(uffd.copy(page(1), &bytes(1), WAKE), Err(UffdError::Changing));
            match uffd.read() {
                Ok(Message::Fork(own)) => own,
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(own.config(), uffd.config());
        // Present pages, including zero pages, are in the child. A missing page of the child notifies the
        // child's pager.
        assert_eq!((child.load(cpu, BASE), child.load(cpu, page(3))), (Ok(5u64), Ok(0u64)));
        let program = |cpu: &mut Vcpu| child.load::<u64>(cpu, page(1)).unwrap();
        let (read, ()) = with_pager(world, program, || {
            assert_fault(&own, page(1), FaultReason::Missing, false);
            assert_eq!(own.copy(page(1), &bytes(8), WAKE), Ok(PAGE));
        });
        assert_eq!(read, 8);
        assert_eq!(uffd.copy(page(1), &bytes(9), WAKE), Ok(PAGE), "the parent has a context of its own");
        assert_eq!((child.load(cpu, page(1)), process.load(cpu, page(1))), (Ok(8u64), Ok(9u64)));
        // The pager closes the context of one child, and never reads the context of another child.
        drop(own);
        assert_eq!(child.load(cpu, page(2)), Ok(0u64));
        child.check();
        let (child, ()) = with_pager(world, fork, || assert!(matches!(uffd.read(), Ok(Message::Fork(_)))));
        assert_eq!(child.load(cpu, page(2)), Ok(0u64));
        assert_eq!(layout(&child), [(0, 2), (2, 3), (3, 4)]);
    });
}

#[test]
fn child_is_not_registered_without_the_fork_event() {
    everywhere(|_, process, cpu| {
        let uffd = registered(process, 4, MISSING, ALL - Features::EVENT_FORK);
        let child = Process::of(process.fork().unwrap());
        assert_eq!(child.load(cpu, page(1)), Ok(0u64));
        child.check();
        assert_eq!(uffd.copy(page(1), &bytes(9), WAKE), Ok(PAGE));
    });
}

#[test]
fn mremap_sends_events_for_target_move_and_source() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 4, MISSING, ALL);
        uffd.copy(BASE, &pages_of(1..5), WAKE).unwrap();
        anon(process, page(600), 8);
        uffd.register(page(601), PAGE, MISSING).unwrap();
        // The messages come in this order: the unmap of the target, the move, the unmap of the source.
        let remap = |_: &mut Vcpu| process.mremap(page(1), 2 * PAGE, 2 * PAGE, TO, page(600));
        let (moved, messages) = with_pager(world, remap, || [0; 3].map(|_| uffd.read().unwrap()));
        assert_eq!(moved, Ok(page(600)));
        assert!(
            matches!(&messages[0], Message::Unmap(range) if *range == (page(601)..page(602))),
            "{messages:?}"
        );
        assert!(
            matches!(messages[1], Message::Remap { from, to, len } if (from, to, len) == (page(1), page(600), 2 * PAGE)),
            "{messages:?}"
        );
        assert!(
            matches!(&messages[2], Message::Unmap(range) if *range == (page(1)..page(3))),
            "{messages:?}"
        );
        assert_eq!([600, 601].map(|n| process.load(cpu, page(n))), [Ok(2u64), Ok(3)]);
        process.madvise(page(604), PAGE, Advice::DontNeed).unwrap();
        // The new address is registered.
        let discard = |_: &mut Vcpu| process.madvise(page(600), PAGE, Advice::DontNeed).unwrap();
        with_pager(world, discard, || {
            assert!(matches!(uffd.read(), Ok(Message::Remove(range)) if range == (page(600)..page(601))));
        });
        assert_eq!(uffd.copy(page(600), &bytes(7), WAKE), Ok(PAGE));
        // A move of several VMAs fails if one of them is registered.
        assert_eq!(process.mremap(page(600), 4 * PAGE, 4 * PAGE, TO, page(700)), Err(MremapError::NotMapped));
        // Growing in place is not a move.
        process.munmap(page(602), 6 * PAGE).unwrap();
        assert_eq!(process.mremap(page(600), 2 * PAGE, 3 * PAGE, RemapFlags::empty(), 0), Ok(page(600)));
        assert_eq!(uffd.copy(page(602), &bytes(8), WAKE), Ok(PAGE));
        assert!(uffd.try_read().is_none());
    });
}

#[test]
fn registration_does_not_move_without_the_remap_event() {
    everywhere(|_, process, cpu| {
        let uffd = registered(process, 2, MISSING, Features::empty());
        uffd.copy(BASE, &bytes(1), WAKE).unwrap();
        process.mremap(BASE, 2 * PAGE, 2 * PAGE, TO | RemapFlags::DONTUNMAP, page(600)).unwrap();
        assert_eq!((process.load(cpu, page(600)), process.load(cpu, page(601))), (Ok(1u64), Ok(0u64)));
        // The source that stays mapped is still registered.
        assert_eq!(uffd.copy(page(0), &bytes(2), WAKE), Ok(PAGE));
        assert_eq!(uffd.copy(page(601), &bytes(2), WAKE), Err(UffdError::NotRegistered));
    });
}

#[test]
fn unmap_events_are_sent_after_the_unmap() {
    everywhere(|world, process, _| {
        let uffd = registered(process, 8, MISSING, ALL);
        uffd.copy(BASE, &pages_of(0..8), WAKE).unwrap();
        process.mprotect(page(4), PAGE, R).unwrap();
        process.munmap(page(9), PAGE).unwrap();
        let unmap = |_: &mut Vcpu| process.munmap(page(3), 3 * PAGE);
        let (unmapped, ranges) = with_pager(world, unmap, || {
            until_changing(&uffd, BASE);
            // The range is already unmapped, and other mappings may use it.
            until(|| process.find_vma(page(4)).is_none());
            [0; 3].map(|_| match uffd.read() {
                Ok(Message::Unmap(range)) => ((range.start() - BASE) / PAGE, (range.end() - BASE) / PAGE),
                other => panic!("{other:?}"),
            })
        });
        assert_eq!((unmapped, ranges), (Ok(()), [(3, 4), (4, 5), (5, 6)]));
        // mmap over the range sends an event, too.
        let replace = |_: &mut Vcpu| anon(process, page(6), 1);
        with_pager(world, replace, || assert!(matches!(uffd.read(), Ok(Message::Unmap(_)))));
        assert_eq!(layout(process), [(0, 3), (6, 7), (7, 8)]);
    });
}

/// C-69: DONTNEED looks up its range again after the pager has read the message.
#[test]
fn c69_dontneed_handles_munmap_while_its_event_is_read() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 8, MISSING, Features::EVENT_REMOVE);
        uffd.copy(BASE, &pages_of(0..8), WAKE).unwrap();
        let discard = |_: &mut Vcpu| process.madvise(page(1), 4 * PAGE, Advice::DontNeed);
        // The page is still present while the message is unread.
        let (done, ()) = with_pager(world, discard, || {
            until_changing(&uffd, BASE);
            assert_eq!(process.load(cpu, page(2)), Ok(2u64));
            process.munmap(page(3), PAGE).unwrap();
            assert!(matches!(uffd.read(), Ok(Message::Remove(range)) if range == (page(1)..page(5))));
            // The range after the hole has a message of its own.
            assert!(matches!(uffd.read(), Ok(Message::Remove(range)) if range == (page(4)..page(5))));
        });
        assert_eq!(done, Err(MadviseError::NotMapped), "a hole");
        assert_eq!([0, 5].map(|n| process.load(cpu, page(n))), [Ok(0u64), Ok(5)]);
        for n in [1, 2, 4] {
            assert_eq!(uffd.copy(page(n), &bytes(9), WAKE), Ok(PAGE), "page {n} was discarded");
        }
        // The range is unmapped completely, so nothing is left for the advice.
        let (done, ()) = with_pager(
            world,
            |_| process.madvise(page(1), PAGE, Advice::DontNeed),
            || {
                until_changing(&uffd, BASE);
                process.munmap(page(0), 3 * PAGE).unwrap();
                assert!(matches!(uffd.read(), Ok(Message::Remove(_))));
            },
        );
        assert_eq!(done, Err(MadviseError::NotMapped));
    });
}

#[test]
fn hole_in_a_file_sends_a_remove_event() {
    everywhere(|world, process, cpu| {
        let file = shmem(world, 2);
        map_shmem(process, BASE, 2, MapFlags::SHARED, &file);
        let uffd = uffd(process, Features::EVENT_REMOVE);
        uffd.register(BASE, 2 * PAGE, MISSING).unwrap();
        uffd.copy(BASE, &pages_of(1..3), WAKE).unwrap();
        let punch = |_: &mut Vcpu| process.madvise(BASE, PAGE, Advice::Remove).unwrap();
        with_pager(world, punch, || {
            until_changing(&uffd, BASE);
            assert_eq!(process.load(cpu, BASE), Ok(1u64));
            assert!(matches!(uffd.read(), Ok(Message::Remove(range)) if range == (BASE..page(1))));
        });
        assert_eq!(uffd.copy(BASE, &bytes(4), WAKE), Ok(PAGE));
    });
}

/// A sender does not wait forever: it is killed, or the context is closed. Fills succeed again afterwards,
/// and a child whose context was never read is not registered.
#[test]
fn killed_sender_and_closed_context_end_the_wait() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 8, MISSING, ALL);
        let (sender, receiver) = std::sync::mpsc::channel();
        let fork = |_: &mut Vcpu| {
            sender.send(Task::current()).unwrap();
            let child = Process::of(process.fork().unwrap());
            Task::current().revive();
            child
        };
        let (killed, ()) = with_pager(world, fork, || {
            until_changing(&uffd, BASE);
            receiver.recv().unwrap().kill();
        });
        assert!(uffd.try_read().is_none());
        assert_eq!(uffd.copy(page(1), &bytes(1), WAKE), Ok(PAGE));
        let (closed, ()) = with_pager(world, fork, || {
            until_changing(&uffd, BASE);
            uffd.close();
        });
        for child in [killed, closed] {
            assert_eq!(child.load(cpu, page(2)), Ok(0u64));
            child.check();
        }
        assert!(matches!(uffd.read(), Err(UffdReadError::Closed)));
    });
}
