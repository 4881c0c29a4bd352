//! Threads, waiting, signals and grace periods: the host of a machine (`host_std`, or `host_shuttle` under
//! the checker).
//!
//! The tests call the functions of the trait [`Host`] on a machine: futex waits, fatal and other signals, CPU
//! numbers, the clock, RCU read sections, deferred functions and barriers. Each test states a promise of the
//! trait, on which the engine relies; a new function of the trait gets a test here. Tests run their body in
//! `run` and repeat it [`MANY`] times, so that threads meet; under the checker of schedules (`cfg(shuttle)`)
//! the numbers are small. A lost wakeup shows as a test that never ends.

use crate::common::*;
use freehold_machine::Task;
use freehold_sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use freehold_sync::{Host, Interrupted, Killed, RcuHead};
use std::ptr::NonNull;
use std::sync::Arc;

type Machine = freehold_machine::Machine;

/// Number of repetitions.
const MANY: usize = if cfg!(shuttle) { 3 } else { 2_000 };

#[test]
fn wait_ends_when_the_word_changed_and_a_wake_follows() {
    run(|| {
        let word = Arc::new(AtomicU32::new(0));
        let waiter = thread::spawn({
            let word = word.clone();
            move || {
                while word.load(SeqCst) == 0 {
                    Machine::wait(&word, 0);
                }
            }
        });
        word.store(1, SeqCst);
        Machine::wake_one(&word);
        waiter.join().unwrap();
        // A wait returns at once if the word differs from the expected value.
        Machine::wait(&word, 0);
        assert_eq!(Machine::wait_killable(&word, 0), Ok(()));
    });
}

#[test]
fn wake_all_wakes_all() {
    run(|| {
        let word = Arc::new(AtomicU32::new(0));
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let word = word.clone();
                thread::spawn(move || {
                    while word.load(SeqCst) == 0 {
                        Machine::wait(&word, 0);
                    }
                })
            })
            .collect();
        thread::yield_now();
        word.store(1, SeqCst);
        Machine::wake_all(&word);
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

#[test]
fn two_threads_wake_each_other_in_turns() {
    run(|| {
        let word = Arc::new(AtomicU32::new(0));
        let play = |word: Arc<AtomicU32>, mine: u32| {
            move || {
                for _ in 0..MANY {
                    while word.load(SeqCst) != mine {
                        Machine::wait(&word, 1 - mine);
                    }
                    word.store(1 - mine, SeqCst);
                    Machine::wake_one(&word);
                }
            }
        };
        let other = thread::spawn(play(word.clone(), 1));
        play(word, 0)();
        other.join().unwrap();
    });
}

/// Starts a thread and waits until it runs. Returns its task and its handle.
fn started(body: impl FnOnce() + Send + 'static) -> (Task, thread::JoinHandle<()>) {
    let handed = Arc::new(std::sync::Mutex::new(None));
    let thread = thread::spawn({
        let handed = handed.clone();
        move || {
            *handed.lock().unwrap() = Some(Task::current());
            body();
        }
    });
    loop {
        if let Some(task) = handed.lock().unwrap().take() {
            return (task, thread);
        }
        thread::yield_now();
    }
}

/// The word never changes, so only the signal can end these waits, whether it arrives before or during them.
#[test]
fn fatal_signal_ends_killable_waits() {
    run(|| {
        for _ in 0..if cfg!(shuttle) { 1 } else { 200 } {
            let (task, victim) = started(|| {
                let word = AtomicU32::new(0);
                while Machine::wait_killable(&word, 0) == Ok(()) {}
                assert_eq!(Machine::wait_killable(&word, 0), Err(Killed), "the signal stays pending");
                // A wait that is not killable ignores signals, and returns because the word differs.
                Machine::wait(&word, 1);
            });
            assert!(!task.is_killed());
            task.kill();
            assert!(task.is_killed());
            victim.join().unwrap();
        }
    });
}

/// A signal that is not fatal ends only interruptible waits, until the signal is handled.
#[test]
fn signal_ends_interruptible_waits() {
    run(|| {
        for _ in 0..if cfg!(shuttle) { 1 } else { 200 } {
            let (task, victim) = started(|| {
                let word = AtomicU32::new(0);
                while Machine::wait_interruptible(&word, 0) == Ok(()) {}
                assert_eq!(
                    Machine::wait_interruptible(&word, 1),
                    Err(Interrupted),
                    "the signal stays pending"
                );
                assert_eq!(Machine::wait_killable(&word, 1), Ok(()), "the signal is not fatal");
                Task::current().handle_signal();
                assert_eq!(Machine::wait_interruptible(&word, 1), Ok(()));
            });
            task.signal();
            victim.join().unwrap();
        }
    });
}

#[test]
fn the_nth_killable_wait_is_interrupted() {
    run(|| {
        let task = Task::current();
        let word = AtomicU32::new(1);
        task.interrupt_wait(3);
        assert_eq!(Machine::wait_killable(&word, 0), Ok(()));
        assert_eq!(Machine::wait_killable(&word, 0), Ok(()));
        assert_eq!(Machine::wait_killable(&word, 0), Err(Killed));
        assert_eq!(Machine::wait_killable(&word, 0), Err(Killed));
        task.revive();
        assert_eq!(Machine::wait_killable(&word, 0), Ok(()));
    });
}

#[test]
fn no_two_threads_have_a_cpu_number_at_once() {
    run(|| {
        let counts: Arc<Vec<AtomicU64>> =
            Arc::new((0..Machine::MAX_CPUS).map(|_| AtomicU64::new(0)).collect());
        // Use more threads than CPU numbers if threads are cheap.
        let threads = if cfg!(shuttle) { 3 } else { Machine::MAX_CPUS + 8 };
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let counts = counts.clone();
                thread::spawn(move || {
                    for _ in 0..MANY {
                        Machine::with_cpu(|number| {
                            // The count is not incremented atomically, so two threads with the same number at
                            // once would lose counts.
                            let count = counts[number].load(SeqCst);
                            counts[number].store(count + 1, SeqCst);
                        });
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        let sum: u64 = counts.iter().map(|count| count.load(SeqCst)).sum();
        assert_eq!(sum, (threads * MANY) as u64);
    });
}

#[test]
fn time_does_not_go_back() {
    run(|| {
        let first = Machine::now_ns();
        assert!(Machine::now_ns() >= first);
    });
}

/// An object that a grace period frees.
#[repr(C)]
struct Object {
    head: RcuHead,
    runs: Arc<AtomicU64>,
}

/// Defers the freeing of a new object. `runs` counts the objects that were freed.
fn defer(runs: &Arc<AtomicU64>) {
    let object = Box::leak(Box::new(Object { head: RcuHead::new(), runs: runs.clone() }));
    // SAFETY: the object is leaked, and `free` is its only user from now on.
    unsafe { Machine::rcu_defer(NonNull::from(object).cast(), free) }
}

/// # Safety
///
/// `head` must be the head of a leaked `Object` that has no other user.
unsafe fn free(head: NonNull<RcuHead>) {
    // SAFETY: the head is the first field of the object, and the caller passes the only reference.
    let object = unsafe { Box::from_raw(head.cast::<Object>().as_ptr()) };
    object.runs.fetch_add(1, SeqCst);
}

/// The deferred object is on the stack of its thread, so if a barrier returned early, a deferred function
/// would use freed stack memory. Barriers of six threads run concurrently, and batches run in any order.
#[cfg(not(shuttle))]
#[test]
fn rcu_barrier_waits_for_functions_of_its_own_thread() {
    use std::sync::atomic::AtomicBool;
    #[repr(C)]
    struct Local {
        head: RcuHead,
        ran: AtomicBool,
    }
    unsafe fn note(head: NonNull<RcuHead>) {
        // SAFETY: the head is the first field of a `Local`, which lives until this function has run.
        unsafe { head.cast::<Local>().as_ref() }.ran.store(true, SeqCst);
    }
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..400 {
                    let local = Local { head: RcuHead::new(), ran: AtomicBool::new(false) };
                    // SAFETY: `local` stays in place, unused, until the function has run.
                    unsafe { Machine::rcu_defer(NonNull::from(&local).cast(), note) };
                    Machine::rcu_barrier();
                    assert!(local.ran.load(SeqCst), "the barrier returned early");
                }
            });
        }
    });
}

#[test]
fn rcu_barrier_waits_for_all_deferred_functions() {
    run(|| {
        let runs = Arc::new(AtomicU64::new(0));
        let count = if cfg!(shuttle) { 3 } else { 1000 };
        let other = thread::spawn({
            let runs = runs.clone();
            move || (0..count).for_each(|_| defer(&runs))
        });
        (0..count).for_each(|_| defer(&runs));
        other.join().unwrap();
        Machine::rcu_barrier();
        assert_eq!(runs.load(SeqCst), 2 * count);
    });
}

#[test]
fn deferred_functions_wait_for_earlier_readers() {
    run(|| {
        let runs = Arc::new(AtomicU64::new(0));
        let guard = Machine::rcu_read();
        let other = thread::spawn({
            let runs = runs.clone();
            move || {
                (0..200).for_each(|_| defer(&runs));
                drop(Machine::rcu_read());
            }
        });
        other.join().unwrap();
        drop(Machine::rcu_read());
        assert_eq!(runs.load(SeqCst), 0);
        drop(guard);
        Machine::rcu_barrier();
        assert_eq!(runs.load(SeqCst), 200);
    });
}

/// The standard use of RCU: a reader of a published pointer never sees a freed object.
#[test]
fn rcu_reader_never_sees_a_freed_object() {
    struct Live {
        head: RcuHead,
        alive: AtomicU64,
    }
    /// # Safety
    ///
    /// `head` must be the first field of a leaked `Live`.
    unsafe fn bury(head: NonNull<RcuHead>) {
        // SAFETY: the head is the first field of a `Live`, by the contract. Its memory is leaked, so a late
        // reader sees the mark instead of undefined behaviour.
        unsafe { head.cast::<Live>().as_ref() }.alive.store(0, SeqCst);
    }
    run(|| {
        let new = || &*Box::leak(Box::new(Live { head: RcuHead::new(), alive: AtomicU64::new(1) }));
        let slot = Arc::new(freehold_sync::atomic::AtomicPtr::new(std::ptr::from_ref(new()).cast_mut()));
        let reader = thread::spawn({
            let slot = slot.clone();
            move || {
                for _ in 0..MANY {
                    let guard = Machine::rcu_read();
                    // SAFETY: objects are never freed, see `bury`.
                    let object = unsafe { &*slot.load(SeqCst) };
                    thread::yield_now();
                    assert_eq!(object.alive.load(SeqCst), 1);
                    drop(guard);
                }
            }
        });
        for _ in 0..MANY {
            let old = slot.swap(std::ptr::from_ref(new()).cast_mut(), SeqCst);
            // SAFETY: the object is leaked. The swap unlinked the object, so no other iteration defers it.
            let head = unsafe { NonNull::from(&(*old).head) };
            // SAFETY: the head belongs to a leaked `Live`, which is deferred once.
            unsafe { Machine::rcu_defer(head, bury) };
        }
        reader.join().unwrap();
        Machine::rcu_barrier();
    });
}
