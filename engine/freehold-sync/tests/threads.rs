//! Tests of the locks with real threads: exclusion, fairness, kills, counters.
//!
//! The tests in `loom_*.rs` try every schedule of a few steps. The tests here run many steps, with threads
//! that really sleep and are killed. Most of them check data that the lock must keep consistent ([`Twins`]).
//!
//! No test depends on time. A test that needs a thread to be asleep waits until the lock's `Debug` output
//! shows the waiter (`until`). Miri runs the same tests with fewer steps.

use freehold_sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold_sync::counted::Counted;
use freehold_sync::testing::{StdHost, Task};
use freehold_sync::{
    Counter, Host, Killed, MmapLock, Rank, RawSpin, ReadFail, ReaderSlots, RwSem, SpinLock, VmaCount,
    VmaLock, VmaSeq,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

const THREADS: usize = 4;
const TURNS: u64 = if cfg!(miri) { 20 } else { 20_000 };

/// Two numbers that are equal whenever no thread is writing.
#[derive(Default)]
struct Twins(AtomicU64, AtomicU64);

impl Twins {
    fn add(&self) {
        self.0.store(self.0.load(Relaxed) + 1, Relaxed);
        self.1.store(self.1.load(Relaxed) + 1, Relaxed);
    }

    fn look(&self) -> u64 {
        let (a, b) = (self.0.load(Relaxed), self.1.load(Relaxed));
        assert_eq!(a, b);
        a
    }
}

/// Waits until the `Debug` output of the lock contains `part`, for example a number of waiters.
fn until(lock: &RwSem<StdHost>, part: &str) {
    while !format!("{lock:?}").contains(part) {
        thread::yield_now();
    }
}

#[test]
fn readers_and_writers_exclude_each_other() {
    let lock = RwSem::<StdHost>::new(Rank::Mmap);
    let twins = Twins::default();
    let writes = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let (lock, twins, writes) = (&lock, &twins, &writes);
            scope.spawn(move || {
                for turn in 0..TURNS {
                    match (turn + thread) % 5 {
                        0 => {
                            let _guard = lock.write();
                            twins.add();
                            writes.fetch_add(1, Relaxed);
                        }
                        1 => {
                            let guard = lock.write();
                            twins.add();
                            writes.fetch_add(1, Relaxed);
                            let before = twins.look();
                            let _guard = guard.downgrade();
                            assert_eq!(twins.look(), before, "another writer wrote during a downgrade");
                        }
                        2 => drop(lock.try_write().inspect(|_| {
                            twins.add();
                            writes.fetch_add(1, Relaxed);
                        })),
                        3 => drop(lock.try_read().inspect(|_| assert!(twins.look() < u64::MAX))),
                        _ => {
                            let _guard = lock.read();
                            twins.look();
                        }
                    }
                }
            });
        }
    });
    assert_eq!(twins.look(), writes.load(Relaxed));
    assert!(lock.try_write().is_some());
}

/// A writer that releases the lock admits the waiting readers, even if another writer has waited longer.
#[test]
fn a_phase_of_readers_comes_between_two_writers() {
    let lock = RwSem::<StdHost>::new(Rank::Mmap);
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let guard = lock.write();
        scope.spawn(|| {
            let _guard = lock.write();
            order.lock().unwrap().push("writer");
        });
        until(&lock, "write_waiters: 1");
        for readers in 1..=2 {
            scope.spawn(|| {
                let _guard = lock.read();
                order.lock().unwrap().push("reader");
            });
            until(&lock, &format!("read_waiters: {readers}"));
        }
        drop(guard);
    });
    assert_eq!(*order.lock().unwrap(), ["reader", "reader", "writer"]);
}

/// A reader that arrives behind a waiting writer waits, so readers cannot keep a writer out forever.
#[test]
fn waiting_writer_keeps_new_readers_out() {
    let lock = RwSem::<StdHost>::new(Rank::Mmap);
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let guard = lock.read();
        scope.spawn(|| {
            let _guard = lock.write();
            order.lock().unwrap().push("writer");
        });
        until(&lock, "write_waiters: 1");
        assert!(lock.try_read().is_none());
        assert!(lock.is_contended());
        scope.spawn(|| {
            let _guard = lock.read();
            order.lock().unwrap().push("reader");
        });
        until(&lock, "read_waiters: 1");
        drop(guard);
    });
    assert_eq!(*order.lock().unwrap(), ["writer", "reader"]);
}

#[test]
fn a_downgrade_admits_waiting_readers_and_no_writer() {
    let lock = RwSem::<StdHost>::new(Rank::Mmap);
    let (sender, seen) = mpsc::channel();
    let go = AtomicBool::new(false);
    thread::scope(|scope| {
        let guard = lock.write();
        scope.spawn(|| {
            let _guard = lock.write();
            assert!(go.load(Ordering::Relaxed), "a writer and a downgraded writer hold the lock together");
        });
        until(&lock, "write_waiters: 1");
        let sender = sender.clone();
        scope.spawn(|| {
            let _guard = lock.read();
            sender.send(()).unwrap();
            drop(sender);
        });
        until(&lock, "read_waiters: 1");
        let guard = guard.downgrade();
        // The reader is admitted while this thread still holds the lock.
        seen.recv().unwrap();
        go.store(true, Ordering::Relaxed);
        drop(guard);
    });
}

/// Hazard C-72: interrupts every killable wait while the task sleeps.
#[test]
fn c72_killable_wait_ends_when_the_sleeper_is_killed() {
    /// A call that takes the lock and releases it, or is killed.
    type Attempt = fn(&RwSem<StdHost>) -> Result<(), Killed>;
    let kinds: [(Attempt, &str); 2] = [
        (|lock| lock.read_killable().map(drop), "read_waiters: 1"),
        (|lock| lock.write_killable().map(drop), "write_waiters: 1"),
    ];
    for (attempt, waits) in kinds {
        let lock = RwSem::<StdHost>::new(Rank::Mmap);
        let (name, names) = mpsc::channel::<Task>();
        thread::scope(|scope| {
            let guard = lock.write();
            let sleeper = scope.spawn(|| {
                name.send(StdHost::current_task()).unwrap();
                attempt(&lock)
            });
            until(&lock, waits);
            names.recv().unwrap().kill();
            assert_eq!(sleeper.join().unwrap(), Err(Killed));
            assert!(!lock.is_contended(), "{lock:?}");
            drop(guard);
        });
        assert!(lock.try_write().is_some(), "{lock:?}");
    }
}

#[test]
fn c72_killable_wait_fails_when_the_task_is_already_killed() {
    let lock = MmapLock::<StdHost>::new();
    let guard = lock.write();
    thread::scope(|scope| {
        scope.spawn(|| {
            let task = StdHost::current_task();
            task.interrupt_wait(1);
            assert!(lock.read_killable().is_err());
            task.revive();
            task.interrupt_wait(1);
            assert!(lock.write_killable().is_err());
            assert_eq!(lock.seq(), 1, "a killed writer does not change the number");
        });
    });
    drop(guard);
    assert_eq!(lock.seq(), 2);
    // A free lock is acquired without a wait, even if a fatal signal is pending.
    StdHost::current_task().kill();
    assert!(lock.write_killable().is_ok());
    StdHost::current_task().revive();
}

/// The words of a VMA's lock, and the data that the lock guards.
struct Vma {
    count: VmaCount,
    seq: VmaSeq,
    twins: Twins,
}

impl Vma {
    fn new() -> Self {
        Vma { count: VmaCount::new(), seq: VmaSeq::new(), twins: Twins::default() }
    }

    fn lock(&self) -> VmaLock<'_> {
        VmaLock { count: &self.count, seq: &self.seq }
    }
}

#[test]
fn vma_readers_see_consistent_data_across_detach_and_attach() {
    let slots = Counted::try_new(ReaderSlots::try_new().unwrap()).unwrap();
    let lock = MmapLock::<StdHost>::new().with_slots(slots);
    let vma = Vma::new();
    let done = AtomicBool::new(false);
    // Fewer iterations: a reader that is preempted in its section makes the writer wait for a time slice.
    let turns = TURNS / 10;
    thread::scope(|scope| {
        for _ in 0..THREADS - 1 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let locked = vma.lock().try_read(&lock, || true).or_else(|fail| {
                        assert!(matches!(fail, ReadFail::Detached | ReadFail::Locked), "{fail:?}");
                        let guard = lock.read();
                        vma.lock().read_under(&guard)
                    });
                    match locked {
                        Ok(place) => {
                            vma.twins.look();
                            vma.lock().unlock_read::<StdHost>(place);
                        }
                        Err(fail) => assert_eq!(fail, ReadFail::Detached),
                    }
                }
            });
        }
        for turn in 0..turns {
            let guard = lock.write();
            vma.lock().write(&guard);
            vma.twins.add();
            match (vma.lock().is_detached(), turn % 3) {
                (true, _) => {
                    vma.lock().attach(&guard);
                    // Readers might not contend in this run, so the test makes the VMA per-CPU.
                    vma.lock().make_per_cpu();
                }
                (false, 0) => {
                    vma.lock().detach(&guard);
                    continue;
                }
                _ => (),
            }
            vma.lock().unlock_write();
            if turn % 3 == 1 {
                drop(guard.downgrade());
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(vma.twins.look(), turns);
}

/// Hazard C-22 (h): a fatal signal arrives while the writer waits for a reader. Afterwards readers are
/// admitted again.
#[test]
fn c22_a_killed_vma_writer_admits_readers_again() {
    let lock = MmapLock::<StdHost>::new();
    let vma = Vma::new();
    let guard = lock.write();
    vma.lock().write(&guard);
    vma.lock().attach(&guard);
    vma.lock().unlock_write();
    drop(guard);
    let first = vma.lock().try_read(&lock, || true).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = lock.write();
            StdHost::current_task().interrupt_wait(1);
            assert_eq!(vma.lock().write_killable(&guard), Err(Killed));
            assert!(!vma.lock().is_write_locked(&guard));
        });
    });
    let second = vma.lock().try_read(&lock, || true).unwrap();
    vma.lock().unlock_read::<StdHost>(second);
    assert_eq!(vma.lock().try_read(&lock, || false).err(), Some(ReadFail::Foreign));
    vma.lock().unlock_read::<StdHost>(first);
    let guard = lock.write();
    vma.lock().write(&guard);
    vma.lock().detach(&guard);
    assert!(vma.lock().is_detached());
}

#[test]
fn spin_locks_exclude() {
    let lock = SpinLock::new(0, Rank::Slab);
    let raw = RawSpin::new();
    let twins = Twins::default();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..TURNS {
                    *lock.lock::<StdHost>() += 1;
                    let _guard = raw.lock::<StdHost>(Rank::PageTable);
                    twins.add();
                }
            });
        }
    });
    assert_eq!(lock.into_inner(), THREADS as u64 * TURNS);
    assert_eq!(twins.look(), THREADS as u64 * TURNS);
}

#[test]
fn lock_words_have_the_promised_sizes() {
    assert_eq!(size_of::<RawSpin>(), 4);
    assert_eq!(size_of::<VmaCount>(), 16);
    assert_eq!(size_of::<VmaSeq>(), 4);
    // SAFETY: four zero bytes are an unlocked word.
    let zero: RawSpin = unsafe { std::mem::zeroed() };
    assert!(!zero.is_locked());
}

#[test]
fn a_counter_adds_up() {
    let counter = Counter::<StdHost>::try_new().unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS as i64 {
            let counter = &counter;
            scope.spawn(move || (0..TURNS).for_each(|_| counter.add(thread - 1)));
        }
    });
    assert_eq!(counter.sum(), TURNS as i64 * 2);
}

/// Tests the grace periods of the test host: an object is not freed while a reader that found it is inside.
#[test]
fn grace_period_of_the_std_host_waits_for_readers() {
    use freehold_sync::RcuHead;
    use freehold_sync::atomic::AtomicPtr;
    use std::ptr::NonNull;

    /// An object that the host frees after a grace period. `alive` is false once it is freed.
    #[repr(C)]
    struct Object {
        head: RcuHead,
        alive: AtomicBool,
    }

    unsafe fn free(head: NonNull<RcuHead>) {
        // SAFETY: the head is the first field of an object from `Box::into_raw`.
        let object = unsafe { Box::from_raw(head.cast::<Object>().as_ptr()) };
        object.alive.store(false, Ordering::Relaxed);
    }

    let make = || Box::into_raw(Box::new(Object { head: RcuHead::new(), alive: AtomicBool::new(true) }));
    let slot = AtomicPtr::new(make());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..THREADS - 1 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let _section = StdHost::rcu_read();
                    // SAFETY: the object is freed after this read section at the earliest.
                    let object = unsafe { &*slot.load(Ordering::Acquire) };
                    (0..20).for_each(|_| assert!(object.alive.load(Ordering::Relaxed)));
                }
            });
        }
        for _ in 0..TURNS {
            let old = slot.swap(make(), Ordering::AcqRel);
            // SAFETY: the object is unlinked, and only this thread defers it.
            unsafe { StdHost::rcu_defer(NonNull::new(old).unwrap().cast(), free) };
        }
        done.store(true, Ordering::Relaxed);
    });
    StdHost::rcu_barrier();
    // SAFETY: this is the last object, and no reader is left.
    unsafe { free(NonNull::new(slot.into_inner()).unwrap().cast()) };
}
