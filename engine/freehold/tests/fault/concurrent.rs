//! Faults in one VMA by several threads, while another thread write-locks that VMA; the number of frames that
//! a CPU requests at once; and the anon_vma that the first fault of a VMA chooses. The tests check the counts
//! of pages, frames and VMAs. `lab/freehold-machine/tests/shuttle_engine/per_cpu_readers.rs` and `readers.rs`
//! explore faults and writers of one VMA.

use crate::support::*;
use freehold::fault::Access;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// C-19, C-22: threads fault in one VMA so often that they become readers in their CPUs' slots. A writer
/// locks the same VMA for writing repeatedly. No waiter is lost: each page is filled once, each write lock is
/// acquired, and the VMA is unmapped at the end.
#[test]
fn c22_faults_and_writers_of_one_vma_all_complete() {
    const THREADS: u64 = 3;
    const PAGES: u64 = 2000;
    let world = World::with(64 << 20, Config::default());
    let process = world.process(Locking::default());
    let length = THREADS * PAGES * PAGE;
    anon(&process, BASE, THREADS * PAGES);
    let running = AtomicUsize::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (process, running) = (&process, &running);
            scope.spawn(move || {
                for n in 0..PAGES {
                    let at = BASE + (n * THREADS + thread) * PAGE;
                    process.space().handle_fault(at, Access::WRITE).unwrap();
                }
                running.fetch_sub(1, SeqCst);
            });
        }
        let mut rights = RW | Prot::EXEC;
        while running.load(SeqCst) > 0 {
            process.mprotect(BASE, length, rights).unwrap();
            rights ^= Prot::EXEC;
            std::thread::yield_now();
        }
    });
    process.check();
    assert_eq!(process.rss().anon, (THREADS * PAGES) as i64);
    assert_eq!(process.counts().map_count, 1);
    process.munmap(BASE, length).unwrap();
    assert_eq!(process.rss().anon, 0);
    drop(process);
    world.end();
}

/// A CPU that only allocates frames fetches them in ever larger batches. A CPU that also frees frames fetches
/// only small batches.
#[test]
fn frame_batches_grow_until_a_frame_is_freed() {
    let world = World::with(16 << 20, Config::default());
    let process = world.process(Locking::default());
    anon(&process, BASE, 1500);
    let taken = || world.machine.stats().frames.allocated;
    let batches = |pages: core::ops::Range<u64>| {
        let (mut batches, mut before) = (Vec::new(), taken());
        for n in pages {
            process.space().handle_fault(BASE + n * PAGE, Access::WRITE).unwrap();
            batches.extend((taken() > before).then(|| taken() - before));
            before = taken();
        }
        batches
    };
    assert_eq!(batches(0..1000)[..4], [64, 128, 256, 256]);
    process.munmap(BASE, PAGE).unwrap();
    assert_eq!(batches(1000..1500)[0], 64);
    drop(process);
    world.end();
}

/// A first fault reuses the anon_vma of an adjacent VMA if only their rights differ. The two VMAs can then
/// merge once their rights are equal.
#[test]
fn adjacent_vmas_with_different_rights_share_an_anon_vma() {
    for order in [[0, 2], [2, 0]] {
        everywhere(|_, process, _| {
            anon(process, BASE, 4);
            process.mprotect(BASE + 2 * PAGE, 2 * PAGE, RW | Prot::EXEC).unwrap();
            for page in order {
                process.space().handle_fault(BASE + page * PAGE, Access::WRITE).unwrap();
            }
            assert_eq!(layout(process), [(0, 2), (2, 4)]);
            process.mprotect(BASE + 2 * PAGE, 2 * PAGE, RW).unwrap();
            assert_eq!(layout(process), [(0, 4)], "first faults at {order:?}");
        });
    }
}
