//! Tests of the lock order checker (module `rank`): the checker reports a wait in the wrong order, and
//! nothing else. The tests need debug assertions; a release build checks nothing.
//!
//! A test takes locks in one thread. The checker panics with a message that names both ranks, and the test
//! expects that message. A test of allowed orders asserts that the record of held locks is empty at the end.

use freehold_sync::testing::StdHost;
use freehold_sync::{Host, MmapLock, Rank, RawSpin, RwSem, SpinLock, VmaCount, VmaLock, VmaSeq, rank};

fn held(rank: Rank) -> u16 {
    StdHost::lock_context(|context| context.held(rank)).unwrap()
}

fn innermost() -> Option<Rank> {
    StdHost::lock_context(|context| context.innermost()).unwrap()
}

/// Creates the words of a VMA that is attached to the space of `lock`.
fn attached(lock: &MmapLock<StdHost>) -> (VmaCount, VmaSeq) {
    let words = (VmaCount::new(), VmaSeq::new());
    let vma = VmaLock { count: &words.0, seq: &words.1 };
    let guard = lock.write();
    vma.write(&guard);
    vma.attach(&guard);
    vma.unlock_write();
    drop(guard);
    words
}

#[test]
fn locks_in_order_pass_and_leave_no_record() {
    let (sem, slab) = (RwSem::<StdHost>::new(Rank::IMmap), SpinLock::new((), Rank::Slab));
    let (upper, lower, second) = (RawSpin::new(), RawSpin::new(), RawSpin::new());
    let (parent, child) = (MmapLock::<StdHost>::new(), MmapLock::<StdHost>::new());
    let a = parent.write();
    let b = child.write_nested();
    let c = sem.write();
    let d = upper.lock::<StdHost>(Rank::PageTableUpper);
    let e = lower.lock::<StdHost>(Rank::PageTable);
    let f = second.lock::<StdHost>(Rank::PageTableNested);
    let g = slab.lock::<StdHost>();
    assert_eq!(innermost(), Some(Rank::Slab));
    // Locks may be released in any order, but all spin locks must be released before a release that may wake
    // a task.
    drop((d, f, g, e, a, b));
    assert_eq!(innermost(), Some(Rank::IMmap));
    let c = c.downgrade();
    assert_eq!(held(Rank::IMmap), 1);
    drop(c);
    assert_eq!(innermost(), None);
}

#[test]
#[should_panic(expected = "waiting for IMmap while holding PageTable")]
fn outer_lock_after_inner_lock_panics() {
    let (sem, table) = (RwSem::<StdHost>::new(Rank::IMmap), RawSpin::new());
    let _inner = table.lock::<StdHost>(Rank::PageTable);
    let _outer = sem.read();
}

#[test]
#[should_panic(expected = "waiting for Mmap while holding Mmap")]
fn second_mmap_lock_panics() {
    let (a, b) = (MmapLock::<StdHost>::new(), MmapLock::<StdHost>::new());
    let _a = a.read();
    let _b = b.read();
}

#[test]
#[should_panic(expected = "waiting for PageTable while holding PageTable")]
fn second_page_table_lock_of_the_same_rank_panics() {
    let (a, b) = (RawSpin::new(), RawSpin::new());
    let _a = a.lock::<StdHost>(Rank::PageTable);
    let _b = b.lock::<StdHost>(Rank::PageTable);
}

/// Deadlock: a reader of a VMA waits for the mmap lock, and a writer waits for that reader.
#[test]
#[should_panic(expected = "waiting for Mmap while holding Vma")]
fn waiting_for_the_mmap_lock_under_a_vma_lock_panics() {
    let lock = MmapLock::<StdHost>::new();
    let (count, seq) = attached(&lock);
    let _ = VmaLock { count: &count, seq: &seq }.try_read(&lock, || true).unwrap();
    let _guard = lock.read();
}

#[test]
#[should_panic(expected = "waiting for Vma while holding Vma")]
fn write_locking_a_vma_under_a_vma_read_lock_panics() {
    let lock = MmapLock::<StdHost>::new();
    let (count, seq) = attached(&lock);
    let vma = VmaLock { count: &count, seq: &seq };
    let _ = vma.try_read(&lock, || true).unwrap();
    let guard = lock.try_write().unwrap();
    vma.write(&guard);
}

/// Related to hazard C-28: a VMA is write-locked before any rmap lock is taken.
#[test]
#[should_panic(expected = "waiting for Vma while holding IMmap")]
fn write_locking_a_vma_under_an_rmap_lock_panics() {
    let lock = MmapLock::<StdHost>::new();
    let (count, seq) = attached(&lock);
    let sem = RwSem::<StdHost>::new(Rank::IMmap);
    let guard = lock.write();
    let _tree = sem.write();
    VmaLock { count: &count, seq: &seq }.write(&guard);
}

/// A try needs no order because it does not wait. A lock that it acquires counts as held.
#[test]
#[should_panic(expected = "a task that must hold no lock holds Some(Vma)")]
fn task_that_must_hold_no_lock_is_checked() {
    let lock = MmapLock::<StdHost>::new();
    let (count, seq) = attached(&lock);
    rank::holds_none::<StdHost>();
    let _ = VmaLock { count: &count, seq: &seq }.try_read(&lock, || true).unwrap();
    rank::holds_none::<StdHost>();
}

#[test]
fn trying_needs_no_order() {
    let lock = MmapLock::<StdHost>::new();
    let (count, seq) = attached(&lock);
    let vma = VmaLock { count: &count, seq: &seq };
    let first = vma.try_read(&lock, || true).unwrap();
    let guard = lock.try_read().unwrap();
    assert_eq!((held(Rank::Mmap), held(Rank::Vma)), (1, 1));
    // Allowed: no writer can block a second read lock under the mmap lock.
    let second = vma.read_under(&guard).unwrap();
    assert_eq!(held(Rank::Vma), 2);
    drop(guard);
    vma.unlock_read::<StdHost>(first);
    vma.unlock_read::<StdHost>(second);
    assert_eq!(innermost(), None);
    let table = RawSpin::new();
    let guard = table.try_lock::<StdHost>(Rank::PageTable).unwrap();
    assert!(table.try_lock::<StdHost>(Rank::PageTable).is_none());
    assert_eq!(held(Rank::PageTable), 1);
    drop(guard);
}

#[test]
fn failed_attempt_records_no_lock() {
    let lock = MmapLock::<StdHost>::new();
    let (count, seq) = attached(&lock);
    assert!(VmaLock { count: &count, seq: &seq }.try_read(&lock, || false).is_err());
    assert_eq!(innermost(), None);
    let guard = lock.write();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(lock.try_read().is_none());
            StdHost::current_task().kill();
            assert!(lock.read_killable().is_err());
            assert!(lock.write_killable().is_err());
            assert_eq!(innermost(), None);
        });
    });
    drop(guard);
}

#[test]
#[should_panic(expected = "does not hold it")]
fn release_of_a_lock_that_is_not_held_panics() {
    let lock = MmapLock::<StdHost>::new();
    let (count, seq) = attached(&lock);
    let vma = VmaLock { count: &count, seq: &seq };
    let place = vma.try_read(&lock, || true).unwrap();
    vma.unlock_read::<StdHost>(place);
    vma.unlock_read::<StdHost>(place);
}
