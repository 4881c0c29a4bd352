//! Walks of page tables that run concurrently with faults (C-23, C-61).
//!
//! The bugs in Linux: mlock and other calls walked the page tables with the mmap lock held but without VMA
//! locks. Concurrent faults made such a walk miss pages. A change of rights also cleared an entry for a
//! moment. A concurrent DONTNEED then found the entry empty and did not discard its page.
//!
//! In each test one thread repeats a call that walks or changes the entries ([`with_repeated`]). The other
//! thread stores, discards or locks the same pages, and checks that no store is lost, no discarded page is
//! present and no page is missing. A new call that changes rights or discards pages belongs in the closure
//! `walk` or `change` of the first two tests.

use super::*;
use freehold::{call::Advice, fault::FaultError};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const PAGES: u64 = 32;

/// Runs `work` on one thread while another thread calls `repeated` repeatedly.
fn with_repeated(
    process: &Process,
    world: &World,
    repeated: impl Fn(&Process) + Sync,
    work: impl FnOnce(&Process, &mut Vcpu) + Send,
) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let cpu = world.machine.cpu(1);
            while !stop.load(SeqCst) {
                cpu.call(|| repeated(process));
            }
        });
        let worker = scope.spawn(|| {
            let mut cpu = world.machine.cpu(2);
            work(process, &mut cpu);
        });
        let done = worker.join();
        stop.store(true, SeqCst);
        done.unwrap();
    });
}

/// C-61: a discarded page stays discarded, whatever other calls do to its entry.
#[test]
fn c61_dontneed_discards_despite_concurrent_mprotect() {
    everywhere(|world, process, _| {
        anon(process, BASE, PAGES);
        let change = |process: &Process| {
            process.mprotect(BASE, PAGES * PAGE, R).unwrap();
            process.mprotect(BASE, PAGES * PAGE, RW).unwrap();
        };
        with_repeated(process, world, change, |process, cpu| {
            for round in 0..2000 {
                let addr = BASE + round % PAGES * PAGE;
                let stored = process.store(cpu, addr, round + 1);
                assert!(matches!(stored, Ok(()) | Err(FaultError::Segv { .. })));
                cpu.call(|| process.madvise(addr, PAGE, Advice::DontNeed).unwrap());
                assert_eq!(process.load::<u64>(cpu, addr), Ok(0));
            }
        });
    });
}

/// C-23: no store is lost to a concurrent call that changes rights, locks, forks or reads entries.
#[test]
fn c23_concurrent_walks_lose_no_store() {
    everywhere(|world, process, _| {
        anon(process, BASE, PAGES);
        let walk = |process: &Process| {
            process.mprotect(BASE, PAGES * PAGE, R).unwrap();
            process.mprotect(BASE, PAGES * PAGE, RW).unwrap();
            process.mlock(BASE, PAGES * PAGE).unwrap();
            process.munlock(BASE, PAGES * PAGE).unwrap();
            drop(process.fork().unwrap());
        };
        with_repeated(process, world, walk, |process, cpu| {
            let mut stored = [0; PAGES as usize];
            for round in 0..4000 {
                let page = round % PAGES;
                let add = |at: freehold::VirtAddr, access| process.handle_fault(at.get(), access).map(drop);
                let added = cpu.fetch_add(process.mmu(), BASE + page * PAGE, 1, add);
                stored[page as usize] += u64::from(added.is_ok());
            }
            for (page, stored) in (0..).zip(stored) {
                assert_eq!(process.load::<u64>(cpu, BASE + page * PAGE), Ok(stored));
            }
        });
    });
}

/// C-23: every page is present after mlock, whatever faults run concurrently.
#[test]
fn c23_mlock_populates_every_page_despite_faults() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, PAGES);
        let mut resident = [0u8; PAGES as usize];
        let fault = |process: &Process| {
            for page in 0..PAGES {
                let access = if page % 2 == 0 {
                    freehold::fault::Access::WRITE
                } else {
                    freehold::fault::Access::READ
                };
                process.handle_fault(BASE + page * PAGE, access).unwrap();
            }
        };
        with_repeated(process, world, fault, |process, _| {
            for _ in 0..100 {
                process.mlock(BASE, PAGES * PAGE).unwrap();
                process.mincore(BASE, PAGES * PAGE, &mut resident).unwrap();
                assert!(resident.iter().all(|page| page & 1 == 1), "{resident:?}");
                assert_eq!(process.rss().anon, PAGES as i64, "mlock left the zero page mapped");
                process.munlock(BASE, PAGES * PAGE).unwrap();
                process.madvise(BASE, PAGES * PAGE, Advice::DontNeed).unwrap();
            }
        });
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(0));
    });
}
