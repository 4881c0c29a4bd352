//! A VMA and two address spaces ([`World`]), and the operations on them that several tests share. The second
//! space exists for a VMA that is recycled while a reader still has its address.
//!
//! `external_rwsem.rs`, `per_cpu.rs` and `main.rs` run the operations under loom, each for one kind of
//! reader. The data of the VMA is a plain cell, so loom reports an access that the VMA's lock does not
//! exclude.

use freehold_sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold_sync::counted::Counted;
use freehold_sync::testing::LoomHost;
use freehold_sync::{
    FaultLock, MmapLock, MmapWriteGuard, ReadFail, ReaderPlace, ReaderSlots, VmaCount, VmaLock, VmaSeq,
};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// The mmap lock of a space.
pub type Lock = MmapLock<LoomHost>;
/// The guard of a space's mmap lock held for writing.
type WriteGuard<'a> = MmapWriteGuard<'a, LoomHost>;

/// A VMA, and two address spaces that it may belong to.
pub struct World {
    pub spaces: [Lock; 2],
    count: VmaCount,
    seq: VmaSeq,
    /// Index of the address space that the VMA belongs to.
    pub owner: AtomicU64,
    pub start: AtomicU64,
    /// Guarded by the VMA's lock.
    data: UnsafeCell<u32>,
}

// SAFETY: the data is accessed under the lock, and loom checks that this suffices.
unsafe impl Sync for World {}
// SAFETY: the data is a number.
unsafe impl Send for World {}

pub const START: u64 = 0x1000;

impl World {
    /// Creates a world with the VMA in the first space, at `START`, with data 1.
    pub fn new() -> Arc<Self> {
        Self::with_locks([Lock::new(), Lock::new()])
    }

    /// Creates a world with slots, whose VMA is per-CPU from the beginning.
    pub fn per_cpu() -> Arc<Self> {
        let world = Self::with_slots();
        world.vma().make_per_cpu();
        world
    }

    /// Creates a world with slots, whose VMA becomes per-CPU when readers contend.
    pub fn with_slots() -> Arc<Self> {
        let slots = Counted::try_new(ReaderSlots::try_new().unwrap()).unwrap();
        Self::with_locks([(); 2].map(|()| Lock::new().with_slots(slots.clone())))
    }

    /// Creates a world in which readers of the first space use slots and readers of the second space never
    /// use slots.
    pub fn half_per_cpu() -> Arc<Self> {
        let slots = Counted::try_new(ReaderSlots::try_new().unwrap()).unwrap();
        let world = Self::with_locks([
            Lock::new().with_slots(slots.clone()),
            Lock::new().with_slots(slots.clone()).with_fault_lock(FaultLock::VmaCount),
        ]);
        world.vma().make_per_cpu();
        world
    }

    /// Creates a world whose VMA has an external rwsem in the spaces that `rwsems` selects.
    pub fn with_external_rwsems(rwsems: [bool; 2]) -> Arc<Self> {
        Self::with_locks(rwsems.map(|rwsems| {
            if rwsems { Lock::new().with_fault_lock(FaultLock::VmaRwsem) } else { Lock::new() }
        }))
    }

    pub fn with_locks(spaces: [Lock; 2]) -> Arc<Self> {
        Self::with_seq(spaces, VmaSeq::new())
    }

    pub fn with_seq(spaces: [Lock; 2], seq: VmaSeq) -> Arc<Self> {
        let world = World {
            spaces,
            count: VmaCount::new(),
            seq,
            owner: AtomicU64::new(0),
            start: AtomicU64::new(0),
            data: UnsafeCell::new(0),
        };
        world.born(0, START, 1);
        Arc::new(world)
    }

    pub fn vma(&self) -> VmaLock<'_> {
        VmaLock { count: &self.count, seq: &self.seq }
    }

    /// Attaches the VMA to a space, as the engine does with a VMA from the slab.
    pub fn born(&self, space: usize, start: u64, data: u32) {
        self.vma().init_detached();
        if self.spaces[space].uses_rwsems() {
            self.count.make_external_rwsem::<LoomHost>().unwrap();
        }
        let guard = self.spaces[space].write();
        // Written as late as is allowed: only the release in `attach` publishes the fields to a reader that
        // finds the VMA attached.
        self.owner.store(space as u64, Relaxed);
        self.start.store(start, Relaxed);
        self.set(data);
        self.vma().attach(&guard);
        self.vma().unlock_write();
    }

    /// Detaches the VMA, as the engine does when it unmaps a VMA.
    pub fn dies(&self, guard: &WriteGuard<'_>) {
        self.vma().write(guard);
        self.vma().detach(guard);
    }

    pub fn try_read(&self, space: usize) -> Result<ReaderPlace<'_>, ReadFail> {
        self.vma().try_read(&self.spaces[space], || self.owner.load(Relaxed) == space as u64)
    }

    pub fn unlock(&self, place: ReaderPlace<'_>) {
        self.vma().unlock_read::<LoomHost>(place);
    }

    /// Returns the data. The caller holds the VMA's lock.
    pub fn get(&self) -> u32 {
        // SAFETY: the lock excludes writers; loom checks that.
        self.data.with(|data| unsafe { *data })
    }

    /// Sets the data. The caller has write-locked the VMA.
    pub fn set(&self, value: u32) {
        // SAFETY: the lock excludes other accesses; loom checks that.
        self.data.with_mut(|data| unsafe { *data = value });
    }
}

/// Starts a thread that runs `f`.
pub fn spawn(world: &Arc<World>, f: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || f(&world))
}

/// Reads the data if the VMA of the first space can be locked at once.
pub fn look(world: &World) {
    if let Ok(place) = world.try_read(0) {
        world.get();
        world.unlock(place);
    }
}

/// Adds 1 to the data under the locks of a writer of the first space.
pub fn change(world: &World) {
    let guard = world.spaces[0].write();
    world.vma().write(&guard);
    world.set(world.get() + 1);
    world.vma().unlock_write();
}

/// Moves the VMA to the second space, which write-locks and changes it.
pub fn recycled_into_another_space(world: &World) {
    let guard = world.spaces[0].write();
    world.dies(&guard);
    drop(guard);
    world.born(1, START, 2);
    let guard = world.spaces[1].write();
    world.vma().write(&guard);
    world.set(3);
    world.vma().unlock_write();
    drop(guard);
}

/// Reads the VMA as a late reader that has found it in the tree of the first space. If the lock succeeds, the
/// VMA belongs to that space.
pub fn read_as_late_reader(world: &World) {
    if let Ok(place) = world.try_read(0) {
        assert_eq!(world.owner.load(Relaxed), 0, "a reader has locked a VMA of another space");
        assert_eq!(world.get(), 1);
        world.unlock(place);
    }
}

/// Reads as a reader of the second space, while [`recycled_into_another_space`] runs.
pub fn read_in_second_space(world: &World) {
    if let Ok(place) = world.try_read(1) {
        assert!((2..=3).contains(&world.get()));
        world.unlock(place);
    }
}

/// Checks that the VMA belongs to the second space in the end, with the change made there.
pub fn check_recycled(world: &World) {
    assert_eq!(world.try_read(0).err(), Some(ReadFail::Foreign));
    let place = world.try_read(1).unwrap();
    assert_eq!(world.get(), 3);
    world.unlock(place);
}

/// Runs a reader and a writer. After the writer's section, the VMA is readable and has the change.
pub fn a_reader_and_a_writer(world: &Arc<World>) {
    let writer = spawn(world, change);
    look(world);
    writer.join().unwrap();
    let place = world.try_read(0).expect("the end of the section unlocks the VMA");
    assert_eq!(world.get(), 2);
    world.unlock(place);
}

/// Runs two readers and a writer.
pub fn two_readers_and_a_writer(world: &Arc<World>) {
    let others = [spawn(world, look), spawn(world, look)];
    change(world);
    others.into_iter().for_each(|other| other.join().unwrap());
    let place = world.try_read(0).unwrap();
    world.unlock(place);
}

/// Runs a reader and a task that detaches the VMA. No task reads the VMA afterwards.
pub fn a_reader_and_a_detacher(world: &Arc<World>) {
    let writer = spawn(world, |world| {
        let guard = world.spaces[0].write();
        world.dies(&guard);
        drop(guard);
        assert!(world.vma().is_detached());
        world.set(9);
    });
    match world.try_read(0) {
        Ok(place) => {
            assert_eq!(world.get(), 1);
            world.unlock(place);
        }
        Err(fail) => assert!(matches!(fail, ReadFail::Detached | ReadFail::Locked), "{fail:?}"),
    }
    writer.join().unwrap();
}

/// Runs a late reader of the first space while the VMA moves to the second space.
pub fn a_late_reader_of_a_recycled_vma(world: &Arc<World>) {
    let writer = spawn(world, recycled_into_another_space);
    read_as_late_reader(world);
    writer.join().unwrap();
    check_recycled(world);
}

/// Runs a late reader of the first space and a reader of the second space.
pub fn a_late_reader_and_a_reader_of_this_life(world: &Arc<World>) {
    let writer = spawn(world, recycled_into_another_space);
    let second_reader = spawn(world, read_in_second_space);
    read_as_late_reader(world);
    writer.join().unwrap();
    second_reader.join().unwrap();
}
