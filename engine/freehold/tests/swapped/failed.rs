//! Memory failures of frames in the swap cache (`src/rmap/failure.rs`, `src/fault/swap.rs`).

use super::Swapped;
use crate::support::*;
use freehold::{
    fault::FaultError,
    remote::AccessMode,
    rmap::{Damage, OfflineError},
};

/// Runs a scenario on every design, with a page of contents 1 at [`BASE`] that two processes have. With
/// `written`, the page was written to the device, and the first process has read it again. Otherwise the
/// write has failed. The first process maps the page, and the second one has a swap entry. Checks at the end that
/// exactly the failed frames are missing.
fn with_shared(written: bool, scenario: impl Fn(&Swapped, [&Process; 2], &mut Vcpu)) {
    for locking in Locking::ALL {
        let swapped = Swapped::new(64);
        let process = swapped.process(locking);
        let mut cpu = swapped.world.machine.cpu(0);
        anon(&process, BASE, 1);
        fill(&process, &mut cpu, BASE, 1, 1);
        if !written {
            swapped.device.fail_writes(0..64);
        }
        swapped.reclaim();
        assert_eq!((process.rss().swap, swapped.device.stored().len()), (1, usize::from(written)));
        let child = Process::of(process.fork().unwrap());
        assert_eq!(process.load::<u64>(&mut cpu, BASE), Ok(1));
        assert_eq!(child.rss().swap, 1);
        scenario(&swapped, [&process, &child], &mut cpu);
        [&process, &child].iter().for_each(|process| process.check());
        drop((process, child, cpu));
        let failed = swapped.world.engine().failed_frames();
        let Swapped { world: World { machine, engine }, .. } = swapped;
        drop(engine);
        let left = machine.accounting();
        assert_eq!((left.frames as u64, left.tables, left.spaces), (failed, 0, 0), "{left}");
    }
}

/// Reports a failure of the memory of the page, which the process maps.
fn fail(swapped: &Swapped, process: &Process) -> Pfn {
    let pfn = process.frame_at(BASE).expect("the page is mapped");
    assert_eq!(swapped.world.engine().memory_failure(pfn), Ok(Damage::Lost));
    assert_eq!(swapped.world.engine().memory_failure(pfn), Err(OfflineError::Failed));
    pfn
}

const FAILED: FaultError = FaultError::MemoryFailed { addr: BASE };

#[test]
fn page_that_the_device_has_is_read_again() {
    with_shared(true, |swapped, [process, child], cpu| {
        let failed = fail(swapped, process);
        assert_eq!(process.load::<u64>(cpu, BASE), Err(FAILED), "the process that mapped the page");
        let grandchild = Process::of(child.fork().unwrap());
        assert_eq!(child.load::<u64>(cpu, BASE), Ok(1));
        assert!(child.frame_at(BASE).is_some_and(|frame| frame != failed));
        assert_eq!(swapped.device.stats().pages_read, 2);
        child.store(cpu, BASE, 2u64).unwrap();
        assert_eq!(grandchild.load::<u64>(cpu, BASE), Ok(1));
        assert_eq!(swapped.used(), 0);
        grandchild.check();
    });
}

#[test]
fn swapoff_reads_the_page_again() {
    with_shared(true, |swapped, [process, child], cpu| {
        fail(swapped, process);
        let spaces = || [process.space().clone(), child.space().clone()];
        swapped.world.engine().swap_off(swapped.id, spaces).unwrap();
        assert_eq!((child.load::<u64>(cpu, BASE), process.load::<u64>(cpu, BASE)), (Ok(1), Err(FAILED)));
    });
}

#[test]
fn page_that_only_the_failed_frame_had_is_lost() {
    with_shared(false, |swapped, [process, child], cpu| {
        fail(swapped, process);
        for process in [process, child] {
            assert_eq!(process.load::<u64>(cpu, BASE), Err(FAILED));
            assert_eq!(process.store(cpu, BASE, 1u64), Err(FAILED));
            let read = process.read_memory(BASE, &mut [0; 8], AccessMode::Plain);
            assert!(read.is_err(), "{read:?}");
        }
        // A discarded page is not needed.
        child.madvise(BASE, PAGE, freehold::call::Advice::DontNeed).unwrap();
        assert_eq!(child.load::<u64>(cpu, BASE), Ok(0));
    });
}

#[test]
fn page_that_no_entry_maps_is_read_again() {
    with_shared(true, |swapped, [process, child], cpu| {
        let pfn = process.frame_at(BASE).unwrap();
        process.munmap(BASE, PAGE).unwrap();
        assert_eq!(swapped.world.engine().soft_offline(pfn), Err(OfflineError::Busy));
        assert_eq!(swapped.world.engine().memory_failure(pfn), Ok(Damage::Dropped));
        assert_eq!(swapped.world.engine().memory_failure(pfn), Err(OfflineError::Failed));
        assert_eq!(child.load::<u64>(cpu, BASE), Ok(1));
        assert!(child.frame_at(BASE).is_some_and(|frame| frame != pfn));
        assert_eq!((swapped.device.stats().pages_read, swapped.used()), (2, 0));
    });
}

#[test]
fn page_that_no_entry_maps_and_no_device_has_is_lost() {
    with_shared(false, |swapped, [process, child], cpu| {
        let pfn = process.frame_at(BASE).unwrap();
        process.munmap(BASE, PAGE).unwrap();
        assert_eq!(swapped.world.engine().memory_failure(pfn), Ok(Damage::Lost));
        assert_eq!(child.load::<u64>(cpu, BASE), Err(FAILED));
    });
}

/// Runs a scenario with a page of two processes whose write to the device is under way. Ends it after the end
/// of the write.
fn with_page_being_written(scenario: impl Fn(&Swapped, [&Process; 2], &mut Vcpu, Pfn)) {
    for locking in Locking::ALL {
        let swapped = Swapped::new(8);
        let process = swapped.process(locking);
        let mut cpu = swapped.world.machine.cpu(0);
        anon(&process, BASE, 1);
        fill(&process, &mut cpu, BASE, 1, 7);
        let frame = process.frame_at(BASE).unwrap();
        swapped.device.complete_later(true);
        assert_eq!(swapped.reclaim().writing, 1);
        let child = Process::of(process.fork().unwrap());
        scenario(&swapped, [&process, &child], &mut cpu, frame);
        swapped.device.complete_later(false);
        assert_eq!(swapped.world.engine().failed_frames(), 1);
        drop((process, child, cpu));
        let usage = swapped.world.engine().swap_usage(swapped.id).unwrap();
        assert_eq!((usage.used, usage.bad, swapped.device.stored().len()), (0, 0, 0));
        let Swapped { world: World { machine, engine }, .. } = swapped;
        drop(engine);
        let left = machine.accounting();
        assert_eq!((left.frames, left.tables, left.spaces), (1, 0, 0), "{left}");
    }
}

/// The device may have read the frame after its memory had failed.
#[test]
fn page_that_is_being_written_is_lost() {
    with_page_being_written(|swapped, [process, child], cpu, frame| {
        assert_eq!(swapped.world.engine().memory_failure(frame), Ok(Damage::Lost));
        assert_eq!(process.load::<u64>(cpu, BASE), Err(FAILED));
        assert!(swapped.device.complete_next());
        for process in [process, child] {
            assert_eq!(process.load::<u64>(cpu, BASE), Err(FAILED));
        }
    });
}

#[test]
fn page_that_is_mapped_and_being_written_is_lost() {
    with_page_being_written(|swapped, [process, child], cpu, frame| {
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(7));
        assert_eq!(process.frame_at(BASE), Some(frame));
        assert_eq!(swapped.world.engine().memory_failure(frame), Ok(Damage::Lost));
        assert!(swapped.device.complete_next());
        for process in [process, child] {
            assert_eq!(process.load::<u64>(cpu, BASE), Err(FAILED));
        }
    });
}

/// Fails all frames of the swap cache that no entry maps. Returns the results.
fn fail_unmapped(swapped: &Swapped) -> Vec<Result<Damage, OfflineError>> {
    let machine = &swapped.world.machine;
    let all = machine.frames();
    let frames = (all.start.get()..all.end.get()).map(Pfn::new).filter(|pfn| machine.has_frame(*pfn));
    let cached = frames.filter(|pfn| machine.frame(*pfn).is_in_cache() && machine.frame(*pfn).maps() == 0);
    cached.map(|pfn| swapped.world.engine().memory_failure(pfn)).collect()
}

/// The frames of pages that were read ahead fail, during the read or after it.
#[test]
fn pages_that_were_read_ahead_are_read_again() {
    for (locking, later) in Locking::ALL.into_iter().flat_map(|locking| [(locking, false), (locking, true)]) {
        let swapped = Swapped::new(64);
        let process = swapped.process(locking);
        let mut cpu = swapped.world.machine.cpu(0);
        anon(&process, BASE, 6);
        fill(&process, &mut cpu, BASE, 6, 1);
        swapped.reclaim();
        assert_eq!(process.load::<u64>(&mut cpu, BASE), Ok(1));
        swapped.device.complete_later(later);
        let failed = std::thread::scope(|scope| {
            // The second fault reads four pages.
            let fault = scope.spawn(|| process.load::<u64>(&mut swapped.world.machine.cpu(1), BASE + PAGE));
            let mut failed = Vec::new();
            if later {
                until(|| swapped.device.waiting() == 1);
                failed = fail_unmapped(&swapped);
                swapped.device.complete_later(false);
                assert!(swapped.device.complete_next());
            }
            assert_eq!(fault.join().unwrap(), Ok(2));
            if later { failed } else { fail_unmapped(&swapped) }
        });
        // Compared here, because a failed assertion would wait for the thread above.
        assert_eq!(failed, vec![Ok(Damage::Dropped); if later { 4 } else { 3 }]);
        let failed = failed.len() as u64;
        assert_filled(&process, &mut cpu, BASE, 6, 1);
        assert_eq!((swapped.world.engine().failed_frames(), swapped.used()), (failed, 0));
        drop((process, cpu));
        let Swapped { world: World { machine, engine }, .. } = swapped;
        drop(engine);
        assert_eq!(machine.accounting().frames as u64, failed);
    }
}
