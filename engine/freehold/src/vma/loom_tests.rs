//! A reader that comes late to an object of the slab, or wakes by its address, comes to memory that is there
//! still.
#![expect(unsafe_code, reason = "takes and gives objects of a slab; hands a host's contract on")]

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

/// loom's host, and a look whether the word is there by whose address it wakes.
struct Watched;

loom::lazy_static! {
    /// Where the words are of which that is to be looked at.
    static ref FOUND: core::sync::atomic::AtomicPtr<Words> = core::sync::atomic::AtomicPtr::default();
}

// SAFETY: it is loom's host.
unsafe impl Host for Watched {
    const MAX_CPUS: usize = LoomHost::MAX_CPUS;

    fn wait(word: &AtomicU32, expected: u32) {
        LoomHost::wait(word, expected);
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        LoomHost::wait_killable(word, expected)
    }

    fn wake_one(word: &AtomicU32) {
        // SAFETY: null, or of an `Arc` that stays as long as the model.
        let found = unsafe { FOUND.load(Acquire).as_ref() };
        // The VMA's count is the one word of interest that anybody sleeps on in these models; the mmap lock
        // has others.
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
        // SAFETY: as the caller promises.
        unsafe { LoomHost::rcu_defer(head, f) };
    }

    fn rcu_barrier() {
        LoomHost::rcu_barrier();
    }
}

/// What an object has words for. Beside it, so that a reader that comes too late is caught, instead of
/// finding anything.
struct Words {
    count: VmaCount,
    seq: VmaSeq,
    /// The object's memory was given back. loom reports a thread that looks at it beside that, in no order.
    gone: UnsafeCell<bool>,
    /// Written by the thread that has the object for itself.
    owned: UnsafeCell<()>,
}

// SAFETY: loom checks the accesses to the cells.
unsafe impl Sync for Words {}
// SAFETY: plain values.
unsafe impl Send for Words {}

impl Words {
    fn touch(&self) {
        // SAFETY: loom checks that nobody writes meanwhile.
        self.gone.with(|gone| assert!(!unsafe { *gone }, "the memory of an object in use was given back"));
    }

    fn lock(&self) -> VmaLock<'_> {
        VmaLock { count: &self.count, seq: &self.seq }
    }

    fn is(&self, word: &AtomicU32) -> bool {
        let count = core::ptr::from_ref(&self.count).addr();
        (count..count + size_of::<VmaCount>()).contains(&core::ptr::from_ref(word).addr())
    }
}

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
        // SAFETY: loom checks that nobody reads or writes meanwhile.
        self.words.gone.with_mut(|gone| unsafe { *gone = true });
    }
}

struct World {
    slab: Slab<Object, Watched>,
    lock: MmapLock<Watched>,
    /// Whether the object is where a reader finds it.
    found: AtomicBool,
    words: Arc<Words>,
}

/// A reader without locks beside the end of the one object, after which the slab is trimmed.
fn end_beside(reader: fn(&World)) {
    model_bounded(3, move || {
        let slab = Slab::<Object, Watched>::try_new().unwrap();
        let object = slab.take().unwrap();
        // SAFETY: it is ours.
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
        // SAFETY: taken above; not found any more but by the reader, which is in a read section.
        unsafe { world.slab.give(object) };
        world.slab.trim();
        other.join().unwrap();
        LoomHost::rcu_barrier();
        // SAFETY: nobody else is left.
        assert!(world.words.gone.with(|gone| unsafe { *gone }), "an idle chunk stays");
    });
}

/// As a fault does.
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
fn c22_a_late_reader_finds_memory() {
    end_beside(look);
}

/// With the lock in hand it is in no read section any more.
#[test]
fn c19_a_reader_that_leaves_wakes_by_an_address_that_is_there() {
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

/// Takes an object, has it for itself, and gives it back.
fn use_one(slab: &Slab<Object, Watched>) {
    let object = slab.take().unwrap();
    // SAFETY: it is ours until it is given back.
    let words = unsafe { object.as_ref() }.words.clone();
    words.touch();
    // SAFETY: it is nobody else's, as loom checks.
    words.owned.with_mut(|owned| unsafe { *owned = () });
    // SAFETY: taken above, and found nowhere.
    unsafe { slab.give(object) };
}

#[test]
fn an_object_is_nobody_elses() {
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
