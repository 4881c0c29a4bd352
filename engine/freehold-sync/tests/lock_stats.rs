//! Tests of lock statistics (module `stats`), with a clock that the test advances.
//!
//! [`Clocked`] is `StdHost` with the time of [`NOW`], so a hold or a wait lasts exactly as long as the test
//! says, and every recorded number is known. All cases are in one test, because the clock is a static. To add
//! a case, take a snapshot before the case and check the difference to a snapshot after it.

use freehold_sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use freehold_sync::counted::Counted;
use freehold_sync::stats::{LockSnapshot, LockStats, LockUse};
use freehold_sync::testing::StdHost;
use freehold_sync::{Host, Killed, LockContext, MmapLock, Rank, RcuHead};
use std::ptr::NonNull;
use std::sync::Mutex;

static NOW: AtomicU64 = AtomicU64::new(0);
/// The waits and holds that the lock has passed to its host.
static USES: Mutex<Vec<LockUse>> = Mutex::new(Vec::new());

/// `StdHost` with the clock of the test.
struct Clocked;

fn pass(ns: u64) {
    NOW.fetch_add(ns, SeqCst);
}

// SAFETY: every function except the clock forwards to `StdHost`, which keeps the contract.
unsafe impl Host for Clocked {
    const MAX_CPUS: usize = StdHost::MAX_CPUS;
    type RcuGuard = <StdHost as Host>::RcuGuard;

    fn wait(word: &AtomicU32, expected: u32) {
        StdHost::wait(word, expected);
    }
    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        StdHost::wait_killable(word, expected)
    }
    fn wake_one(word: &AtomicU32) {
        StdHost::wake_one(word);
    }
    fn wake_all(word: &AtomicU32) {
        StdHost::wake_all(word);
    }
    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        StdHost::with_cpu(f)
    }
    fn now_ns() -> u64 {
        NOW.load(SeqCst)
    }
    fn lock_used(used: &LockUse) {
        USES.lock().unwrap().push(*used);
    }
    fn relax() {
        StdHost::relax();
    }
    fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
        StdHost::lock_context(f)
    }
    fn rcu_read() -> Self::RcuGuard {
        StdHost::rcu_read()
    }
    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller keeps the contract of `rcu_defer`.
        unsafe { StdHost::rcu_defer(head, f) };
    }
    fn rcu_barrier() {
        StdHost::rcu_barrier();
    }
}

/// A single test, because no other test may advance the clock.
#[test]
fn each_mode_is_recorded_separately() {
    let lock = MmapLock::<Clocked>::with_stats(Counted::try_new(LockStats::try_new().unwrap()).unwrap());
    let snapshot = || lock.stats().unwrap().snapshot();
    // The uses since the last call: a wait, for writing, and the length.
    let uses = || {
        let uses = std::mem::take(&mut *USES.lock().unwrap());
        assert!(uses.iter().all(|used| used.lock == uses[0].lock && used.rank == Rank::Mmap), "{uses:?}");
        uses.iter().map(|used| (used.waited, used.write, used.to_ns - used.from_ns)).collect::<Vec<_>>()
    };

    let guard = lock.read();
    pass(100);
    drop(guard);
    let after_read = snapshot();
    assert_eq!(after_read.read.acquired, 1);
    assert_eq!((after_read.read.held.count(), after_read.read.held.sum()), (1, 100));
    assert_eq!(after_read.read.contended() + after_read.write.contended(), 0);
    assert_eq!(after_read.write.acquired, 0);

    // The exclusive hold ends with the downgrade. The hold after the downgrade is recorded separately from
    // holds for reading.
    let guard = lock.write();
    pass(7);
    let guard = guard.downgrade();
    pass(1_000_000);
    drop(guard);
    assert_eq!(uses(), [(false, false, 100), (false, true, 7), (false, false, 1_000_000)]);
    let mut since = snapshot();
    since.remove(&after_read);
    assert_eq!(since.write.acquired, 1);
    assert_eq!((since.write.held.count(), since.write.held.sum(), since.write.held.max()), (1, 7, 7));
    assert_eq!((since.downgraded.count(), since.downgraded.sum()), (1, 1_000_000));
    assert_eq!((since.read.acquired, since.read.held.count()), (0, 0));

    // Only successful attempts are counted as acquisitions.
    let guard = lock.try_write().unwrap();
    assert!(lock.try_read().is_none());
    pass(11);
    drop(guard);
    assert_eq!(snapshot().write.acquired, 2);
    assert_eq!(snapshot().write.held.sum(), 18);
    assert_eq!(snapshot().read.acquired, 1);

    // A wait is recorded from the first attempt to the admission, and is not part of the hold.
    assert_eq!(uses(), [(false, true, 11)]);
    let guard = lock.write();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let guard = lock.read();
            pass(5);
            drop(guard);
        });
        while !lock.is_contended() {
            std::thread::yield_now();
        }
        pass(300);
        drop(guard);
    });
    let mut used = uses();
    used.sort_unstable();
    assert_eq!((used.len(), used[2]), (3, (true, false, 300)));
    let all = snapshot();
    assert_eq!(all.read.acquired, 2);
    assert_eq!((all.read.contended(), all.read.waited.sum()), (1, 300));
    assert_eq!(all.read.held.sum(), 105);
    assert_eq!(all.write.contended(), 0);

    // A killed wait acquires nothing.
    let guard = lock.read();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            StdHost::current_task().kill();
            assert!(lock.write_killable().is_err());
        });
    });
    drop(guard);
    assert_eq!(snapshot().write.acquired, all.write.acquired);

    let mut both = LockSnapshot::default();
    both.merge(&all);
    both.merge(&all);
    assert_eq!(both.read.waited.sum(), 600);
    assert_eq!(both.downgraded.count(), 2);
}

#[test]
fn lock_without_statistics_returns_none() {
    let lock = MmapLock::<StdHost>::new();
    drop(lock.write().downgrade());
    assert!(lock.stats().is_none());
}
