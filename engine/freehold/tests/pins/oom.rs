//! Memory runs out at each allocation of a pin, a fork or a transfer. A failed operation has no effect, and
//! existing pages stay. `at_every_ordinal` repeats a test with one failure at each allocation, and with 0, 1
//! and 2 frames and VMAs in the caches of the engine (`support/scarce.rs`).

use super::*;
use freehold::{
    error::{AccessError, ForkError},
    remote::IoVec,
};
use support::{
    failure::{Point, at_every_allocation},
    scarce::ScarceWorld,
};

/// A world in which memory runs out at a given point.
struct Ending<'p> {
    scarce: ScarceWorld,
    /// Number of frames left in the engine's cache of frames, and of VMAs left in its cache of VMAs.
    spare: u64,
    point: &'p Point,
}

impl Ending<'_> {
    fn run<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.scarce.use_up(self.spare);
        self.point.fail(f)
    }
}

/// Repeats `attempt` with a failure at each allocation in turn. `attempt` returns true if all its operations
/// succeeded.
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
            assert!(all || point.reached(), "{point}: failed without an injected failure");
        });
    }
    assert!(points > 4, "only {points} failures were injected");
}

#[test]
fn failed_pin_of_missing_pages_changes_nothing() {
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

/// C-64: the child of a failed fork is freed. The parent and the pins keep their pages.
#[test]
fn c64_failed_fork_keeps_pins() {
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
fn failed_transfer_copies_whole_pages_only() {
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
