//! userfaultfd: faults that wait for a pager, and the pager's calls, concurrent with all other calls (C-25,
//! C-48, C-50, C-53, C-54).
//!
//! The code under test is `uffd/`. No wakeup is lost: if a task is never woken, the checker reports a
//! deadlock, so the scenarios need no timeouts. No task waits for an event that cannot occur, and the calls
//! of the pager have an allowed result. Scenarios with waiting faults run the pager, [`serve`], in a thread
//! of its own. Scenarios about the calls alone use the feature SIGBUS, with which a fault fails instead of
//! waiting. Huge pages of pools are in `hugetlb.rs`.

use crate::{
    explore::{explore, thread},
    scene::{ANON, OLD, PAGE, RW, Scene, map, page, unmap, value},
};
use freehold::{
    call::Advice,
    error::{MadviseError, UffdError, UffdReadError},
    fault::FaultError,
    file::{File, FileAccess, Mapping, Zeroes},
    remote::AccessMode,
    space::MapFlags,
    uffd::{Features, FillMode, Message, MoveMode, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
};
use freehold_machine::{Machine, Process, Task};

type Uffd = Userfaultfd<Machine>;

/// Mode of a fill that wakes the waiting fault.
const WAKE: FillMode = FillMode::empty();
const CONTENTS: [u8; PAGE as usize] = [1; PAGE as usize];
/// The word that a load finds in a page that the pager has filled.
const COPIED: u64 = 0x0101_0101_0101_0101;

/// Creates a userfaultfd of the process.
fn uffd(process: &Process, features: Features) -> Uffd {
    Userfaultfd::new(process.space(), UffdConfig::new().features(features)).unwrap()
}

/// Maps and registers the pages from 0 to `pages`.
fn registered(scene: &Scene, pages: u64, mode: RegisterMode, features: Features) -> Uffd {
    map(&scene.process, 0..pages, ANON);
    let uffd = uffd(&scene.process, features);
    uffd.register(page(0), pages * PAGE, mode).unwrap();
    uffd
}

/// Acts as the pager: fills the pages of faults, and drops other messages, until the userfaultfd is closed.
fn serve(uffd: &Uffd) {
    loop {
        match uffd.read() {
            Ok(Message::Fault { addr, .. }) => match uffd.copy(addr, &CONTENTS, WAKE) {
                Ok(_) => {}
                Err(UffdError::Present | UffdError::NotRegistered) => uffd.wake(addr, PAGE).unwrap(),
                // The pager next reads the message of the call that changes the memory.
                Err(UffdError::Changing) => uffd.wake(addr, PAGE).unwrap(),
                Err(error) => panic!("{error}"),
            },
            Ok(message) => drop(message),
            Err(UffdReadError::Closed) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Ends a scenario. Checks that nothing leaked.
fn end(scene: Scene, uffd: Uffd) {
    drop(uffd);
    scene.process.check();
    unmap(&scene.process, 0..16);
    scene.end();
}

/// A page is filled concurrently with a fault on the page. If the fault was queued before the fill, the fault
/// is woken. If not, the fault finds the page.
#[test]
fn c54_fill_concurrent_with_its_fault() {
    explore("a fault concurrent with its fill", 100, |locking| {
        let scene = Scene::new(locking);
        let uffd = registered(&scene, 1, RegisterMode::MISSING, Features::empty());
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(uffd.copy(page(0), &CONTENTS, WAKE), Ok(PAGE)));
            scope.spawn(|| {
                assert_eq!(scene.process.load(&mut scene.machine.cpu(0), page(0)), Ok(COPIED));
            });
            scope.spawn(|| {
                let mut bytes = [0; 8];
                assert_eq!(scene.process.read_memory(page(0), &mut bytes, AccessMode::Plain), Ok(8));
                assert_eq!(u64::from_le_bytes(bytes), COPIED);
            });
        });
        end(scene, uffd);
    });
}

/// C-25: after its wait, a fault uses no VMA and no file that it had looked up before.
#[test]
fn c25_register_concurrent_with_a_fault_and_munmap() {
    explore("register concurrent with a fault and munmap", 100, |locking| {
        let scene = Scene::new(locking);
        map(&scene.process, 0..2, ANON);
        let uffd = uffd(&scene.process, Features::EVENT_UNMAP);
        thread::scope(|scope| {
            let pager = scope.spawn(|| serve(&uffd));
            let registering = scope.spawn(|| {
                let _ = uffd.register(page(0), 2 * PAGE, RegisterMode::MISSING);
            });
            let program = scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                match scene.process.load::<u64>(&mut cpu, page(1)) {
                    Ok(found) => assert!([0, COPIED].contains(&found), "{found}"),
                    Err(error) => assert!(matches!(error, FaultError::Segv { .. }), "{error}"),
                }
            });
            let unmapping = scope.spawn(|| {
                unmap(&scene.process, 1..2);
                // The engine does not wake a fault that waits for an unmapped page.
                uffd.wake(page(1), PAGE).unwrap();
            });
            for thread in [registering, unmapping, program] {
                thread.join().unwrap();
            }
            uffd.close();
            pager.join().unwrap();
        });
        end(scene, uffd);
    });
}

/// A fill completes before the change, or it is refused.
#[test]
fn fills_concurrent_with_munmap_and_fork() {
    explore("fills concurrent with munmap and fork, with their events", 60, |locking| {
        let scene = Scene::new(locking);
        let features = Features::EVENT_UNMAP | Features::EVENT_FORK;
        let uffd = registered(&scene, 2, RegisterMode::MISSING, features);
        thread::scope(|scope| {
            let pager = scope.spawn(|| serve(&uffd));
            let filling = scope.spawn(|| {
                let done = uffd.copy(page(0), &CONTENTS, WAKE);
                let refused = [UffdError::Changing, UffdError::NotRegistered].map(Err);
                assert!(done == Ok(PAGE) || refused.contains(&done), "{done:?}");
            });
            let forking = scope.spawn(|| {
                let child = Process::of(scene.process.fork().unwrap());
                // The pager has dropped the child's userfaultfd, so the access sends no message.
                let found = child.load::<u64>(&mut scene.machine.cpu(0), page(0));
                assert!(matches!(found, Ok(0 | COPIED) | Err(FaultError::Segv { .. })), "{found:?}");
                child.check();
            });
            let unmapping = scope.spawn(|| unmap(&scene.process, 0..1));
            for thread in [filling, forking, unmapping] {
                thread.join().unwrap();
            }
            uffd.close();
            pager.join().unwrap();
        });
        end(scene, uffd);
    });
}

/// C-4, C-69: until the pager has read the message about a discard, a fill succeeds or is refused. The
/// discard removes the page only after the message, so a second fill may find the page still present.
#[test]
fn c04_c69_fill_concurrent_with_dontneed() {
    explore("a fill concurrent with DONTNEED and its event", 80, |locking| {
        let scene = Scene::new(locking);
        let uffd = registered(&scene, 1, RegisterMode::MISSING, Features::EVENT_REMOVE);
        thread::scope(|scope| {
            scope.spawn(|| {
                let done = scene.process.madvise(page(0), PAGE, Advice::DontNeed);
                assert_eq!(done, Ok::<(), MadviseError>(()));
            });
            scope.spawn(|| {
                let early = uffd.copy(page(0), &CONTENTS, WAKE);
                assert!(matches!(early, Ok(PAGE) | Err(UffdError::Changing)), "{early:?}");
                assert!(matches!(uffd.read(), Ok(Message::Remove(_))));
                let again = uffd.copy(page(0), &CONTENTS, WAKE);
                assert!([Ok(PAGE), Err(UffdError::Present)].contains(&again), "{again:?} after the message");
            });
        });
        end(scene, uffd);
    });
}

/// C-54, C-72: three faults sleep on the same word of the queue. Two pagers serve these faults, and one fault
/// is killed while it waits.
#[test]
fn c54_faults_sharing_a_wait_word_are_all_woken() {
    explore("faults that share a wait word, two pagers, a fatal signal", 60, |locking| {
        let scene = Scene::new(locking);
        let uffd = registered(&scene, 5, RegisterMode::MISSING, Features::empty());
        let load = |cpu, number| scene.process.load::<u64>(&mut scene.machine.cpu(cpu), page(number));
        thread::scope(|scope| {
            let pagers = [scope.spawn(|| serve(&uffd)), scope.spawn(|| serve(&uffd))];
            let programs = [
                scope.spawn(|| assert_eq!(load(0, 0), Ok(COPIED))),
                scope.spawn(|| assert_eq!(load(1, 2), Ok(COPIED))),
                scope.spawn(|| {
                    Task::current().interrupt_wait(1);
                    let found = load(2, 4);
                    assert!([Ok(COPIED), Err(FaultError::Killed)].contains(&found), "{found:?}");
                    Task::current().revive();
                }),
            ];
            for program in programs {
                program.join().unwrap();
            }
            uffd.close();
            for pager in pagers {
                pager.join().unwrap();
            }
        });
        end(scene, uffd);
    });
}

/// C-54: closing the userfaultfd wakes every kind of task that sleeps or is about to sleep.
#[test]
fn c54_close_wakes_tasks_about_to_sleep() {
    explore("close concurrent with every kind of waiting task", 60, |locking| {
        let scene = Scene::new(locking);
        let mode = RegisterMode::MISSING | RegisterMode::WP;
        let uffd = registered(&scene, 3, mode, Features::EVENT_FORK | Features::EVENT_UNMAP);
        uffd.copy(page(1), &CONTENTS, FillMode::WP).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(scene.process.load(&mut scene.machine.cpu(0), page(0)), Ok(0u64));
            });
            scope.spawn(|| scene.process.store(&mut scene.machine.cpu(1), page(1), 2u64).unwrap());
            scope.spawn(|| drop(scene.process.fork().unwrap()));
            scope.spawn(|| while uffd.read().is_ok() {});
            scope.spawn(|| uffd.close());
        });
        end(scene, uffd);
    });
}

/// C-48, C-50: a page that MOVE moves is at exactly one address, while other tasks read it, share it by a
/// fork, or migrate it.
#[test]
fn c48_move_concurrent_with_a_reader_fork_and_migration() {
    explore("MOVE concurrent with a transfer, fork and migration", 80, |locking| {
        let scene = Scene::new(locking);
        scene.fill(8..9);
        let uffd = registered(&scene, 1, RegisterMode::MISSING, Features::SIGBUS);
        let moved = thread::scope(|scope| {
            scope.spawn(|| {
                let mut bytes = [0; 8];
                assert_eq!(scene.process.read_memory(page(8), &mut bytes, AccessMode::Plain), Ok(8));
                let found = u64::from_le_bytes(bytes);
                assert!([0, value(8)].contains(&found), "{found}");
            });
            scope.spawn(|| {
                let child = Process::of(scene.process.fork().unwrap());
                let mut cpu = scene.machine.cpu(0);
                // The memory of the child is not registered.
                let found = [0, 8].map(|number| child.load::<u64>(&mut cpu, page(number)).unwrap());
                assert!(found == [value(8), 0] || found == [0, value(8)], "{found:?}");
            });
            scope.spawn(|| {
                for number in [8, 0] {
                    if let Some(pfn) = scene.process.frame_at(page(number)) {
                        let _ = scene.engine.migrate(pfn);
                    }
                }
            });
            let mover = scope.spawn(|| match uffd.move_pages(page(0), page(8), PAGE, MoveMode::empty()) {
                Ok(_) => true,
                // The child shares the page, or another task was reading it.
                Err(UffdError::Busy) => false,
                Err(error) => panic!("{error}"),
            });
            mover.join().unwrap()
        });
        let mut cpu = scene.machine.cpu(OLD);
        let at = if moved { 0 } else { 8 };
        assert_eq!(scene.process.load(&mut cpu, page(at)), Ok(value(8)));
        drop(cpu);
        end(scene, uffd);
    });
}

/// C-50: two MOVEs move the same page in opposite directions, concurrently with an mprotect of one of the
/// VMAs.
#[test]
fn c50_moves_concurrent_with_mprotect() {
    explore("two MOVEs concurrent with mprotect", 80, |locking| {
        let scene = Scene::new(locking);
        map(&scene.process, 8..9, ANON);
        let uffd = registered(&scene, 1, RegisterMode::MISSING, Features::SIGBUS);
        uffd.register(page(8), PAGE, RegisterMode::MISSING).unwrap();
        uffd.copy(page(8), &CONTENTS, WAKE).unwrap();
        thread::scope(|scope| {
            for (to, from) in [(0, 8), (8, 0)] {
                let uffd = &uffd;
                scope.spawn(move || {
                    let moved = uffd.move_pages(page(to), page(from), PAGE, MoveMode::empty());
                    let other = [
                        UffdError::Present,
                        UffdError::SourceHole,
                        UffdError::Busy,
                        UffdError::Invalid,
                        UffdError::NotRegistered,
                    ];
                    assert!(moved == Ok(PAGE) || other.map(Err).contains(&moved), "{moved:?}");
                });
            }
            scope.spawn(|| scene.process.mprotect(page(8), PAGE, RW).unwrap());
        });
        let mut cpu = scene.machine.cpu(OLD);
        let found = [0, 8].map(|number| scene.process.load::<u64>(&mut cpu, page(number)).ok());
        assert!(found.contains(&Some(COPIED)), "{found:?}");
        assert_eq!(scene.process.rss().anon, 1);
        drop(cpu);
        end(scene, uffd);
    });
}

/// C-53: no store succeeds after the write protection has returned, not even a store whose fault was in
/// progress.
#[test]
fn c53_write_protect_concurrent_with_stores_and_fork() {
    explore("write protection concurrent with stores and fork", 80, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        let uffd = uffd(&scene.process, Features::SIGBUS);
        uffd.register(page(0), PAGE, RegisterMode::WP).unwrap();
        let first = scene.acquainted(0, 0..1);
        thread::scope(|scope| {
            let (scene, uffd, mut first) = (&scene, &uffd, first);
            scope.spawn(move || {
                for value in [1u64, 2] {
                    let _ = scene.process.store(&mut first, page(0), value);
                }
            });
            scope.spawn(|| drop(scene.process.fork().unwrap()));
            scope.spawn(|| {
                uffd.write_protect(page(0), PAGE, ProtectMode::WP).unwrap();
                let mut cpu = scene.machine.cpu(1);
                let seen: u64 = scene.process.load(&mut cpu, page(0)).unwrap();
                assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(seen), "a store succeeded");
                let refused = scene.process.store(&mut cpu, page(0), 3u64);
                assert_eq!(refused, Err(FaultError::Bus { addr: page(0) }));
                assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(seen), "a store succeeded");
            });
        });
        end(scene, uffd);
    });
}

/// C-53 for a page that was shared with a child, which has exited. The next store finds that the page is
/// exclusive.
#[test]
fn c53_write_protect_concurrent_with_reuse_of_an_exclusive_page() {
    explore("write protection concurrent with a store to a page that was shared", 150, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        drop(scene.process.fork().unwrap());
        let uffd = uffd(&scene.process, Features::SIGBUS);
        uffd.register(page(0), PAGE, RegisterMode::WP).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let stored = scene.process.store(&mut scene.machine.cpu(0), page(0), 1u64);
                assert!(matches!(stored, Ok(()) | Err(FaultError::Bus { .. })), "{stored:?}");
            });
            scope.spawn(|| {
                uffd.write_protect(page(0), PAGE, ProtectMode::WP).unwrap();
                let refused = scene.process.store(&mut scene.machine.cpu(1), page(0), 3u64);
                assert_eq!(refused, Err(FaultError::Bus { addr: page(0) }));
            });
        });
        end(scene, uffd);
    });
}

/// C-53: a page of shared memory that the pager fills write-protected is protected from the start. A store
/// always raises a bus error, because the page is either missing or protected.
#[test]
fn c53_protected_fill_concurrent_with_accesses() {
    explore("a write-protected fill of shared memory concurrent with a load and a store", 100, |locking| {
        let scene = Scene::new(locking);
        let mapping = Mapping::new(&scene.engine, Zeroes, PAGE, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "shm").unwrap();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        assert_eq!(scene.process.mmap(page(0), PAGE, RW, flags, Some(&file), 0), Ok(page(0)));
        let uffd = uffd(&scene.process, Features::SIGBUS);
        uffd.register(page(0), PAGE, RegisterMode::MISSING | RegisterMode::WP).unwrap();
        let refused = FaultError::Bus { addr: page(0) };
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(uffd.copy(page(0), &CONTENTS, FillMode::WP), Ok(PAGE)));
            scope.spawn(|| {
                let stored = scene.process.store(&mut scene.machine.cpu(0), page(0), 1u64);
                assert_eq!(stored, Err(refused));
            });
            scope.spawn(|| {
                let found = scene.process.load(&mut scene.machine.cpu(1), page(0));
                assert!([Ok(COPIED), Err(refused)].contains(&found), "{found:?}");
            });
        });
        let mut cpu = scene.machine.cpu(OLD);
        assert_eq!(scene.process.store(&mut cpu, page(0), 1u64), Err(refused));
        assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(COPIED));
        drop((cpu, file, mapping));
        end(scene, uffd);
    });
}

/// C-48: MOVE moves a page while its memory fails. The page is lost, at its old or its new address, and its
/// frame is mapped nowhere.
#[test]
fn c48_move_concurrent_with_memory_failure() {
    explore("MOVE concurrent with a memory failure of the page", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(8..9);
        let uffd = registered(&scene, 1, RegisterMode::MISSING, Features::SIGBUS);
        let pfn = scene.process.frame_at(page(8)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let moved = uffd.move_pages(page(0), page(8), PAGE, MoveMode::empty());
                let other = [UffdError::Busy, UffdError::BadAddress].map(Err);
                assert!(moved == Ok(PAGE) || other.contains(&moved), "{moved:?}");
            });
            // During the move, the memory failure may not find the page, so the failure is reported again.
            scope.spawn(|| {
                while scene.engine.memory_failure(pfn).is_err() {
                    thread::yield_now();
                }
            });
        });
        let mut cpu = scene.machine.cpu(OLD);
        for number in [0, 8] {
            assert_ne!(scene.process.frame_at(page(number)), Some(pfn), "a frame out of use is mapped");
            let found = scene.process.load::<u64>(&mut cpu, page(number));
            assert_ne!(found, Ok(value(8)));
        }
        drop((cpu, uffd));
        scene.process.check();
        unmap(&scene.process, 0..16);
        let Scene { process, engine, machine, .. } = scene;
        drop((process, engine));
        assert_eq!(machine.accounting().frames, 1, "the frame that failed");
    });
}
