//! Processors that use translations, beside flushes that take them away.

use super::Memory;
use freehold_kit::{Processors, ShootCpu, Shootdown, SpaceCpus};
use freehold_pagetable::{Flush, Pfn, VirtAddr};
use freehold_sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use freehold_sync::testing::model;
use loom::sync::Arc;
use loom::thread;
use std::cell::Cell;

const PAGE: Flush =
    Flush { start: VirtAddr::new(0), end: VirtAddr::new(4096), all: false, tables_freed: false };

/// Two processors, one space of one page, and the frame behind it.
struct World {
    tlbs: Shootdown<2>,
    space: SpaceCpus,
    /// Whether the entry is there.
    entry: AtomicBool,
    frame: Memory,
    /// Flushes that are over.
    over: AtomicU32,
}

fn world() -> Arc<World> {
    Arc::new(World {
        tlbs: Shootdown::new([ShootCpu::new(), ShootCpu::new()]),
        space: SpaceCpus::new(Pfn::new(7)),
        entry: AtomicBool::new(true),
        frame: Memory::new(),
        over: AtomicU32::new(0),
    })
}

/// A processor: whether its TLB has the translation. Interrupts are taken where it looks for them, between
/// two instructions.
#[derive(Default)]
struct Cpu {
    translation: Cell<bool>,
    switched: Cell<bool>,
}

impl Processors for Cpu {
    fn interrupt(&self, _: usize) {}

    fn flush_here(&self, _: usize, root: Pfn, what: &Flush) {
        assert_eq!((root, *what), (Pfn::new(7), PAGE));
        self.translation.set(false);
    }

    fn switch_away(&self, _: usize, _: Pfn) {
        self.translation.set(false);
        self.switched.set(true);
    }

    fn relax(&self) {
        thread::yield_now();
    }
}

impl World {
    /// A load through the page, if it is there.
    fn access(&self, cpu: &Cpu) {
        if !cpu.translation.get() {
            cpu.translation.set(self.entry.load(Relaxed));
        }
        if cpu.translation.get() {
            self.frame.read();
        }
    }

    fn unmap(&self, number: usize, cpu: &Cpu) {
        self.entry.store(false, Relaxed);
        self.tlbs.flush(number, &self.space, &PAGE, cpu);
        self.frame.free();
        self.over.fetch_add(1, Relaxed);
    }

    /// Takes interrupts until so many flushes are over.
    fn serve(&self, number: usize, cpu: &Cpu, flushes: u32) {
        while self.over.load(Relaxed) < flushes {
            self.tlbs.answer(number, cpu);
            thread::yield_now();
        }
    }
}

#[test]
fn a_processor_that_switches_to_the_space_and_away() {
    model(|| {
        let world = world();
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                let cpu = Cpu::default();
                world.tlbs.enter(1, &world.space);
                world.access(&cpu);
                world.tlbs.answer(1, &cpu);
                world.access(&cpu);
                cpu.translation.set(false);
                world.tlbs.leave(1, &world.space);
                world.serve(1, &cpu, 1);
            })
        };
        world.unmap(0, &Cpu::default());
        other.join().unwrap();
        assert!(!world.tlbs.runs_elsewhere(0, &world.space));
    });
}

/// The processor that flushes runs the space itself, and nobody is asked where nobody is.
#[test]
fn one_processor_alone() {
    model(|| {
        let (world, cpu) = (world(), Cpu::default());
        world.tlbs.enter(0, &world.space);
        world.access(&cpu);
        assert!(!world.tlbs.runs_elsewhere(0, &world.space));
        world.unmap(0, &cpu);
        world.access(&cpu);
        world.tlbs.leave(0, &world.space);
    });
}

/// Two that flush each other: each answers while it waits, interrupts off.
#[test]
fn crosswise() {
    model(|| {
        let world = world();
        world.tlbs.enter(0, &world.space);
        world.tlbs.enter(1, &world.space);
        let flush = |world: &World, number| {
            let cpu = Cpu::default();
            cpu.translation.set(true);
            world.tlbs.flush(number, &world.space, &PAGE, &cpu);
            assert!(!cpu.translation.get());
            world.over.fetch_add(1, Relaxed);
            world.serve(number, &cpu, 2);
        };
        let other = {
            let world = world.clone();
            thread::spawn(move || flush(&world, 1))
        };
        flush(&world, 0);
        other.join().unwrap();
    });
}

/// A lazy processor comes back, beside a flush: with what it remembers if it was not told to go, else with
/// nothing.
#[test]
fn a_lazy_processor() {
    model(|| {
        let world = world();
        world.tlbs.enter(1, &world.space);
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                let cpu = Cpu::default();
                world.access(&cpu);
                world.tlbs.idle(1, &world.space);
                world.tlbs.answer(1, &cpu);
                let loads = world.tlbs.enter(1, &world.space);
                assert_eq!(loads, cpu.switched.get(), "the root is in the register unless it was told to go");
                world.access(&cpu);
                cpu.translation.set(false);
                world.tlbs.leave(1, &world.space);
                world.serve(1, &cpu, 1);
            })
        };
        world.unmap(0, &Cpu::default());
        other.join().unwrap();
    });
}
