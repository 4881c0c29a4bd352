//! Private copies of pages of files that are swapped out and come back (`reclaim/swap_out.rs`,
//! `fault/swap.rs`), concurrent with probes, holes and truncation.

use crate::{
    explore::{explore, thread},
    files::{Opened, file},
    scene::{OLD, PAGE, R, RW, Scene, page, unmap},
};
use freehold::{
    reclaim::ReclaimRequest,
    remote::AccessMode,
    space::{Locking, MapFlags, Prot},
    swap::SwapId,
};
use freehold_machine::MemorySwap;

/// The bytes of a breakpoint.
const TRAP: [u8; 1] = [0xcc];
/// Offset of the probe in the file, in page 0.
const PROBE: u64 = 64;

/// A process with copies of both pages of a file: page `n` has the word `n + 1`.
struct Rig {
    scene: Scene,
    file: Opened,
    device: MemorySwap,
    id: SwapId,
}

impl Rig {
    fn new(locking: Locking, prot: Prot) -> Self {
        let device = MemorySwap::new(8);
        let (scene, id) = Scene::swapping(locking, &device);
        let file = file(&scene);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        scene.process.mmap(page(0), 2 * PAGE, RW, flags, Some(&file), 0).unwrap();
        let mut cpu = scene.machine.cpu(OLD);
        for number in 0..2 {
            scene.process.store(&mut cpu, page(number), number + 1).unwrap();
        }
        drop(cpu);
        scene.process.mprotect(page(0), 2 * PAGE, prot).unwrap();
        let rig = Rig { scene, file, device, id };
        if crate::explore::seed().is_multiple_of(2) {
            rig.reclaim();
            assert_eq!(rig.scene.process.rss().anon, 0);
        }
        rig
    }

    fn reclaim(&self) {
        self.scene.engine.reclaim(&ReclaimRequest::pages(u64::MAX));
    }

    fn load(&self, cpu: usize, number: u64) -> u64 {
        self.scene.process.load(&mut self.scene.machine.cpu(cpu), page(number)).unwrap()
    }

    /// Reads the byte of the probe, as a debugger does.
    fn byte(&self) -> u8 {
        let mut byte = [0];
        self.scene.process.read_memory(page(0) + PROBE, &mut byte, AccessMode::Forced).unwrap();
        byte[0]
    }

    fn end(self) {
        self.scene.process.check();
        unmap(&self.scene.process, 0..2);
        let Rig { scene, file, device, id } = self;
        drop(file);
        scene.end_swapping(device, id);
    }
}

#[test]
fn probe_concurrent_with_swapping() {
    explore("a probe concurrent with faults and swapping of its page", 150, |locking| {
        let rig = Rig::new(locking, R | Prot::EXEC);
        thread::scope(|scope| {
            scope.spawn(|| {
                rig.file.mapping().add_probe(PROBE, &TRAP).unwrap();
                assert_eq!(rig.byte(), TRAP[0]);
                rig.file.mapping().remove_probe(PROBE).unwrap();
                assert_eq!(rig.byte(), 0);
            });
            scope.spawn(|| assert_eq!(rig.load(0, 0), 1));
            (0..2).for_each(|_| _ = scope.spawn(|| rig.reclaim()));
        });
        assert_eq!(rig.byte(), 0);
        rig.end();
    });
}

#[test]
fn hole_and_truncation_concurrent_with_swapping() {
    explore("a hole and a truncation concurrent with swapping of copies", 150, |locking| {
        let rig = Rig::new(locking, RW);
        thread::scope(|scope| {
            scope.spawn(|| {
                rig.file.mapping().punch(0..PAGE).unwrap();
                rig.file.mapping().truncate(PAGE).unwrap();
            });
            scope.spawn(|| {
                assert_eq!(rig.load(0, 0), 1);
                let mut cpu = rig.scene.machine.cpu(1);
                rig.scene.process.store(&mut cpu, page(0), 5u64).unwrap();
            });
            scope.spawn(|| rig.reclaim());
        });
        assert_eq!(rig.load(2, 0), 5, "a hole keeps copies");
        rig.end();
    });
}
