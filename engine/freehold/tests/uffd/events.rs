//! What the pager is told, and which calls wait until it has read it.

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

/// Waits until fills are refused: somebody has begun a change and waits for the message to be read.
fn until_changing(uffd: &Uffd, at: u64) {
    until(|| uffd.zeropage(at, PAGE, FillMode::from_bits_retain(8)) == Err(UffdError::Changing));
}

#[test]
fn a_child_has_a_context_of_its_own() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 4, MISSING, ALL);
        process.mprotect(page(2), PAGE, R).unwrap();
        assert_eq!(uffd.copy(BASE, &bytes(5), WAKE), Ok(PAGE));
        assert_eq!(uffd.zeropage(page(3), PAGE, WAKE), Ok(PAGE));
        let fork = |_: &mut Vcpu| Process::of(process.fork().unwrap());
        let (child, own) = beside(world, fork, || {
            until_changing(&uffd, page(1));
            assert_eq!(uffd.copy(page(1), &bytes(1), WAKE), Err(UffdError::Changing));
            match uffd.read() {
                Ok(Message::Fork(own)) => own,
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(own.config(), uffd.config());
        // Pages that were there, zeroes too, are in the child; what is missing there is asked for there.
        assert_eq!((child.load(cpu, BASE), child.load(cpu, page(3))), (Ok(5u64), Ok(0u64)));
        let program = |cpu: &mut Vcpu| child.load::<u64>(cpu, page(1)).unwrap();
        let (read, ()) = beside(world, program, || {
            assert_fault(&own, page(1), FaultReason::Missing, false);
            assert_eq!(own.copy(page(1), &bytes(8), WAKE), Ok(PAGE));
        });
        assert_eq!(read, 8);
        assert_eq!(uffd.copy(page(1), &bytes(9), WAKE), Ok(PAGE), "the parent's is another");
        assert_eq!((child.load(cpu, page(1)), process.load(cpu, page(1))), (Ok(8u64), Ok(9u64)));
        // The child's context ends, or never begins to be of interest.
        drop(own);
        assert_eq!(child.load(cpu, page(2)), Ok(0u64));
        child.check();
        let (child, ()) = beside(world, fork, || assert!(matches!(uffd.read(), Ok(Message::Fork(_)))));
        assert_eq!(child.load(cpu, page(2)), Ok(0u64));
        assert_eq!(layout(&child), [(0, 2), (2, 3), (3, 4)]);
    });
}

#[test]
fn a_child_without_the_event_is_not_registered() {
    everywhere(|_, process, cpu| {
        let uffd = registered(process, 4, MISSING, ALL - Features::EVENT_FORK);
        let child = Process::of(process.fork().unwrap());
        assert_eq!(child.load(cpu, page(1)), Ok(0u64));
        child.check();
        assert_eq!(uffd.copy(page(1), &bytes(9), WAKE), Ok(PAGE));
    });
}

#[test]
fn moves_are_told() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 4, MISSING, ALL);
        uffd.copy(BASE, &pages_of(1..5), WAKE).unwrap();
        anon(process, page(600), 8);
        uffd.register(page(601), PAGE, MISSING).unwrap();
        // What is at the target goes first; then the move; then the source.
        let remap = |_: &mut Vcpu| process.mremap(page(1), 2 * PAGE, 2 * PAGE, TO, page(600));
        let (moved, messages) = beside(world, remap, || [0; 3].map(|_| uffd.read().unwrap()));
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
        // It is registered where it is now.
        let discard = |_: &mut Vcpu| process.madvise(page(600), PAGE, Advice::DontNeed).unwrap();
        beside(world, discard, || {
            assert!(matches!(uffd.read(), Ok(Message::Remove(range)) if range == (page(600)..page(601))));
        });
        assert_eq!(uffd.copy(page(600), &bytes(7), WAKE), Ok(PAGE));
        // Of several VMAs none may be registered.
        assert_eq!(process.mremap(page(600), 4 * PAGE, 4 * PAGE, TO, page(700)), Err(MremapError::NotMapped));
        // Growing in place is no move.
        process.munmap(page(602), 6 * PAGE).unwrap();
        assert_eq!(process.mremap(page(600), 2 * PAGE, 3 * PAGE, RemapFlags::empty(), 0), Ok(page(600)));
        assert_eq!(uffd.copy(page(602), &bytes(8), WAKE), Ok(PAGE));
        assert!(uffd.try_read().is_none());
    });
}

#[test]
fn without_the_event_nothing_moves_along() {
    everywhere(|_, process, cpu| {
        let uffd = registered(process, 2, MISSING, Features::empty());
        uffd.copy(BASE, &bytes(1), WAKE).unwrap();
        process.mremap(BASE, 2 * PAGE, 2 * PAGE, TO | RemapFlags::DONTUNMAP, page(600)).unwrap();
        assert_eq!((process.load(cpu, page(600)), process.load(cpu, page(601))), (Ok(1u64), Ok(0u64)));
        // What stays is still registered.
        assert_eq!(uffd.copy(page(0), &bytes(2), WAKE), Ok(PAGE));
        assert_eq!(uffd.copy(page(601), &bytes(2), WAKE), Err(UffdError::NotRegistered));
    });
}

#[test]
fn unmaps_are_told_afterwards() {
    everywhere(|world, process, _| {
        let uffd = registered(process, 8, MISSING, ALL);
        uffd.copy(BASE, &pages_of(0..8), WAKE).unwrap();
        process.mprotect(page(4), PAGE, R).unwrap();
        process.munmap(page(9), PAGE).unwrap();
        let unmap = |_: &mut Vcpu| process.munmap(page(3), 3 * PAGE);
        let (unmapped, ranges) = beside(world, unmap, || {
            until_changing(&uffd, BASE);
            // Gone already, and others may map there.
            until(|| process.find_vma(page(4)).is_none());
            [0; 3].map(|_| match uffd.read() {
                Ok(Message::Unmap(range)) => ((range.start() - BASE) / PAGE, (range.end() - BASE) / PAGE),
                other => panic!("{other:?}"),
            })
        });
        assert_eq!((unmapped, ranges), (Ok(()), [(3, 4), (4, 5), (5, 6)]));
        // mmap in its place, too.
        let replace = |_: &mut Vcpu| anon(process, page(6), 1);
        beside(world, replace, || assert!(matches!(uffd.read(), Ok(Message::Unmap(_)))));
        assert_eq!(layout(process), [(0, 3), (6, 7), (7, 8)]);
    });
}

/// C-69: what is discarded is looked up anew once the pager has heard of it.
#[test]
fn c69_a_pager_that_unmaps_meanwhile() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 8, MISSING, Features::EVENT_REMOVE);
        uffd.copy(BASE, &pages_of(0..8), WAKE).unwrap();
        let discard = |_: &mut Vcpu| process.madvise(page(1), 4 * PAGE, Advice::DontNeed);
        // The page is still there while the message waits.
        let (done, ()) = beside(world, discard, || {
            until_changing(&uffd, BASE);
            assert_eq!(process.load(cpu, page(2)), Ok(2u64));
            process.munmap(page(3), PAGE).unwrap();
            assert!(matches!(uffd.read(), Ok(Message::Remove(range)) if range == (page(1)..page(5))));
            // What is left behind the hole is another part.
            assert!(matches!(uffd.read(), Ok(Message::Remove(range)) if range == (page(4)..page(5))));
        });
        assert_eq!(done, Err(MadviseError::NotMapped), "a hole");
        assert_eq!([0, 5].map(|n| process.load(cpu, page(n))), [Ok(0u64), Ok(5)]);
        for n in [1, 2, 4] {
            assert_eq!(uffd.copy(page(n), &bytes(9), WAKE), Ok(PAGE), "page {n} was taken");
        }
        // Unmapped altogether: nothing is left to be advised.
        let (done, ()) = beside(
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
fn holes_in_files_are_told() {
    everywhere(|world, process, cpu| {
        let file = shmem(world, 2);
        map_shmem(process, BASE, 2, MapFlags::SHARED, &file);
        let uffd = uffd(process, Features::EVENT_REMOVE);
        uffd.register(BASE, 2 * PAGE, MISSING).unwrap();
        uffd.copy(BASE, &pages_of(1..3), WAKE).unwrap();
        let punch = |_: &mut Vcpu| process.madvise(BASE, PAGE, Advice::Remove).unwrap();
        beside(world, punch, || {
            until_changing(&uffd, BASE);
            assert_eq!(process.load(cpu, BASE), Ok(1u64));
            assert!(matches!(uffd.read(), Ok(Message::Remove(range)) if range == (BASE..page(1))));
        });
        assert_eq!(uffd.copy(BASE, &bytes(4), WAKE), Ok(PAGE));
    });
}

/// Nobody waits for ever: the sender is killed, or the context closed. Then nothing is in the way of fills
/// any more, and a child whose context nobody took is not registered.
#[test]
fn senders_go_on() {
    everywhere(|world, process, cpu| {
        let uffd = registered(process, 8, MISSING, ALL);
        let (tell, told) = std::sync::mpsc::channel();
        let fork = |_: &mut Vcpu| {
            tell.send(Task::current()).unwrap();
            let child = Process::of(process.fork().unwrap());
            Task::current().revive();
            child
        };
        let (killed, ()) = beside(world, fork, || {
            until_changing(&uffd, BASE);
            told.recv().unwrap().kill();
        });
        assert!(uffd.try_read().is_none());
        assert_eq!(uffd.copy(page(1), &bytes(1), WAKE), Ok(PAGE));
        let (closed, ()) = beside(world, fork, || {
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
