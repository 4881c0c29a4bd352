//! Faults and lookups by many CPUs.
//!
//! Sixteen CPUs fault in pages or look up VMAs, in one VMA or in separate VMAs, with each lock design of
//! faults. The tests count transfers of cache lines per fault ([`more`]). In one VMA, a fault with per-CPU
//! VMA locks causes no transfer, and a fault with a shared lock causes about one. In separate VMAs, no VMA
//! lock causes a transfer. If a shared word is added to a VMA, to the address space or to the fault's path,
//! these tests fail first.

use crate::world::{ANON, GIB, More, PAGE, RW, World, more, ran_alone};
use freehold::fault::Access;
use freehold::space::{FaultLock, Locking, MapFlags};
use freehold_machine::Process;

/// Makes sixteen CPUs fault in pages, each with page tables of its own, all in one VMA or each in a VMA of
/// its own.
fn faults(fault: FaultLock, one_vma: bool) -> More {
    more(100, |pages| {
        let world = World::new(16);
        let process = world.process(Locking::default().fault(fault));
        let at = 1 << 40;
        let map = |at, bytes| {
            process.mmap(at, bytes, RW, ANON | MapFlags::FIXED, None, 0).expect("a VMA");
        };
        match one_vma {
            true => map(at, 32 * GIB),
            false => (0..16).for_each(|number| map(at + 2 * number * GIB, GIB)),
        }
        let report = world.all(|number| {
            let mut cpu = world.machine.cpu(number);
            touch(&process, &mut cpu, at + 2 * number as u64 * GIB, pages);
        });
        (world, report)
    })
}

/// Stores to `pages` pages from `at` on.
fn touch(
    process: &Process,
    cpu: &mut freehold_machine::Cpu<freehold_machine::DefaultFormat>,
    at: u64,
    pages: u64,
) {
    for page in 0..pages {
        process.touch(cpu, at + page * PAGE, Access::WRITE).expect("a page");
    }
}

#[test]
fn faults_in_one_vma_share_no_cache_line() {
    if ran_alone(faults_in_one_vma_share_no_cache_line) {
        return;
    }
    let more = faults(FaultLock::VmaPerCpu, true);
    assert!(more.most() < 0.01, "{:?}", more.places);
}

#[test]
fn faults_in_separate_vmas_share_no_cache_line() {
    if ran_alone(faults_in_separate_vmas_share_no_cache_line) {
        return;
    }
    for fault in [FaultLock::VmaRwsem, FaultLock::VmaCount, FaultLock::VmaPerCpu] {
        let more = faults(fault, false);
        assert!(more.most() < 0.01, "{fault:?}: {:?}", more.places);
    }
}

/// The older designs transfer a lock in each fault. This test shows that the tests above would detect a
/// shared line.
#[test]
fn every_fault_transfers_a_shared_lock() {
    if ran_alone(every_fault_transfers_a_shared_lock) {
        return;
    }
    for fault in [FaultLock::MmapLock, FaultLock::VmaRwsem, FaultLock::VmaCount] {
        let more = faults(fault, true);
        assert!(more.most() > 0.9, "{fault:?}: {:?}", more.places);
    }
    assert!(faults(FaultLock::MmapLock, false).most() > 0.9);
}

#[test]
fn lookups_share_no_cache_line() {
    if ran_alone(lookups_share_no_cache_line) {
        return;
    }
    let more = more(100, |times| {
        let world = World::new(16);
        let process = world.process(Locking::default());
        let at = process.mmap(0, GIB, RW, ANON, None, 0).expect("a VMA");
        let report = world.all(|_| {
            for _ in 0..times {
                assert!(process.find_vma(at).is_some());
            }
        });
        (world, report)
    });
    assert!(more.most() < 0.01, "{:?}", more.places);
}

/// The pages are 2 MiB apart, so each fault adds a table, and some also add an upper table. Table memory
/// comes from per-CPU lists, and upper entries are installed by compare-and-swap.
#[test]
fn faults_that_add_tables_share_no_cache_line() {
    if ran_alone(faults_that_add_tables_share_no_cache_line) {
        return;
    }
    const SPAN: u64 = 512 * GIB;
    let more = more(100, |tables| {
        let world = World::new(16);
        let process = world.process(Locking::default());
        let at = SPAN;
        process.mmap(at, 16 * SPAN, RW, ANON | MapFlags::FIXED, None, 0).expect("a VMA");
        let report = world.all(|number| {
            let mut cpu = world.machine.cpu(number);
            for table in 0..tables {
                let page = at + number as u64 * SPAN + table * (2 << 20);
                process.touch(&mut cpu, page, Access::WRITE).expect("a page");
            }
        });
        (world, report)
    });
    assert!(more.most() < 0.01, "{:?}", more.places);
}

/// One CPU maps and unmaps continuously while the other CPUs fault elsewhere. The faults rarely fetch the
/// lines that the changes write.
#[test]
fn faults_rarely_fetch_lines_of_concurrent_changes() {
    if ran_alone(faults_rarely_fetch_lines_of_concurrent_changes) {
        return;
    }
    let more = more(100, |pages| {
        let world = World::new(16);
        let process = world.process(Locking::default());
        let at = 1 << 40;
        for number in 0..16 {
            let at = at + 2 * number * GIB;
            process.mmap(at, GIB, RW, ANON | MapFlags::FIXED, None, 0).expect("a VMA");
        }
        // These VMAs fill several leaves of the tree between the ranges that fault and the range that
        // changes.
        for n in 1..48 {
            let at = at + GIB + n * 16 * PAGE;
            process.mmap(at, 8 * PAGE, RW, ANON | MapFlags::FIXED, None, 0).expect("a VMA");
        }
        let report = world.all(|number| {
            let mut cpu = world.machine.cpu(number);
            if number > 0 {
                return touch(&process, &mut cpu, at + 2 * number as u64 * GIB, pages);
            }
            for _ in 0..pages / 10 {
                process.mmap(at, 64 * PAGE, RW, ANON | MapFlags::FIXED, None, 0).expect("a VMA");
                cpu.call(|| process.munmap(at, 64 * PAGE)).expect("unmapped");
            }
        });
        (world, report)
    });
    // Each of the fifteen readers fetches a tree node and the sequence number of the mmap lock after a
    // change.
    assert!(more.most() < 0.2, "{:?}", more.places);
}
