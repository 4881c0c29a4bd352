//! The pager of the example `snapshot_pager`, with a process whose memory changes concurrently.
//!
//! The test compiles the pager of the example (`examples/snapshot_pager/pager.rs`) as a module. The pager
//! serves the memory of a process from a snapshot through a userfaultfd, while the process stores, discards,
//! moves, forks and unmaps. A read of a page must return the bytes of the snapshot, or the contents that the
//! process has given the page since. The test expects exact counts of copied and zeroed pages, so a change of
//! the test's steps changes these counts. Single calls of a pager are tested in `engine/freehold/tests`,
//! module `uffd`.

#[path = "../examples/snapshot_pager/pager.rs"]
#[allow(dead_code, reason = "only the example uses these items")]
mod pager;

use freehold::{
    PAGE_SIZE as PAGE,
    call::{Advice, RemapFlags},
    engine::{Config, Engine},
    space::{MapFlags, Prot, SpaceConfig},
    uffd::{Features, RegisterMode, UffdConfig, Userfaultfd},
};
use freehold_machine::{Machine, MachineConfig, Process};
use pager::{Pager, Snapshot, Work};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
};

const START: u64 = 0x10_0000_0000;
const PAGES: u64 = 16;

fn page(number: u64) -> u64 {
    START + number * PAGE
}

#[test]
fn process_reads_its_snapshot_through_the_pager() {
    let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
    let kernel = Engine::new(machine.clone(), Config::default()).unwrap();
    let mut cpu = machine.cpu(0);
    let new = || {
        let process = Process::new(&kernel, &SpaceConfig::default()).unwrap();
        let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED;
        process.mmap(START, PAGES * PAGE, Prot::READ | Prot::WRITE, flags, None, 0).unwrap();
        process
    };
    let old = new();
    (1..PAGES).for_each(|n| old.store(&mut cpu, page(n), n).unwrap());
    let snapshot = Snapshot::take(old.space(), START, PAGES).unwrap();
    drop(old);

    let process = new();
    let features =
        Features::EVENT_FORK | Features::EVENT_REMAP | Features::EVENT_REMOVE | Features::EVENT_UNMAP;
    let config = UffdConfig::new().features(features);
    let uffd = Arc::new(Userfaultfd::new(process.space(), config).unwrap());
    uffd.register(START, PAGES * PAGE, RegisterMode::MISSING).unwrap();
    let work = Work::default();
    thread::scope(|scope| {
        let (pager, served) = (Pager::new(&snapshot, &work, START), uffd.clone());
        scope.spawn(move || pager.serve(&served, scope));
        assert_eq!([0, 1].map(|n| process.load(&mut cpu, page(n))), [Ok(0u64), Ok(1)]);
        // A page that was changed and discarded reads as zeroes. Moved pages are supplied at their new
        // addresses.
        process.store(&mut cpu, page(2), 22u64).unwrap();
        process.madvise(page(2), PAGE, Advice::DontNeed).unwrap();
        assert_eq!(process.load(&mut cpu, page(2)), Ok(0u64));
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        process.mremap(page(3), 2 * PAGE, 2 * PAGE, flags, page(100)).unwrap();
        assert_eq!([100, 101].map(|n| process.load(&mut cpu, page(n))), [Ok(3u64), Ok(4)]);
        // A child reads pages that its parent has not read, and pages that its parent has since unmapped.
        let child = Process::of(process.fork().unwrap());
        process.munmap(page(5), PAGE).unwrap();
        assert_eq!([2, 5, 6, 100].map(|n| child.load(&mut cpu, page(n))), [Ok(0u64), Ok(5), Ok(6), Ok(3)]);
        assert_eq!(process.load(&mut cpu, page(6)), Ok(6u64));
        drop(child);
        uffd.close();
        work.children.lock().unwrap().iter().for_each(|child| child.close());
    });
    assert_eq!((work.copied.load(Relaxed), work.zeroes.load(Relaxed)), (7, 2));
    process.check();
    drop((work, uffd, process, cpu, kernel));
    machine.accounting().assert_clean();
}
