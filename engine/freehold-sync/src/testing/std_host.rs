//! A host over the threads of a process.
#![expect(unsafe_code, reason = "keeps the host's contract, and runs deferred functions")]

use super::parking_lot::ParkingLot;
use crate::host::{Host, Killed, RcuHead};
use crate::rank::LockContext;
use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Instant;
use std::vec::Vec;

/// A host for tests and examples with threads; see the [module](super). At most [`Host::MAX_CPUS`] threads
/// use it at a time.
#[derive(Clone, Copy, Debug)]
pub struct StdHost;

/// A thread, as the sender of signals sees it.
#[derive(Clone, Debug)]
pub struct Task(Arc<Signals>);

#[derive(Debug, Default)]
struct Signals {
    killed: AtomicBool,
    /// Killable waits until the one that is interrupted; 0: none is.
    countdown: AtomicU64,
}

const PARKING_LOT_COUNT: usize = 32;

static PARKING_LOTS: LazyLock<[ParkingLot; PARKING_LOT_COUNT]> =
    LazyLock::new(|| core::array::from_fn(|_| ParkingLot::new()));
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { next: 0, returned: Vec::new() });
static RCU: Rcu = Rcu {
    phase: AtomicUsize::new(0),
    inside: [AtomicUsize::new(0), AtomicUsize::new(0)],
    waiting: Mutex::new(Batches { new: Vec::new(), old: Vec::new(), running: 0 }),
};

struct Numbers {
    next: usize,
    returned: Vec<usize>,
}

/// A thread's CPU number, given back when the thread ends.
struct Number(usize);

impl Number {
    fn take() -> Number {
        let mut numbers = NUMBERS.lock().unwrap();
        let number = numbers.returned.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        });
        assert!(number < StdHost::MAX_CPUS, "too many threads at a time for this host");
        Number(number)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        NUMBERS.lock().unwrap().returned.push(self.0);
    }
}

std::thread_local! {
    static NUMBER: Number = Number::take();
    static LOCKS: LockContext = const { LockContext::new() };
    static TASK: Task = Task(Arc::default());
    static RELAXED: Cell<u32> = const { Cell::new(0) };
}

fn parking_lot(word: &crate::atomic::AtomicU32) -> &'static ParkingLot {
    &PARKING_LOTS[core::ptr::from_ref(word).addr() / 4 % PARKING_LOT_COUNT]
}

impl StdHost {
    /// The calling thread.
    pub fn current_task() -> Task {
        TASK.with(Task::clone)
    }
}

impl Task {
    /// Makes a fatal signal pending for the thread.
    pub fn kill(&self) {
        self.0.killed.store(true, Ordering::SeqCst);
        PARKING_LOTS.iter().for_each(|parking_lot| parking_lot.wake_killed(|| ()));
    }

    /// Makes a fatal signal pending for the thread as it enters its `nth` killable wait from now, counted
    /// from 1.
    pub fn interrupt_wait(&self, nth: u64) {
        self.0.countdown.store(nth, Ordering::SeqCst);
    }

    /// Takes the signal back.
    pub fn revive(&self) {
        self.0.killed.store(false, Ordering::SeqCst);
        self.0.countdown.store(0, Ordering::SeqCst);
    }

    fn enters_wait(&self) {
        let left = self.0.countdown.load(Ordering::Relaxed);
        if left > 0 {
            self.0.countdown.store(left - 1, Ordering::Relaxed);
            if left == 1 {
                self.0.killed.store(true, Ordering::SeqCst);
            }
        }
    }

    fn is_killed(&self) -> bool {
        self.0.killed.load(Ordering::SeqCst)
    }
}

/// Grace periods by two counts of readers, after the manner of SRCU: a reader is counted in the phase it
/// finds. What is deferred waits until each of the two counts has been seen at zero once since.
struct Rcu {
    phase: AtomicUsize,
    inside: [AtomicUsize; 2],
    waiting: Mutex<Batches>,
}

struct Batches {
    /// Deferred since the last change of phase.
    new: Vec<Deferred>,
    /// Deferred before it; the phase then left had no reader at the change.
    old: Vec<Deferred>,
    /// Taken out, but not all of it has run.
    running: usize,
}

struct Deferred(NonNull<RcuHead>);

// SAFETY: the caller that defers a function allows it to run on any thread.
unsafe impl Send for Deferred {}

impl Rcu {
    /// Changes the phase if the other one has no readers left, and runs what has then waited through both.
    fn advance(&self) {
        let ready = {
            let mut waiting = self.waiting.lock().unwrap();
            let phase = self.phase.load(Ordering::SeqCst);
            // Together with the fence in `rcu_read`: either that reader is counted here, or it sees all that
            // was done before the deferral.
            fence(Ordering::SeqCst);
            if self.inside[1 - phase].load(Ordering::SeqCst) != 0 {
                return;
            }
            self.phase.store(1 - phase, Ordering::SeqCst);
            waiting.running += 1;
            let older = core::mem::take(&mut waiting.new);
            core::mem::replace(&mut waiting.old, older)
        };
        for Deferred(head) in ready {
            // SAFETY: set in `rcu_defer`; every section that had begun by then has ended.
            unsafe { RcuHead::run(head) };
        }
        self.waiting.lock().unwrap().running -= 1;
    }
}

/// A read section.
#[derive(Debug)]
pub struct StdRcuGuard {
    phase: usize,
    /// Not `Send`: like any read section of a kernel.
    thread: core::marker::PhantomData<*const ()>,
}

impl Drop for StdRcuGuard {
    fn drop(&mut self) {
        // Pairs with the load in `advance`.
        RCU.inside[self.phase].fetch_sub(1, Ordering::SeqCst);
    }
}

// SAFETY: threads have different numbers and return them when they end, under a mutex; `Rcu` waits for the
// readers.
unsafe impl Host for StdHost {
    const MAX_CPUS: usize = 64;

    fn wait(word: &crate::atomic::AtomicU32, expected: u32) {
        // Not killable, so not killed.
        let _ = parking_lot(word).sleep(word, expected, || false);
    }

    fn wait_killable(word: &crate::atomic::AtomicU32, expected: u32) -> Result<(), Killed> {
        let task = StdHost::current_task();
        task.enters_wait();
        parking_lot(word).sleep(word, expected, || task.is_killed())
    }

    fn wake_one(word: &crate::atomic::AtomicU32) {
        parking_lot(word).wake(word, 1);
    }

    fn wake_all(word: &crate::atomic::AtomicU32) {
        parking_lot(word).wake(word, usize::MAX);
    }

    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        NUMBER.with(|number| f(number.0))
    }

    fn now_ns() -> u64 {
        START.elapsed().as_nanos() as u64
    }

    fn relax() {
        // Now and then lets somebody else run: the one waited for may have no processor.
        let turns = RELAXED.get().wrapping_add(1);
        RELAXED.set(turns);
        if turns.is_multiple_of(64) {
            std::thread::yield_now();
        } else {
            core::hint::spin_loop();
        }
    }

    fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
        LOCKS.try_with(f).ok()
    }

    type RcuGuard = StdRcuGuard;

    fn rcu_read() -> StdRcuGuard {
        let phase = RCU.phase.load(Ordering::SeqCst);
        RCU.inside[phase].fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        StdRcuGuard { phase, thread: core::marker::PhantomData }
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller gave us the head.
        unsafe { RcuHead::set(head, None, f) };
        RCU.waiting.lock().unwrap().new.push(Deferred(head));
        RCU.advance();
    }

    fn rcu_barrier() {
        loop {
            RCU.advance();
            let waiting = RCU.waiting.lock().unwrap();
            if waiting.new.is_empty() && waiting.old.is_empty() && waiting.running == 0 {
                return;
            }
            drop(waiting);
            std::thread::yield_now();
        }
    }
}
