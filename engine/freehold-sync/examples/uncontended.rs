//! Measures the locks without contention: one thread takes and releases each lock two million times. The
//! program first measures one atomic read-modify-write, for comparison. For each operation it prints the
//! nanoseconds of the fastest of seven runs.
//!
//! Run with `cargo run --release -p freehold-sync --features std-host --example uncontended`. No test reads
//! the numbers. To measure another operation, add a line `measure(...)` at the end of `main`.

#[cfg(not(loom))]
fn main() {
    use freehold_sync::counted::Counted;
    use freehold_sync::stats::LockStats;
    use freehold_sync::testing::StdHost;
    use freehold_sync::{MmapLock, Rank, SpinLock, VmaCount, VmaLock, VmaSeq};
    use std::hint::black_box;
    use std::time::Instant;

    const TURNS: u32 = 2_000_000;
    fn measure(name: &str, mut f: impl FnMut()) {
        let best = (0..7)
            .map(|_| {
                let start = Instant::now();
                (0..TURNS).for_each(|_| f());
                start.elapsed().as_secs_f64() * 1e9 / f64::from(TURNS)
            })
            .fold(f64::INFINITY, f64::min);
        println!("{name:<44} {best:6.1} ns");
    }

    let lock = MmapLock::<StdHost>::new();
    let lock = black_box(&lock);
    let counted = MmapLock::<StdHost>::with_stats(
        Counted::try_new(LockStats::try_new().expect("memory")).expect("memory"),
    );
    let (count, seq) = (VmaCount::new(), VmaSeq::new());
    let vma = black_box(VmaLock { count: &count, seq: &seq });
    let guard = lock.write();
    vma.write(&guard);
    vma.attach(&guard);
    vma.unlock_write();
    drop(guard);
    let spin = SpinLock::new(0u64, Rank::Slab);
    let word = std::sync::atomic::AtomicU64::new(0);

    measure("one read-modify-write, for comparison", || {
        black_box(&word).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    measure("mmap lock: read, unlock", || drop(lock.read()));
    measure("mmap lock: write, unlock", || drop(lock.write()));
    measure("mmap lock: write, downgrade, unlock", || drop(lock.write().downgrade()));
    measure("mmap lock: write, VMA write, unlock", || {
        let guard = lock.write();
        vma.write(&guard);
        vma.unlock_write();
    });
    measure("VMA: read, unlock", || {
        let place = vma.try_read(lock, || true).expect("no writer");
        vma.unlock_read::<StdHost>(place);
    });
    measure("mmap lock: speculate", || assert!(lock.speculate().is_some_and(|seen| seen.valid(lock))));
    measure("spin lock: lock, unlock", || *black_box(&spin).lock::<StdHost>() += 1);
    measure("mmap lock with statistics: read, unlock", || drop(black_box(&counted).read()));
    measure("mmap lock with statistics: write, unlock", || drop(black_box(&counted).write()));
}

#[cfg(loom)]
fn main() {}
