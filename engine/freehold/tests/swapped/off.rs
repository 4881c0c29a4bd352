//! Swapoff (`src/call/swap_off.rs`): all pages come back, and a call that fails has lost nothing.

use super::{Swapped, with_swapped};
use crate::support::{
    failure::{Failure, at_every_allocation},
    *,
};
use freehold::{error::SwapOffError, fault::FaultError};

#[test]
fn pages_of_all_processes_come_back() {
    with_swapped(4, |swapped, process, cpu| {
        let child = Process::of(process.fork().unwrap());
        // No access is permitted, and the page comes back nevertheless.
        process.mprotect(BASE, PAGE, Prot::empty()).unwrap();
        let spaces = || [process.space().clone(), child.space().clone()];
        swapped.world.engine().swap_off(swapped.id, spaces).unwrap();
        assert_eq!((process.rss().swap, child.rss().swap, process.rss().anon), (0, 0, 4));
        assert_eq!(swapped.world.engine().swap_usage(swapped.id), None);
        assert_eq!(swapped.device.stored(), []);
        assert!(matches!(process.load::<u64>(cpu, BASE), Err(FaultError::Segv { .. })));
        process.mprotect(BASE, PAGE, RW).unwrap();
        process.store(cpu, BASE, 50u64).unwrap();
        assert_filled(&child, cpu, BASE, 4, 1);
        child.check();
        // For the check at the end of the scenario.
        again(swapped);
    });
}

/// Adds the device again, so that it has the number that the test expects.
fn again(swapped: &Swapped) {
    assert_eq!(swapped.world.engine().swap_on(swapped.device.clone(), 0), Ok(swapped.id));
}

#[test]
fn fork_during_swapoff_is_no_escape() {
    with_swapped(2, |swapped, process, cpu| {
        let mut children = Vec::new();
        let spaces = || {
            let named = vec![process.space().clone()];
            if children.is_empty() {
                children.push(Process::of(process.fork().unwrap()));
                return named;
            }
            named.into_iter().chain(children.iter().map(|child| child.space().clone())).collect()
        };
        swapped.world.engine().swap_off(swapped.id, spaces).unwrap();
        assert_filled(&children[0], cpu, BASE, 2, 1);
        again(swapped);
    });
}

#[test]
fn failed_swapoff_loses_nothing() {
    with_swapped(3, |swapped, process, cpu| {
        let engine = swapped.world.engine();
        let spaces = || [process.space().clone()];
        let left_out = engine.swap_off(swapped.id, || None);
        assert_eq!(left_out, Err(SwapOffError::InUse), "the process was not named");
        swapped.device.fail_reads(swapped.device.stored());
        assert_eq!(engine.swap_off(swapped.id, spaces), Err(SwapOffError::Io));
        swapped.device.fail_reads([]);
        swapped.device.complete_later(true);
        let killed = killed(|| engine.swap_off(swapped.id, spaces));
        assert_eq!(killed, Err(SwapOffError::Killed));
        swapped.device.complete_later(false);
        assert!(swapped.device.complete_next());
        // The device is in use again.
        assert_filled(process, cpu, BASE, 3, 1);
        while swapped.reclaim().freed > 0 {}
        assert_eq!((process.rss().swap, swapped.used()), (3, 3));
        assert_filled(process, cpu, BASE, 3, 1);
    });
}

#[test]
fn swapoff_without_memory_loses_nothing() {
    with_swapped(2, |swapped, process, cpu| {
        let reached = at_every_allocation(&Failure::ALL, |point| {
            while swapped.reclaim().freed > 0 {}
            swapped.world.engine().trim();
            let spaces = || [process.space().clone()];
            match point.fail(|| swapped.world.engine().swap_off(swapped.id, spaces)) {
                Ok(()) => again(swapped),
                Err(error) => assert_eq!(error, SwapOffError::OutOfMemory, "{point}"),
            }
            assert_filled(process, cpu, BASE, 2, 1);
        });
        assert!(reached > 0, "swapoff allocates frames");
    });
}

#[test]
fn unknown_device_cannot_be_removed() {
    with_swapped(1, |swapped, process, _| {
        let engine = swapped.world.engine();
        assert!(engine.swap().close(swapped.id));
        let none = || None::<Counted<freehold::space::AddressSpace<Machine>>>;
        assert_eq!(engine.swap_off(swapped.id, none), Err(SwapOffError::NotClosed));
        engine.swap().reopen(swapped.id);
        engine.swap_off(swapped.id, || [process.space().clone()]).unwrap();
        assert_eq!(engine.swap_off(swapped.id, none), Err(SwapOffError::NotFound));
        again(swapped);
    });
}
