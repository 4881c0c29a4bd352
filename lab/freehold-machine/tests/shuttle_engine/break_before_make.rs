//! Break-before-make: a fault fills a slot that a concurrent discard has emptied, with an entry of another
//! size, on a format that demands a flush in between (`Format::BREAK_BEFORE_MAKE`).
//!
//! The code under test is `LeafGuard::close` of `freehold-pagetable`, and `huge.rs` and `zap.rs` of
//! `freehold-vmspace`. CPU 1 holds translations of the memory that CPU 0 discards, and does not access it
//! again. A third thread faults during the discard. The oracles of the machine panic if the tables have an
//! entry of another size before the flush. The helpers of `scene.rs` use a format that permits this, so this
//! file builds its own machine. `engine/freehold/tests/huge/break_before_make.rs` has the cases without
//! concurrency.

use crate::{
    explore::{CHECKED, explore, explore_until, thread},
    scene::{ANON, PAGE, RW, TABLE, page},
};
use freehold::{
    call::Advice,
    counted::Counted,
    engine::{Config, Engine, HugePages},
    space::{Locking, MapFlags, SpaceConfig, ThpDisable},
};
use freehold_machine::{Cpu, Machine, MachineConfig, Process};
use freehold_pagetable::Aarch64;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

type Arm = Machine<Aarch64>;

/// A machine with memory for four huge pages, and a process that maps the ranges of two.
struct Scene {
    machine: Arm,
    engine: Counted<Engine<Arm>>,
    process: Process<Aarch64>,
}

impl Scene {
    fn new(locking: Locking) -> Self {
        let machine = Arm::new(MachineConfig::backed(10 << 20).tables(1 << 18).cpus(3)).unwrap();
        let engine = Engine::new(machine.clone(), Config::default().huge_pages(HugePages::Always)).unwrap();
        let process = Process::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        process.mmap(page(0), 2 * TABLE * PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        Scene { machine, engine, process }
    }

    /// Stores to page 5 from CPU 1, so that this CPU holds a translation.
    fn touch(&self) {
        self.process.store(&mut self.machine.cpu(1), page(5), 1u64).unwrap();
    }

    /// Discards the first range on CPU 0, while CPU 2 runs `access`.
    fn discard_during(&self, access: impl FnOnce(&mut Cpu<Aarch64>) + Send) {
        let Scene { machine, process, .. } = self;
        thread::scope(|scope| {
            scope.spawn(move || {
                let discard = || process.madvise(page(0), TABLE * PAGE, Advice::DontNeed);
                machine.cpu(0).call(discard).unwrap();
            });
            scope.spawn(move || access(&mut machine.cpu(2)));
        });
        assert_eq!(process.load::<u64>(&mut machine.cpu(1), page(5)), Ok(0));
    }

    fn end(self) {
        self.process.check();
        drop((self.process, self.engine));
        self.machine.accounting().assert_clean();
    }
}

#[test]
fn small_pages_replace_a_discarded_huge_page_after_its_flush() {
    explore("DONTNEED of a huge page concurrent with a fault for a small page", 30, |locking| {
        let scene = Scene::new(locking);
        scene.touch();
        scene.process.set_thp_disable(ThpDisable::UnlessAdvised);
        scene.discard_during(|cpu| scene.process.store(cpu, page(300), 7u64).unwrap());
        let found: u64 = scene.process.load(&mut scene.machine.cpu(2), page(300)).unwrap();
        assert!(found == 0 || found == 7, "{found}");
        scene.end();
    });
}

/// Explores until a fault has found the slot empty before the flush of the discard, and has flushed itself.
#[test]
fn huge_page_replaces_a_discarded_table_after_its_flush() {
    let completed = Arc::new(AtomicBool::new(!CHECKED));
    let seen = completed.clone();
    let name = "DONTNEED of small pages concurrent with a fault for a huge page";
    explore_until(
        &Locking::ALL,
        name,
        100,
        || seen.load(SeqCst),
        move |locking| {
            let scene = Scene::new(locking);
            scene.process.set_thp_disable(ThpDisable::UnlessAdvised);
            scene.touch();
            scene.process.set_thp_disable(ThpDisable::Nowhere);
            // Makes the huge page of zeroes, so that the fault takes few steps.
            assert_eq!(scene.process.load::<u64>(&mut scene.machine.cpu(0), page(TABLE)), Ok(0));
            let before = scene.machine.stats().full_flushes;
            scene.discard_during(|cpu| {
                let found: u64 = scene.process.load(cpu, page(300)).unwrap();
                assert_eq!(found, 0);
            });
            if scene.machine.stats().full_flushes > before {
                completed.store(true, SeqCst);
            }
            scene.end();
        },
    );
}
