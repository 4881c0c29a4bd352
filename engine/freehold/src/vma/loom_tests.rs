//! Tests with loom of the slab and the VMA lock together: a reader accesses an object late, or wakes a waiter
//! by its address, and the memory must still be allocated (hazards C-19, C-22).
//!
//! A test uses objects that consist of a VMA's lock words, and a host (`Watched`) that checks each wake-up.
//! `end_beside` runs a reader concurrently with the end of the only object. loom tries the interleavings up
//! to a number of preemptions, and reports an access that is not ordered before the release of the memory. To
//! add a case, write a function that takes a `World` and pass it to `end_beside`. `cargo xtask loom` runs the
//! tests.
#![expect(unsafe_code, reason = "allocates and frees objects of a slab; passes on the contract of a host")]

use super::slab::{Item, Links, Slab};
use core::ptr::NonNull;
use freehold_sync::{
    Host, Killed, LockContext, MmapLock, RcuHead, VmaCount, VmaLock, VmaSeq,
    atomic::{
        AtomicBool, AtomicU32,
        Ordering::{Acquire, Release},
    },
    testing::{LoomHost, model_bounded},
};
use loom::{cell::UnsafeCell, sync::Arc, thread};

/// loom's host. Its `wake_one` also checks that the word is still allocated.
struct Watched;

loom::lazy_static! {
    /// Address of the words of the object under test, which `Watched` checks.
    static ref FOUND: core::sync::atomic::AtomicPtr<Words> = core::sync::atomic::AtomicPtr::default();
}

// SAFETY: all functions are those of loom's host.
unsafe impl Host for Watched {
    const MAX_CPUS: usize = LoomHost::MAX_CPUS;

    fn wait(word: &AtomicU32, expected: u32) {
        LoomHost::wait(word, expected);
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        LoomHost::wait_killable(word, expected)
    }

    fn wake_one(word: &AtomicU32) {
        // SAFETY: null, or the address of words in an `Arc` that lives as long as the model.
        let found = unsafe { FOUND.load(Acquire).as_ref() };
        // Among the words that tasks sleep on in these models, only the VMA's count is checked. The other
        // words belong to the mmap lock.
        if let Some(words) = found.filter(|words| words.is(word)) {
            words.touch();
        }
        LoomHost::wake_one(word);
    }

    fn wake_all(word: &AtomicU32) {
        LoomHost::wake_all(word);
    }

    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        LoomHost::with_cpu(f)
    }

    fn now_ns() -> u64 {
        0
    }

    fn relax() {
        LoomHost::relax();
    }

    fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
        LoomHost::lock_context(f)
    }

    type RcuGuard = <LoomHost as Host>::RcuGuard;

    fn rcu_read() -> Self::RcuGuard {
        LoomHost::rcu_read()
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller's promise.
        unsafe { LoomHost::rcu_defer(head, f) };
    }

    fn rcu_barrier() {
        LoomHost::rcu_barrier();
    }
}

/// The lock words of an object, and the state that the tests check. Allocated separately from the object, so
/// that an access after the object is freed is detected.
struct Words {
    count: VmaCount,
    seq: VmaSeq,
    /// True once the object's memory is freed. loom reports a thread that reads this without being ordered
    /// before the write.
    gone: UnsafeCell<bool>,
    /// Written by the thread that owns the object.
    owned: UnsafeCell<()>,
}

// SAFETY: loom checks the accesses to the cells.
unsafe impl Sync for Words {}
// SAFETY: plain values.
unsafe impl Send for Words {}

impl Words {
    /// Fails if the memory of the object was freed.
    fn touch(&self) {
        // SAFETY: loom checks that no thread writes concurrently.
        self.gone.with(|gone| assert!(!unsafe { *gone }, "the memory of an object in use was freed"));
    }

    fn lock(&self) -> VmaLock<'_> {
        VmaLock { count: &self.count, seq: &self.seq }
    }

    /// Returns true if `word` lies in the VMA's count.
    fn is(&self, word: &AtomicU32) -> bool {
        let count = core::ptr::from_ref(&self.count).addr();
        (count..count + size_of::<VmaCount>()).contains(&core::ptr::from_ref(word).addr())
    }
}

/// An object of the slab.
struct Object {
    links: Links<Object>,
    words: Arc<Words>,
}

impl Item for Object {
    fn blank() -> Self {
        let words = Words {
            count: VmaCount::new(),
            seq: VmaSeq::new(),
            gone: UnsafeCell::new(false),
            owned: UnsafeCell::new(()),
        };
        Object { links: Links::new(), words: Arc::new(words) }
    }

    fn links(&self) -> &Links<Self> {
        &self.links
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: loom checks that no thread reads or writes concurrently.
        self.words.gone.with_mut(|gone| unsafe { *gone = true });
    }
}

/// One object, and the state that its reader and its owner share.
struct World {
    slab: Slab<Object, Watched>,
    lock: MmapLock<Watched>,
    /// True while a reader can find the object.
    found: AtomicBool,
    words: Arc<Words>,
}

/// Runs `reader`, which holds no lock, concurrently with a thread that detaches and frees the only object and
/// trims the slab. Fails if the object's memory is freed too early, or not at all.
fn end_beside(reader: fn(&World)) {
    model_bounded(3, move || {
        let slab = Slab::<Object, Watched>::try_new().unwrap();
        let object = slab.take().unwrap();
        // SAFETY: this thread owns the object.
        let words = unsafe { object.as_ref() }.words.clone();
        FOUND.store(core::ptr::from_ref(&*words).cast_mut(), Release);
        let world = Arc::new(World { slab, lock: MmapLock::new(), found: AtomicBool::new(true), words });
        {
            let guard = world.lock.write();
            world.words.lock().write(&guard);
            world.words.lock().attach(&guard);
            world.words.lock().unlock_write();
        }
        let other = thread::spawn({
            let world = world.clone();
            move || reader(&world)
        });
        let guard = world.lock.write();
        world.words.lock().write(&guard);
        world.found.store(false, Release);
        world.words.lock().detach(&guard);
        drop(guard);
        // SAFETY: taken above. Only the reader can still use the object, and the reader is in a read section.
        unsafe { world.slab.give(object) };
        world.slab.trim();
        other.join().unwrap();
        LoomHost::rcu_barrier();
        // SAFETY: no other thread is left.
        assert!(world.words.gone.with(|gone| unsafe { *gone }), "an idle chunk was not freed");
    });
}

/// Accesses the object as a fault does.
fn look(world: &World) {
    let section = Watched::rcu_read();
    if !world.found.load(Acquire) {
        return;
    }
    world.words.touch();
    let locked = world.words.lock().try_read(&world.lock, || {
        world.words.touch();
        true
    });
    world.words.touch();
    drop(section);
    if let Ok(place) = locked {
        world.words.touch();
        world.words.lock().unlock_read::<Watched>(place);
    }
}

#[test]
fn c22_late_reader_accesses_allocated_memory() {
    end_beside(look);
}

/// The reader leaves its read section once it holds the lock.
#[test]
fn c19_leaving_reader_wakes_waiter_at_allocated_address() {
    end_beside(|world| {
        let section = Watched::rcu_read();
        let found = world.found.load(Acquire);
        let locked = found.then(|| world.words.lock().try_read(&world.lock, || true));
        drop(section);
        if let Some(Ok(place)) = locked {
            world.words.lock().unlock_read::<Watched>(place);
        }
    });
}

/// Takes an object, writes to it as its owner, and frees it.
fn use_one(slab: &Slab<Object, Watched>) {
    let object = slab.take().unwrap();
    // SAFETY: this thread owns the object until it frees it.
    let words = unsafe { object.as_ref() }.words.clone();
    words.touch();
    // SAFETY: no other thread owns the object; loom checks that.
    words.owned.with_mut(|owned| unsafe { *owned = () });
    // SAFETY: taken above, and no thread can find the object.
    unsafe { slab.give(object) };
}

#[test]
fn object_has_one_owner_at_a_time() {
    model_bounded(2, || {
        let slab = Arc::new(Slab::<Object, Watched>::try_new().unwrap());
        let other = thread::spawn({
            let slab = slab.clone();
            move || {
                use_one(&slab);
                slab.trim();
            }
        });
        use_one(&slab);
        slab.trim();
        use_one(&slab);
        other.join().unwrap();
        LoomHost::rcu_barrier();
    });
}
