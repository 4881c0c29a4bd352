//! The lock of a VMA under all schedules and all orders that the memory model allows.
//!
//! What the lock guards lies in cells that loom watches: whoever is let in too early is reported as a race, and a lost
//! wake-up as a deadlock. The limit of readers is two here. Tests of three threads are bounded, as they say.
#![cfg(loom)]

use freehold_sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold_sync::testing::{LoomHost, model, model_bounded};
use freehold_sync::{MmapLock, MmapWriteGuard, ReadFail, VmaCount, VmaLock, VmaSeq};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

type Lock = MmapLock<LoomHost>;
type WriteGuard<'a> = MmapWriteGuard<'a, LoomHost>;

/// A VMA, and two spaces that it may belong to.
struct World {
    spaces: [Lock; 2],
    count: VmaCount,
    seq: VmaSeq,
    /// Which of the spaces.
    owner: AtomicU64,
    start: AtomicU64,
    /// Guarded by the VMA's lock.
    data: UnsafeCell<u32>,
}

// SAFETY: the data is touched under the lock, and loom checks that this suffices.
unsafe impl Sync for World {}
// SAFETY: a number.
unsafe impl Send for World {}

const START: u64 = 0x1000;

impl World {
    /// The VMA is in the first space, at `START`, with data 1.
    fn new() -> Arc<Self> {
        Self::with_locks([Lock::new(), Lock::new()])
    }

    fn with_locks(spaces: [Lock; 2]) -> Arc<Self> {
        let world = World {
            spaces,
            count: VmaCount::new(),
            seq: VmaSeq::new(),
            owner: AtomicU64::new(0),
            start: AtomicU64::new(0),
            data: UnsafeCell::new(0),
        };
        world.born(0, START, 1);
        Arc::new(world)
    }

    fn vma(&self) -> VmaLock<'_> {
        VmaLock { count: &self.count, seq: &self.seq }
    }

    /// What the engine does with a VMA from the slab.
    fn born(&self, space: usize, start: u64, data: u32) {
        self.vma().init_detached();
        let guard = self.spaces[space].write();
        self.vma().write(&guard);
        // As late as is allowed: only the release of `attach` makes it known to who finds the VMA attached.
        self.owner.store(space as u64, Relaxed);
        self.start.store(start, Relaxed);
        self.set(data);
        self.vma().attach(&guard);
    }

    /// What the engine does when it unmaps it.
    fn dies(&self, guard: &WriteGuard<'_>) {
        self.vma().write(guard);
        self.vma().detach(guard);
    }

    fn try_read(&self, space: usize) -> Result<(), ReadFail> {
        self.vma().try_read(&self.spaces[space], || self.owner.load(Relaxed) == space as u64)
    }

    fn unlock(&self) {
        self.vma().unlock_read::<LoomHost>();
    }

    fn get(&self) -> u32 {
        // SAFETY: as for `Sync`.
        self.data.with(|data| unsafe { *data })
    }

    fn set(&self, value: u32) {
        // SAFETY: as for `Sync`.
        self.data.with_mut(|data| unsafe { *data = value });
    }
}

fn spawn(world: &Arc<World>, f: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || f(&world))
}

fn look(world: &World) {
    if world.try_read(0).is_ok() {
        world.get();
        world.unlock();
    }
}

fn change(world: &World) {
    let guard = world.spaces[0].write();
    world.vma().write(&guard);
    world.set(world.get() + 1);
}

#[test]
fn a_reader_beside_a_writer() {
    model(|| {
        let world = World::new();
        let writer = spawn(&world, change);
        look(&world);
        writer.join().unwrap();
        assert_eq!(world.try_read(0), Ok(()), "the end of the section unlocks it");
        assert_eq!(world.get(), 2);
        world.unlock();
    });
}

/// The writer goes on as a reader of the space: its VMAs are unlocked by then.
#[test]
fn a_reader_beside_a_downgrade() {
    model(|| {
        let world = World::new();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            world.vma().write(&guard);
            world.set(2);
            let guard = guard.downgrade();
            world.get();
            drop(guard);
        });
        look(&world);
        writer.join().unwrap();
    });
}

#[test]
fn two_readers_beside_a_writer() {
    model_bounded(2, || {
        let world = World::new();
        let others = [spawn(&world, look), spawn(&world, look)];
        change(&world);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(world.try_read(0), Ok(()));
        world.unlock();
    });
}

/// To lock it twice, and to change it in two sections.
#[test]
fn a_reader_beside_two_sections() {
    model_bounded(3, || {
        let world = World::new();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            world.vma().write(&guard);
            world.vma().write(&guard);
            world.set(2);
            drop(guard);
            change(world);
        });
        look(&world);
        writer.join().unwrap();
    });
}

/// Under the space's lock a reader gets in always, whatever other readers do.
#[test]
fn reading_under_the_space_lock() {
    model_bounded(3, || {
        let world = World::new();
        let reader = spawn(&world, |world| {
            let guard = world.spaces[0].read();
            assert_eq!(world.vma().read_under(&guard), Ok(()));
            drop(guard);
            world.get();
            world.unlock();
        });
        let writer = spawn(&world, change);
        look(&world);
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(world.get(), 2);
    });
}

/// Detached means that nobody reads it any more, and nobody gets in.
#[test]
fn a_reader_beside_a_detacher() {
    model(|| {
        let world = World::new();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            world.dies(&guard);
            drop(guard);
            assert!(world.vma().is_detached());
            world.set(9);
        });
        match world.try_read(0) {
            Ok(()) => {
                assert_eq!(world.get(), 1);
                world.unlock();
            }
            Err(fail) => assert!(matches!(fail, ReadFail::Detached | ReadFail::Locked), "{fail:?}"),
        }
        writer.join().unwrap();
        assert!(world.vma().is_detached());
        assert_eq!(world.try_read(0), Err(ReadFail::Detached));
    });
}

/// A space comes to the VMA in its second life, locks it for writing and changes it.
fn recycled_into_another_space(world: &World) {
    let guard = world.spaces[0].write();
    world.dies(&guard);
    drop(guard);
    world.born(1, START, 2);
    let guard = world.spaces[1].write();
    world.vma().write(&guard);
    world.set(3);
    drop(guard);
}

/// Hazards C-19 and C-22: a reader comes from the tree of the first space, as late as it likes. It never takes the VMA
/// of the second space for its own, and its passing by keeps no writer of that space asleep.
#[test]
fn c19_a_late_reader_and_a_vma_of_another_space() {
    model_bounded(4, || {
        let world = World::new();
        let writer = spawn(&world, recycled_into_another_space);
        if world.try_read(0).is_ok() {
            assert_eq!(world.owner.load(Relaxed), 0, "a VMA of another space was taken for ours");
            assert_eq!(world.get(), 1);
            world.unlock();
        }
        writer.join().unwrap();
        assert_eq!(world.try_read(0), Err(ReadFail::Foreign));
        assert_eq!(world.try_read(1), Ok(()));
        assert_eq!(world.get(), 3);
        world.unlock();
    });
}

/// The same, with a second thread of the new space that reads the VMA by right.
#[test]
fn c19_a_late_reader_beside_a_rightful_one() {
    model_bounded(2, || {
        let world = World::new();
        let writer = spawn(&world, recycled_into_another_space);
        let rightful = spawn(&world, |world| {
            if world.try_read(1).is_ok() {
                assert!((2..=3).contains(&world.get()));
                world.unlock();
            }
        });
        if world.try_read(0).is_ok() {
            assert_eq!(world.get(), 1);
            world.unlock();
        }
        writer.join().unwrap();
        rightful.join().unwrap();
        assert_eq!(world.try_read(1), Ok(()), "no count was lost");
        world.unlock();
    });
}

/// Hazard C-22 (f): recycled in the same space, elsewhere. Only the bounds tell, and they are believed after the lock.
#[test]
fn c22_a_late_reader_and_a_vma_that_lies_elsewhere() {
    model_bounded(4, || {
        let world = World::new();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            world.dies(&guard);
            drop(guard);
            world.born(0, 2 * START, 2);
        });
        if world.try_read(0).is_ok() {
            let first_life = world.start.load(Relaxed) == START;
            assert_eq!(world.get(), if first_life { 1 } else { 2 });
            world.unlock();
        }
        writer.join().unwrap();
        assert_eq!(world.try_read(0), Ok(()));
        world.unlock();
    });
}

/// Hazard C-22 (h): a killed writer takes its bar away, and nothing has changed.
#[test]
fn c22_a_writer_is_killed() {
    model(|| {
        let world = World::new();
        let writer = spawn(&world, |world| {
            LoomHost::current_task().kill();
            let guard = world.spaces[0].write();
            match world.vma().write_killable(&guard) {
                Ok(()) => world.set(2),
                Err(_) => assert!(!world.vma().is_write_locked(&guard)),
            }
        });
        let seen = world.try_read(0).map(|()| {
            let seen = world.get();
            assert_eq!(world.get(), seen);
            world.unlock();
        });
        assert!(matches!(seen, Ok(()) | Err(ReadFail::Locked)), "{seen:?}");
        writer.join().unwrap();
        assert_eq!(world.try_read(0), Ok(()), "the bar was left behind");
        world.unlock();
    });
}

/// Killed while a reader is inside for certain; then it tries again, unkillably, and the reader's leaving wakes it.
#[test]
fn c72_a_writer_is_killed_and_tries_again() {
    model(|| {
        let world = World::new();
        assert_eq!(world.try_read(0), Ok(()));
        let writer = spawn(&world, |world| {
            LoomHost::current_task().kill();
            let guard = world.spaces[0].write();
            if world.vma().write_killable(&guard).is_err() {
                world.vma().write(&guard);
            }
            world.set(2);
        });
        assert_eq!(world.get(), 1);
        world.unlock();
        writer.join().unwrap();
        assert_eq!(world.try_read(0), Ok(()));
        world.unlock();
    });
}

/// A write lock that was held before a killed attempt to take it again is still held.
#[test]
fn a_killed_second_attempt_leaves_the_lock() {
    model(|| {
        let world = World::new();
        let writer = spawn(&world, |world| {
            let guard = world.spaces[0].write();
            world.vma().write(&guard);
            LoomHost::current_task().kill();
            let _ = world.vma().write_killable(&guard);
            assert!(world.vma().is_write_locked(&guard));
            world.set(2);
        });
        look(&world);
        writer.join().unwrap();
    });
}

/// Hazard C-20: at the limit the next reader is told so, and every count is given back.
#[test]
fn c20_too_many_readers() {
    model_bounded(3, || {
        let world = World::new();
        let visit = |world: &World| match world.try_read(0) {
            Ok(()) => {
                assert_eq!(world.get(), 1);
                world.unlock();
            }
            Err(fail) => assert_eq!(fail, ReadFail::TooMany),
        };
        let others = [spawn(&world, visit), spawn(&world, visit)];
        visit(&world);
        others.into_iter().for_each(|other| other.join().unwrap());
        let guard = world.spaces[0].write();
        world.dies(&guard);
        assert!(world.vma().is_detached());
    });
}

#[test]
fn c20_the_limit_is_a_value_and_no_panic() {
    model(|| {
        let world = World::new();
        assert_eq!(world.try_read(0), Ok(()));
        assert_eq!(world.try_read(0), Ok(()));
        assert_eq!(world.try_read(0), Err(ReadFail::TooMany));
        let guard = world.spaces[0].try_read().unwrap();
        assert_eq!(world.vma().read_under(&guard), Err(ReadFail::TooMany));
        world.unlock();
        assert_eq!(world.vma().read_under(&guard), Ok(()));
        drop(guard);
        world.unlock();
        world.unlock();
        let guard = world.spaces[0].write();
        world.dies(&guard);
        assert!(world.vma().is_detached());
    });
}

/// The number passes all ones, the value of a new VMA, and zero.
#[test]
fn the_sequence_wraps() {
    model_bounded(3, || {
        let world = World::with_locks([Lock::with_seq(u32::MAX - 3), Lock::new()]);
        let writer = spawn(&world, |world| {
            change(world);
            change(world);
        });
        look(&world);
        writer.join().unwrap();
        assert_eq!(world.spaces[0].seq(), 2);
        assert_eq!(world.try_read(0), Ok(()));
        assert_eq!(world.get(), 3);
        world.unlock();
    });
}

/// The VMA was last locked 2^31 sections ago: its number equals that of the section to come. A reader that got in
/// before is waited for all the same.
#[test]
fn a_number_from_before_the_wrap_locks_nobody_in() {
    model(|| {
        // The second lock stands for the first one, 2^31 sections later.
        let world = World::with_locks([Lock::with_seq(6), Lock::with_seq(6)]);
        world.owner.store(1, Relaxed);
        let writer = spawn(&world, |world| {
            let guard = world.spaces[1].write();
            assert!(world.vma().is_write_locked(&guard), "the numbers are equal by chance");
            world.vma().write(&guard);
            world.set(2);
        });
        if world.try_read(1).is_ok() {
            world.get();
            world.unlock();
        }
        writer.join().unwrap();
        assert_eq!(world.try_read(1), Ok(()));
        world.unlock();
    });
}
