//! [`StdHost`]: the host of tests and examples that use the threads of a process.
//!
//! A thread is a task, and has a CPU number from its first use of the host until it ends. Tasks sleep in
//! parking lots (`parking_lot.rs`). Grace periods work as in SRCU ([`Rcu`]). A test makes a fatal signal
//! pending with [`Task::kill`] or, for a wait of its choice, with [`Task::interrupt_wait`]. The state is in
//! statics, so all tests of a program share it. `loom_host.rs` is the host under loom; the [module
//! head](super) says what both hosts guarantee.
//!
//! The tests of `freehold-sync` and `freehold-range` use this host. `tests/threads.rs` tests its grace
//! periods.
#![expect(unsafe_code, reason = "implements the host's contract, and runs deferred functions")]

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
/// use it at the same time.
#[derive(Clone, Copy, Debug)]
pub struct StdHost;

/// A thread, as the target of signals.
#[derive(Clone, Debug)]
pub struct Task(Arc<Signals>);

/// The signals of one thread.
#[derive(Debug, Default)]
struct Signals {
    killed: AtomicBool,
    /// Number of killable waits up to and including the wait that begins with a fatal signal pending. 0 if no
    /// such wait is planned.
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

/// The CPU numbers of threads.
struct Numbers {
    /// The lowest number that no thread has had yet.
    next: usize,
    /// Numbers of threads that have ended.
    returned: Vec<usize>,
}

/// The CPU number of a thread, returned when the thread ends.
struct Number(usize);

impl Number {
    /// Returns the number of a thread that has ended, or else a number that no thread has had.
    fn take() -> Number {
        let mut numbers = NUMBERS.lock().unwrap();
        let number = numbers.returned.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        });
        assert!(number < StdHost::MAX_CPUS, "more threads use this host than it has CPU numbers");
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

/// Returns the parking lot for the address of a word.
fn parking_lot(word: &crate::atomic::AtomicU32) -> &'static ParkingLot {
    &PARKING_LOTS[core::ptr::from_ref(word).addr() / 4 % PARKING_LOT_COUNT]
}

impl StdHost {
    /// Returns the calling thread.
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

    /// Makes a fatal signal pending when the thread enters its `nth` killable wait from now on. The first
    /// wait has the number 1.
    pub fn interrupt_wait(&self, nth: u64) {
        self.0.countdown.store(nth, Ordering::SeqCst);
    }

    /// Clears the pending signal.
    pub fn revive(&self) {
        self.0.killed.store(false, Ordering::SeqCst);
        self.0.countdown.store(0, Ordering::SeqCst);
    }

    /// Counts a killable wait, and makes the signal pending if the wait is the planned one.
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

/// Grace periods with two counts of readers, like SRCU: a reader is counted in the current phase. A deferred
/// function waits until each of the two counts has been zero once.
struct Rcu {
    /// The phase in which new readers are counted: 0 or 1.
    phase: AtomicUsize,
    /// Number of readers counted in each phase.
    inside: [AtomicUsize; 2],
    waiting: Mutex<Batches>,
}

/// Deferred functions that have not run.
struct Batches {
    /// Functions deferred since the last change of phase.
    new: Vec<Deferred>,
    /// Functions deferred before the last change of phase. At that change, the other phase had no reader.
    old: Vec<Deferred>,
    /// Number of batches that are removed from the lists but have not run completely.
    running: usize,
}

/// A function that [`Host::rcu_defer`] was called with.
struct Deferred(NonNull<RcuHead>);

// SAFETY: by the contract of `rcu_defer`, the function may run on any thread.
unsafe impl Send for Deferred {}

impl Rcu {
    /// Changes the phase if the other phase has no readers left, and runs the functions that have waited
    /// through both phases.
    fn advance(&self) {
        let ready = {
            let mut waiting = self.waiting.lock().unwrap();
            let phase = self.phase.load(Ordering::SeqCst);
            // Pairs with the fence in `rcu_read`: either this load counts the reader, or the reader sees
            // everything done before the deferral.
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
            // SAFETY: set in `rcu_defer`. Every read section that began before has ended.
            unsafe { RcuHead::run(head) };
        }
        self.waiting.lock().unwrap().running -= 1;
    }
}

/// Guard of a read section.
#[derive(Debug)]
pub struct StdRcuGuard {
    phase: usize,
    /// Not `Send`, like any read section of a kernel.
    thread: core::marker::PhantomData<*const ()>,
}

impl Drop for StdRcuGuard {
    fn drop(&mut self) {
        // Pairs with the load in `advance`.
        RCU.inside[self.phase].fetch_sub(1, Ordering::SeqCst);
    }
}

// SAFETY: threads have different numbers and return them under a mutex when they end. `Rcu` waits for all
// read sections.
unsafe impl Host for StdHost {
    const MAX_CPUS: usize = 64;

    fn wait(word: &crate::atomic::AtomicU32, expected: u32) {
        // The wait is not killable, so it does not fail.
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
        // Yields from time to time, because the task that this thread waits for may have no CPU.
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
        // SAFETY: the caller has given the head to the host.
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
