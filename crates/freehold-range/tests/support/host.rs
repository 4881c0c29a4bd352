//! A host for ordinary threads. Grace periods: each thread announces the epoch in which it reads; what was deferred in
//! an epoch runs once no thread announces that epoch or an earlier one.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_sync::atomic::AtomicU32;
use freehold_sync::rank::LockContext;
use freehold_sync::{Host, Killed, RcuHead};

pub struct TestHost;

const THREADS: usize = 256;
static EPOCH: AtomicU64 = AtomicU64::new(1);
static READING: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];
static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);
static DEFERRED: Mutex<Vec<Deferred>> = Mutex::new(Vec::new());

struct Deferred {
    epoch: u64,
    head: NonNull<RcuHead>,
    run: unsafe fn(NonNull<RcuHead>),
}

// SAFETY: the head belongs to the grace period machinery from `rcu_defer` on.
unsafe impl Send for Deferred {}

thread_local! {
    static SLOT: usize = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

pub struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            READING[SLOT.with(|slot| *slot)].store(0, Ordering::SeqCst);
        }
    }
}

fn reclaim() {
    let mut list = DEFERRED.lock().unwrap();
    EPOCH.fetch_add(1, Ordering::SeqCst);
    let oldest = READING.iter().map(|slot| slot.load(Ordering::SeqCst)).filter(|&epoch| epoch > 0).min();
    let due = |item: &Deferred| oldest.is_none_or(|oldest| item.epoch < oldest);
    let run: Vec<Deferred> = list.extract_if(.., |item| due(item)).collect();
    drop(list);
    for item in run {
        // SAFETY: every reader that may have been there when it was deferred has left.
        unsafe { (item.run)(item.head) };
    }
}

// SAFETY: a deferred function runs after every thread that announced its epoch or an earlier one has left. No two
// threads are inside `with_cpu` at all.
unsafe impl Host for TestHost {
    const MAX_CPUS: usize = 1;

    fn wait(_: &AtomicU32, _: u32) {
        std::thread::yield_now();
    }

    fn wait_killable(_: &AtomicU32, _: u32) -> Result<(), Killed> {
        std::thread::yield_now();
        Ok(())
    }

    fn wake_one(_: &AtomicU32) {}

    fn wake_all(_: &AtomicU32) {}

    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        static CPU: Mutex<()> = Mutex::new(());
        let _cpu = CPU.lock();
        f(0)
    }

    fn now_ns() -> u64 {
        0
    }

    fn lock_context<R>(_: impl FnOnce(&LockContext) -> R) -> Option<R> {
        None
    }

    type RcuGuard = Guard;

    fn rcu_read() -> Guard {
        if DEPTH.get() == 0 {
            READING[SLOT.with(|slot| *slot)].store(EPOCH.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        DEPTH.set(DEPTH.get() + 1);
        Guard(())
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, run: unsafe fn(NonNull<RcuHead>)) {
        let full = {
            let mut list = DEFERRED.lock().unwrap();
            list.push(Deferred { epoch: EPOCH.load(Ordering::SeqCst), head, run });
            list.len() >= 64
        };
        if full {
            reclaim();
        }
    }

    fn rcu_barrier() {
        while !DEFERRED.lock().unwrap().is_empty() {
            reclaim();
            std::thread::yield_now();
        }
    }

    fn relax() {
        std::hint::spin_loop();
    }
}
