//! A file whose reads take long: a fault that waits for a read holds no lock that another task needs.
//!
//! The code under test is `fault/file.rs` and `file/fill.rs`. The disk ([`Slow`]) answers a read only when
//! the scenario calls `answer`. In the meantime, another thread changes the mapping, the space or the file.
//! If the fault held a lock that such a change needs, the checker would report a deadlock. After the wait,
//! the fault must see the changed state. A scenario begins with `mapped`; `wait_until_asked` returns when a
//! fault waits for a read.

use crate::{
    explore::{explore, explore_until, thread},
    files::Opened,
    scene::{ANON, PAGE, R, RW, Scene, beyond, map, page, unmap, unmapped},
};
use freehold::{
    PageIndex, Pfn,
    fault::FaultError,
    file::{File, FileAccess, IoError, Mapping, Pager},
    platform::Platform,
    space::{Locking, MapFlags},
};
use freehold_machine::{Machine, Process, Task};
use freehold_sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Arc;

/// State of the disk in which reads wait.
const CLOSED: u64 = 0;
/// State of the disk in which reads succeed.
const OPEN: u64 = 1;
/// State of the disk in which reads fail.
const BROKEN: u64 = 2;

/// A disk that answers a read only on command. The first word of each page is 7.
#[derive(Clone)]
struct Slow {
    /// State of the disk.
    gate: Arc<AtomicU64>,
    /// Number of reads that were requested.
    asked: Arc<AtomicU64>,
}

impl Slow {
    fn new() -> Self {
        Slow { gate: Arc::new(AtomicU64::new(CLOSED)), asked: Arc::new(AtomicU64::new(0)) }
    }

    fn file(&self, scene: &Scene) -> Opened {
        let mapping = Mapping::new(&scene.engine, self.clone(), 2 * PAGE, false).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "slow").unwrap()
    }

    fn answer(&self, how: u64) {
        self.gate.store(how, SeqCst);
    }

    fn wait_until_asked(&self) {
        while self.asked.load(SeqCst) == 0 {
            thread::yield_now();
        }
    }
}

impl Pager<Machine> for Slow {
    fn read_page(&self, platform: &Machine, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
        self.asked.fetch_add(1, SeqCst);
        while self.gate.load(SeqCst) == CLOSED {
            thread::yield_now();
        }
        platform.zero_frame(frame);
        platform.write_frame(frame, 0, &[7]);
        if self.gate.load(SeqCst) == BROKEN { Err(IoError) } else { Ok(()) }
    }
}

/// Maps both pages of the file at page `at`.
fn map_file(process: &Process, file: &Opened, at: u64, flags: MapFlags) {
    let mapped = process.mmap(page(at), 2 * PAGE, RW, flags | MapFlags::FIXED, Some(file), 0);
    assert_eq!(mapped, Ok(page(at)));
}

/// Returns a scene, and a slow file that its process maps at page 0.
fn mapped(locking: Locking, kind: MapFlags) -> (Scene, Slow, Opened) {
    let (scene, slow) = (Scene::new(locking), Slow::new());
    let file = slow.file(&scene);
    map_file(&scene.process, &file, 0, kind);
    (scene, slow, file)
}

#[test]
fn space_and_file_tree_may_change_during_a_read() {
    explore("a fault that waits for a file until its space has changed", 30, |locking| {
        for kind in [MapFlags::SHARED, MapFlags::PRIVATE] {
            let (scene, slow, file) = mapped(locking, kind);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut cpu = scene.machine.cpu(0);
                    scene.process.store(&mut cpu, page(0) + 8, 1u64).unwrap();
                    assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(7u64));
                });
                scope.spawn(|| {
                    slow.wait_until_asked();
                    // Takes the mmap lock, the lock of the file's VMAs, and the VMA lock of the faulting VMA
                    // for writing.
                    map(&scene.process, 8..9, ANON);
                    unmap(&scene.process, 8..9);
                    map_file(&scene.process, &file, 4, MapFlags::SHARED);
                    unmap(&scene.process, 4..6);
                    scene.process.mprotect(page(1), PAGE, R).unwrap();
                    drop(scene.process.fork().unwrap());
                    slow.answer(OPEN);
                });
            });
            unmap(&scene.process, 0..2);
            drop(file);
            scene.assert_empty();
            scene.end();
        }
    });
}

#[test]
fn mapping_may_be_unmapped_during_a_read() {
    explore("a fault that waits for a file that is unmapped in the meantime", 30, |locking| {
        let (scene, slow, file) = mapped(locking, MapFlags::SHARED);
        thread::scope(|scope| {
            scope.spawn(|| {
                // After the wait, page 1 has another mapping, and page 0 has none.
                let mut cpu = scene.machine.cpu(0);
                assert_eq!(scene.process.load::<u64>(&mut cpu, page(0)), unmapped(page(0)));
                assert_eq!(scene.process.load(&mut cpu, page(1)), Ok(0u64));
            });
            scope.spawn(|| {
                slow.wait_until_asked();
                unmap(&scene.process, 0..2);
                map(&scene.process, 1..2, ANON);
                slow.answer(OPEN);
            });
        });
        unmap(&scene.process, 1..2);
        drop(file);
        scene.assert_empty();
        scene.end();
    });
}

/// C-72: a fault waits for a read of the disk that another task has started. The fault can be killed, and
/// the other tasks continue.
#[test]
fn c72_fault_is_killed_while_the_disk_hangs() {
    // This is an atomic of the standard library, because the count continues from schedule to schedule.
    let ended = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = ended.clone();
    let name = "a fault that is killed while another waits for the disk";
    explore_until(
        &Locking::ALL,
        name,
        60,
        || ended.load(SeqCst) > 0,
        move |locking| {
            let (scene, slow, file) = mapped(locking, MapFlags::SHARED);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let found = scene.process.load::<u64>(&mut scene.machine.cpu(0), page(0));
                    assert_eq!(found, Ok(7));
                });
                scope.spawn(|| {
                    slow.wait_until_asked();
                    Task::current().interrupt_wait(1);
                    let found = scene.process.load::<u64>(&mut scene.machine.cpu(1), page(0));
                    assert!([Ok(7), Err(FaultError::Killed)].contains(&found), "{found:?}");
                    counted.fetch_add(u64::from(found.is_err()), SeqCst);
                    Task::current().revive();
                });
                scope.spawn(|| {
                    slow.wait_until_asked();
                    file.mapping().truncate(PAGE).unwrap();
                });
                scope.spawn(|| {
                    slow.wait_until_asked();
                    map(&scene.process, 8..9, ANON);
                    unmap(&scene.process, 8..9);
                    slow.answer(OPEN);
                });
            });
            unmap(&scene.process, 0..2);
            drop(file);
            scene.assert_empty();
            scene.end();
        },
    );
}

#[test]
fn c26_truncation_wins_over_a_read_in_progress() {
    for answer in [OPEN, BROKEN] {
        explore("truncation concurrent with a read that succeeds or fails", 30, move |locking| {
            let (scene, slow, file) = mapped(locking, MapFlags::SHARED);
            let cut = AtomicU64::new(0);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let late = cut.load(SeqCst) != 0;
                    let found = scene.process.load::<u64>(&mut scene.machine.cpu(0), page(1));
                    let came = answer == OPEN && !late;
                    assert!(found == beyond(page(1)) || (came && found == Ok(7)), "{found:?}");
                });
                scope.spawn(|| {
                    // Both the truncation and the fault complete. The truncation may come before the fault
                    // requests the page.
                    file.mapping().truncate(0).unwrap();
                    cut.store(1, SeqCst);
                });
                scope.spawn(|| {
                    map(&scene.process, 8..9, ANON);
                    slow.answer(answer);
                });
            });
            let mut cpu = scene.machine.cpu(1);
            assert_eq!(scene.process.load::<u64>(&mut cpu, page(1)), beyond(page(1)));
            assert!(!file.mapping().has_page(PageIndex::new(1)) && scene.process.rss().file == 0);
            // After the file has grown, the truncated page is read again.
            file.mapping().truncate(2 * PAGE).unwrap();
            slow.answer(OPEN);
            assert_eq!(scene.process.load(&mut cpu, page(1)), Ok(7u64));
            drop((cpu, file));
            scene.end();
        });
    }
}
