//! Tests of the spin lock, the mutex, the word lock, the sequence number of the mmap lock, the end of counted
//! objects, and the grace periods of `LoomHost`. loom tries all schedules and all orders that the memory model
//! allows.
//!
//! The guarded value is a [`Watched`] cell, so loom reports an access that a lock does not order. The larger
//! locks have files of their own: `loom_rwsem.rs`, `loom_gate.rs` and `loom_vma/`. To test another small lock
//! with three threads, pass its functions to [`three`].
#![cfg(loom)]

use freehold_sync::atomic::{AtomicU32, Ordering::Relaxed};
use freehold_sync::counted::{Counted, Shared};
use freehold_sync::testing::{LoomHost, model, model_bounded};
use freehold_sync::{Host, MmapLock, Mutex, Rank, RawSpin, RcuHead, SpinLock, WordLock};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A number whose accesses loom checks.
struct Watched(UnsafeCell<u32>);

impl Watched {
    fn new() -> Self {
        Watched(UnsafeCell::new(0))
    }

    fn add(&self) -> u32 {
        // SAFETY: accessed under a lock, and loom checks that this suffices.
        self.0.with_mut(|value| unsafe {
            *value += 1;
            *value
        })
    }
}

#[test]
fn a_spin_lock_excludes_and_orders() {
    model(|| {
        let lock = Arc::new(SpinLock::new(Watched::new(), Rank::Leaf));
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                lock.lock::<LoomHost>().add();
            })
        };
        lock.lock::<LoomHost>().add();
        if let Some(value) = lock.try_lock::<LoomHost>() {
            value.add();
        }
        other.join().unwrap();
        assert!(lock.lock::<LoomHost>().add() >= 3);
    });
}

/// A lock and the value that it guards.
struct Guarded<L> {
    lock: L,
    value: Watched,
}

// SAFETY: the value is accessed under the lock.
unsafe impl<L: Sync> Sync for Guarded<L> {}
// SAFETY: the value is a number.
unsafe impl<L: Send> Send for Guarded<L> {}

/// Two threads each add 1 under the lock, and this thread adds 1 with `own`. Checks that no addition is lost.
fn three<L: Send + Sync + 'static>(
    lock: L,
    add: fn(&Guarded<L>) -> u32,
    own: fn(&Guarded<L>),
) -> Arc<Guarded<L>> {
    let guarded = Arc::new(Guarded { lock, value: Watched::new() });
    let others: Vec<_> = (0..2)
        .map(|_| {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || {
                add(&guarded);
            })
        })
        .collect();
    own(&guarded);
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_eq!(add(&guarded), 4);
    guarded
}

#[test]
fn raw_spin_lock_excludes_three_threads() {
    fn add(pair: &Guarded<RawSpin>) -> u32 {
        let guard = pair.lock.lock::<LoomHost>(Rank::PageTable);
        let value = pair.value.add();
        drop(guard);
        value
    }
    model_bounded(1, || {
        let pair = three(RawSpin::new(), add, |pair| _ = add(pair));
        assert!(!pair.lock.is_locked());
    });
}

#[test]
fn sleepers_on_one_word_are_woken() {
    fn add(slept: &Guarded<WordLock>) -> u32 {
        let _held = slept.lock.lock::<LoomHost>(Rank::Folio);
        slept.value.add()
    }
    model_bounded(2, || {
        let slept = three(WordLock::new(), add, |slept| _ = add(slept));
        assert!(!slept.lock.is_locked());
    });
}

/// Each release wakes one sleeper, whose own release wakes the next.
#[test]
fn a_mutex_excludes_and_orders_and_wakes_each_sleeper() {
    fn add(queued: &Guarded<Mutex>) -> u32 {
        let _held = queued.lock.lock::<LoomHost>(Rank::IMmap, None);
        queued.value.add()
    }
    fn try_first(queued: &Guarded<Mutex>) {
        if let Some(_held) = queued.lock.try_lock::<LoomHost>(Rank::IMmap, None) {
            queued.value.add();
        } else {
            add(queued);
        }
    }
    model_bounded(2, || {
        three(Mutex::new(), add, try_first);
    });
}

/// A task that waits for a release without taking the lock sees what the holder did.
#[test]
fn a_wait_ends_when_the_present_holder_releases() {
    model(|| {
        let slept = Arc::new(Guarded { lock: WordLock::new(), value: Watched::new() });
        let flag = Arc::new(AtomicU32::new(0));
        let held = slept.lock.lock::<LoomHost>(Rank::Folio);
        let other = {
            let (slept, flag) = (Arc::clone(&slept), Arc::clone(&flag));
            thread::spawn(move || {
                slept.lock.wait::<LoomHost>(Rank::Folio);
                // Relaxed: the wait has paired with the holder's release.
                assert_eq!(flag.load(Relaxed), 1);
            })
        };
        flag.store(1, Relaxed);
        drop(held);
        other.join().unwrap();
    });
}

/// An mmap lock, and two words that are equal whenever no writer holds the lock.
struct Mirror {
    lock: MmapLock<LoomHost>,
    a: AtomicU32,
    b: AtomicU32,
}

/// Data that is found valid is consistent, and is not older than data seen before.
#[test]
fn a_speculation_never_spans_a_write() {
    model_bounded(4, || {
        let mirror = Arc::new(Mirror { lock: MmapLock::new(), a: AtomicU32::new(0), b: AtomicU32::new(0) });
        let writer = {
            let mirror = Arc::clone(&mirror);
            thread::spawn(move || {
                let guard = mirror.lock.write();
                mirror.a.store(1, Relaxed);
                mirror.b.store(1, Relaxed);
                let guard = guard.downgrade();
                drop(guard);
                let guard = mirror.lock.write();
                mirror.b.store(2, Relaxed);
                mirror.a.store(2, Relaxed);
                drop(guard);
            })
        };
        let mut seen = 0;
        for _ in 0..2 {
            if let Some(speculation) = mirror.lock.speculate() {
                let (a, b) = (mirror.a.load(Relaxed), mirror.b.load(Relaxed));
                if speculation.valid(&mirror.lock) {
                    assert_eq!(a, b, "the speculation saw half of a change");
                    assert!(a >= seen, "time went back");
                    seen = a;
                }
            }
        }
        writer.join().unwrap();
        let speculation = mirror.lock.speculate().expect("no writer is left");
        assert_eq!((mirror.a.load(Relaxed), mirror.b.load(Relaxed)), (2, 2));
        assert!(speculation.valid(&mirror.lock));
    });
}

/// A task that holds the lock for reading finds the number even, also while a downgraded writer holds the
/// lock.
#[test]
fn sequence_number_is_even_for_readers() {
    model(|| {
        let lock = Arc::new(MmapLock::<LoomHost>::new());
        let writer = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                let guard = lock.write();
                assert_eq!(lock.seq(), 1);
                let guard = guard.downgrade();
                assert_eq!(lock.seq(), 2);
                drop(guard);
            })
        };
        let guard = lock.read();
        assert!(lock.seq().is_multiple_of(2));
        drop(guard);
        writer.join().unwrap();
        assert_eq!(lock.seq(), 2);
    });
}

/// An object that the host frees after a grace period. Shows that a grace period of the host waits for read
/// sections and orders their accesses before the free.
#[repr(C)]
struct Object {
    head: RcuHead,
    value: Watched,
}

#[test]
fn grace_period_of_the_loom_host_waits_for_readers() {
    use freehold_sync::atomic::{AtomicPtr, Ordering};
    use std::ptr::{NonNull, null_mut};

    unsafe fn free(head: NonNull<RcuHead>) {
        // SAFETY: the head is the first field of the object that was deferred.
        let object = unsafe { Box::from_raw(head.cast::<Object>().as_ptr()) };
        object.value.add();
    }

    model(|| {
        let object = Box::into_raw(Box::new(Object { head: RcuHead::new(), value: Watched::new() }));
        let slot = Arc::new(AtomicPtr::new(object));
        let reader = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                let section = LoomHost::rcu_read();
                // SAFETY: the object is freed after this read section at the earliest.
                if let Some(object) = unsafe { slot.load(Ordering::Acquire).as_ref() } {
                    // SAFETY: loom checks that the owner's access comes later.
                    object.value.0.with(|value| assert_eq!(unsafe { *value }, 0));
                }
                drop(section);
            })
        };
        slot.store(null_mut(), Ordering::Release);
        // SAFETY: the object is unlinked, and only this thread defers it.
        unsafe { LoomHost::rcu_defer(NonNull::new(object).unwrap().cast(), free) };
        LoomHost::rcu_barrier();
        reader.join().unwrap();
    });
}

impl Shared for Watched {}

impl Drop for Watched {
    fn drop(&mut self) {
        // loom reports a race if a use of the object is not over.
        self.add();
    }
}

impl Watched {
    fn read(&self) -> u32 {
        // SAFETY: loom checks that no thread writes at the same time.
        self.0.with(|value| unsafe { *value })
    }
}

#[test]
fn counted_object_ends_after_every_use() {
    model(|| {
        let object = Counted::try_new(Watched::new()).unwrap();
        let users: Vec<_> = (0..2)
            .map(|_| {
                let object = object.clone();
                thread::spawn(move || assert_eq!(object.read(), 0))
            })
            .collect();
        drop(object);
        users.into_iter().for_each(|user| user.join().unwrap());
    });
}
