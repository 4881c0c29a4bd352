//! Memory runs out, at every allocation in turn: what could not be done has not been, and what was is there.

use super::*;
use freehold::{
    error::{AccessError, ForkError},
    remote::IoVec,
};
use support::{
    failure::{Point, at_every_allocation},
    scarce::ScarceWorld,
};

/// Memory that will run out.
struct Ending<'p> {
    scarce: ScarceWorld,
    /// Frames and VMAs in store.
    spare: u64,
    point: &'p Point,
}

impl Ending<'_> {
    fn run<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.scarce.use_up(self.spare);
        self.point.fail(f)
    }
}

/// Repeats `attempt`, which says whether all succeeded, with a failure at every allocation in turn.
fn at_every_ordinal(attempt: impl Fn(&mut Ending<'_>, &Process, &mut Vcpu) -> bool) {
    let mut points = 0;
    for spare in 0..3 {
        points += at_every_allocation(&Failure::ALL, |point| {
            let scarce = ScarceWorld::new(World::new());
            let process = scarce.world.process(Locking::default());
            let mut cpu = scarce.world.machine.cpu(0);
            let mut ending = Ending { scarce, spare, point };
            let all = attempt(&mut ending, &process, &mut cpu);
            process.check();
            drop((process, cpu));
            ending.scarce.end();
            assert!(all || point.reached(), "{point}: nothing failed, and yet it did not succeed");
        });
    }
    assert!(points > 4, "{points} failures are no test");
}

#[test]
fn pinning_what_has_to_be_made() {
    at_every_ordinal(|ending, process, cpu| {
        anon(process, BASE, 2);
        anon(process, BASE + (2 << 20) - PAGE, 2);
        let pins = ending.run(|| {
            cpu.run(process.mmu());
            let first = cpu.call(|| process.pin_user_pages_fast(BASE, 2, WRITE));
            [first, process.pin_user_pages(BASE + (2 << 20) - PAGE, 2, LONG)]
        });
        let mut all = true;
        for (pins, at) in pins.into_iter().zip([BASE, BASE + (2 << 20) - PAGE]) {
            all &= pins.as_ref().is_ok_and(|pins| pins.len() == 2);
            match pins {
                Ok(pins) => {
                    assert!(!pins.is_empty());
                    for (pfn, n) in pins.frames().iter().zip(0..) {
                        assert_eq!(process.frame_at(at + n * PAGE), Some(*pfn));
                    }
                }
                Err(error) => assert_eq!(error, PinError::OutOfMemory),
            }
        }
        all
    });
}

/// The child of a fork that fails is gone; the parent and the pin have lost nothing (C-64).
#[test]
fn c64_a_fork_with_pins() {
    const FAR: u64 = BASE + (4 << 20);
    at_every_ordinal(|ending, process, cpu| {
        anon(process, BASE, 8);
        anon(process, FAR, 8);
        fill(process, cpu, BASE, 8, 10);
        fill(process, cpu, FAR, 8, 20);
        let pins = process.pin_user_pages(BASE + 2 * PAGE, 5, WRITE).unwrap();
        let more = process.pin_user_pages(FAR, 1, LONG).unwrap();
        let child = ending.run(|| process.fork().map(Process::of));
        match &child {
            Ok(child) => {
                support::assert_filled(child, cpu, BASE, 8, 10);
                support::assert_filled(child, cpu, FAR, 8, 20);
                child.check();
            }
            Err(error) => assert_eq!(*error, ForkError::OutOfMemory),
        }
        put(&pins, 0, 99);
        assert_eq!(process.load(cpu, BASE + 2 * PAGE), Ok(99u64));
        process.store(cpu, FAR, 98u64).unwrap();
        assert_eq!(word(&more, 0), 98);
        child.is_ok()
    });
}

#[test]
fn a_transfer_between_two_spaces() {
    at_every_ordinal(|ending, process, cpu| {
        anon(process, BASE, 18);
        fill(process, cpu, BASE, 18, 10);
        let other = ending.scarce.world.process(Locking::default());
        anon(&other, BASE, 18);
        let all = [IoVec { base: BASE, len: 18 * PAGE }];
        let moved = ending.run(|| process.process_vm_writev(&all, &other, &all));
        match moved {
            Ok(moved) => {
                assert_eq!(moved as u64 % PAGE, 0);
                support::assert_filled(&other, cpu, BASE, moved as u64 / PAGE, 10);
            }
            Err(error) => assert_eq!(error, AccessError::OutOfMemory),
        }
        moved == Ok(18 * PAGE as usize)
    });
}
