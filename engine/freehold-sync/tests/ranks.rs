//! The lock order is enforced where it has to be, and only there. (With debug assertions; a release build
//! checks nothing.)

use freehold_sync::testing::StdHost;
use freehold_sync::{Host, MmapLock, Rank, RawSpin, RwSem, SpinLock, VmaCount, VmaLock, VmaSeq};

fn held(rank: Rank) -> u16 {
    StdHost::lock_context(|context| context.held(rank)).unwrap()
}

fn innermost() -> Option<Rank> {
    StdHost::lock_context(|context| context.innermost()).unwrap()
}

/// A VMA that is attached to `lock`'s space.
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
fn the_right_order_passes_and_is_forgotten() {
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
    // Releasing needs no order, but a task that may wake another one holds no spin lock.
    drop((d, f, g, e, a, b));
    assert_eq!(innermost(), Some(Rank::IMmap));
    let c = c.downgrade();
    assert_eq!(held(Rank::IMmap), 1);
    drop(c);
    assert_eq!(innermost(), None);
}

#[test]
#[should_panic(expected = "waiting for IMmap while holding PageTable")]
fn an_outer_lock_after_an_inner_one() {
    let (sem, table) = (RwSem::<StdHost>::new(Rank::IMmap), RawSpin::new());
    let _inner = table.lock::<StdHost>(Rank::PageTable);
    let _outer = sem.read();
}

#[test]
#[should_panic(expected = "waiting for Mmap while holding Mmap")]
fn two_spaces_at_once() {
    let (a, b) = (MmapLock::<StdHost>::new(), MmapLock::<StdHost>::new());
    let _a = a.read();
    let _b = b.read();
}

#[test]
#[should_panic(expected = "waiting for PageTable while holding PageTable")]
fn two_tables_without_nesting() {
    let (a, b) = (RawSpin::new(), RawSpin::new());
    let _a = a.lock::<StdHost>(Rank::PageTable);
    let _b = b.lock::<StdHost>(Rank::PageTable);
}

/// A reader of a VMA that waits for the mmap lock waits for a writer that waits for that reader.
#[test]
#[should_panic(expected = "waiting for Mmap while holding Vma")]
fn the_mmap_lock_under_a_vma_lock() {
    let lock = MmapLock::<StdHost>::new();
    let (count, seq) = attached(&lock);
    let _ = VmaLock { count: &count, seq: &seq }.try_read(&lock, || true).unwrap();
    let _guard = lock.read();
}

#[test]
#[should_panic(expected = "waiting for Vma while holding Vma")]
fn writing_a_vma_under_a_vma_read_lock() {
    let lock = MmapLock::<StdHost>::new();
    let (count, seq) = attached(&lock);
    let vma = VmaLock { count: &count, seq: &seq };
    let _ = vma.try_read(&lock, || true).unwrap();
    let guard = lock.try_write().unwrap();
    vma.write(&guard);
}

/// Hazard C-28's kin: a VMA is locked for writing before any lock of a reverse mapping.
#[test]
#[should_panic(expected = "waiting for Vma while holding IMmap")]
fn writing_a_vma_under_a_reverse_mapping() {
    let lock = MmapLock::<StdHost>::new();
    let (count, seq) = attached(&lock);
    let sem = RwSem::<StdHost>::new(Rank::IMmap);
    let guard = lock.write();
    let _tree = sem.write();
    VmaLock { count: &count, seq: &seq }.write(&guard);
}

/// Trying waits for nobody, so it needs no order; what it got counts.
#[test]
fn trying_needs_no_order() {
    let lock = MmapLock::<StdHost>::new();
    let (count, seq) = attached(&lock);
    let vma = VmaLock { count: &count, seq: &seq };
    let first = vma.try_read(&lock, || true).unwrap();
    let guard = lock.try_read().unwrap();
    assert_eq!((held(Rank::Mmap), held(Rank::Vma)), (1, 1));
    // Cannot be kept waiting under the mmap lock, so a second one is allowed.
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
fn a_failed_attempt_holds_nothing() {
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
fn released_without_being_held() {
    let lock = MmapLock::<StdHost>::new();
    let (count, seq) = attached(&lock);
    let vma = VmaLock { count: &count, seq: &seq };
    let place = vma.try_read(&lock, || true).unwrap();
    vma.unlock_read::<StdHost>(place);
    vma.unlock_read::<StdHost>(place);
}
