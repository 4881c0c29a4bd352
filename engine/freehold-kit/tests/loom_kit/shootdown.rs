//! Tests of CPUs that use translations while other CPUs flush them.
//!
//! A [`Cpu`] has a simulated TLB, and takes an interrupt only between two instructions. A test fails if a CPU
//! uses a translation that a flush has removed, and this flush has already returned. loom tries all
//! schedules. A new test gives each CPU a closure of the steps of [`World`], such as `enter`, `access` and
//! `unmap`. A CPU that has finished its steps calls `serve`, because a flush of the other CPU waits for its
//! answer.

use super::Memory;
use freehold_kit::{CONTEXTS, Load, Processors, ShootCpu, Shootdown, SpaceCpus};
use freehold_pagetable::{Flush, Level, Pfn, VaRange, VirtAddr};
use freehold_sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use freehold_sync::testing::model;
use loom::sync::Arc;
use loom::thread;
use std::cell::Cell;

const PAGES: usize = 2;
const ROOT: Pfn = Pfn::new(7);

/// Returns a flush of one page.
fn page(page: usize) -> Flush {
    let at = |page: usize| VirtAddr::new(page as u64 * 4096);
    Flush::leaves(VaRange::new(at(page), at(page + 1)), Level::Pte)
}

/// Two CPUs, one space of two pages, and the frames of these pages.
struct World {
    tlbs: Shootdown<2>,
    space: SpaceCpus,
    /// True while the entry of the page is present.
    entries: [AtomicBool; PAGES],
    frames: [Memory; PAGES],
    /// Number of flushes that are over.
    over: AtomicU32,
}

fn world() -> Arc<World> {
    let tlbs = Shootdown::new([ShootCpu::new(), ShootCpu::new()]);
    Arc::new(World {
        space: tlbs.space(ROOT),
        tlbs,
        entries: [AtomicBool::new(true), AtomicBool::new(true)],
        frames: [Memory::new(), Memory::new()],
        over: AtomicU32::new(0),
    })
}

/// A CPU: the translations in its TLB, by context, and the loaded context. It takes interrupts only where the
/// test calls `answer`, between two instructions.
#[derive(Default)]
struct Cpu {
    known: [[Cell<bool>; PAGES]; CONTEXTS],
    loaded: Cell<Option<usize>>,
}

impl Cpu {
    fn load(&self, how: Load) {
        if !how.keeps {
            self.known[how.context].iter().for_each(|known| known.set(false));
        }
        self.loaded.set(Some(how.context));
    }

    fn known(&self) -> &[Cell<bool>; PAGES] {
        &self.known[self.loaded.get().expect("no root is loaded")]
    }
}

impl Processors for Cpu {
    fn interrupt(&self, _: usize) {}

    fn flush_here(&self, _: usize, root: Pfn, what: &Flush) {
        assert_eq!(root, ROOT);
        self.known()[what.start.get() as usize / 4096].set(false);
    }

    fn switch_away(&self, _: usize, _: Pfn) {
        self.loaded.set(None);
    }

    fn relax(&self) {
        thread::yield_now();
    }
}

impl World {
    fn enter(&self, number: usize, cpu: &Cpu) {
        if let Some(how) = self.tlbs.enter(number, &self.space) {
            cpu.load(how);
        }
    }

    fn leave(&self, number: usize, cpu: &Cpu) {
        cpu.loaded.set(None);
        self.tlbs.leave(number, &self.space);
    }

    /// Accesses a page through its translation, if it has one.
    fn access(&self, cpu: &Cpu, page: usize) {
        let known = &cpu.known()[page];
        if !known.get() {
            known.set(self.entries[page].load(Relaxed));
        }
        if known.get() {
            self.frames[page].read();
        }
    }

    fn unmap(&self, number: usize, cpu: &Cpu, at: usize) {
        self.entries[at].store(false, Relaxed);
        self.tlbs.flush(number, &self.space, &page(at), cpu);
        self.frames[at].free();
        self.over.fetch_add(1, Relaxed);
    }

    /// Takes interrupts until `flushes` flushes are over.
    fn serve(&self, number: usize, cpu: &Cpu, flushes: u32) {
        while self.over.load(Relaxed) < flushes {
            self.tlbs.answer(number, cpu);
            thread::yield_now();
        }
    }
}

/// Starts another CPU.
fn spawn(world: &Arc<World>, f: impl FnOnce(&World, &Cpu) + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || f(&world, &Cpu::default()))
}

#[test]
fn flush_waits_for_a_cpu_that_enters_and_leaves() {
    model(|| {
        let world = world();
        let other = spawn(&world, |world, cpu| {
            world.enter(1, cpu);
            world.access(cpu, 0);
            world.tlbs.answer(1, cpu);
            world.access(cpu, 0);
            world.leave(1, cpu);
            world.serve(1, cpu, 1);
        });
        world.unmap(0, &Cpu::default(), 0);
        other.join().unwrap();
        assert!(!world.tlbs.runs_elsewhere(0, &world.space));
    });
}

/// A CPU that returns keeps its translations if there was no flush since it left.
#[test]
fn cpu_that_returns_uses_no_flushed_translation() {
    model(|| {
        let world = world();
        let other = spawn(&world, |world, cpu| {
            for _ in 0..2 {
                world.enter(1, cpu);
                world.access(cpu, 0);
                world.leave(1, cpu);
            }
            world.serve(1, cpu, 1);
        });
        world.unmap(0, &Cpu::default(), 0);
        other.join().unwrap();
    });
}

/// A CPU does its own flush before it answers the flush of another CPU, even if the other flush began
/// earlier. The CPU answers the other flush after it has left the space.
#[test]
fn cpu_that_returns_during_two_flushes_uses_no_flushed_translation() {
    model(|| {
        let world = world();
        let other = spawn(&world, |world, cpu| {
            world.enter(1, cpu);
            world.access(cpu, 0);
            world.unmap(1, cpu, 1);
            world.leave(1, cpu);
            world.tlbs.answer(1, cpu);
            world.enter(1, cpu);
            world.access(cpu, 0);
            world.serve(1, cpu, 2);
        });
        world.unmap(0, &Cpu::default(), 0);
        other.join().unwrap();
    });
}

/// The CPU that flushes runs the space itself; the flush interrupts no other CPU, because none runs the
/// space.
#[test]
fn flush_of_a_single_cpu_keeps_its_context() {
    model(|| {
        let (world, cpu) = (world(), Cpu::default());
        world.enter(0, &cpu);
        world.access(&cpu, 0);
        assert!(!world.tlbs.runs_elsewhere(0, &world.space));
        world.unmap(0, &cpu, 0);
        world.access(&cpu, 0);
        world.access(&cpu, 1);
        world.leave(0, &cpu);
        // The CPU did its own flush in the context, so the remaining translations stay.
        assert!(world.tlbs.enter(0, &world.space).unwrap().keeps);
    });
}

/// A context belongs to one space: another space with the same root starts without translations.
#[test]
fn space_with_a_reused_root_keeps_no_translations() {
    model(|| {
        let (world, cpu) = (world(), Cpu::default());
        world.enter(0, &cpu);
        world.leave(0, &cpu);
        let next = world.tlbs.space(ROOT);
        assert!(!world.tlbs.enter(0, &next).unwrap().keeps);
        world.tlbs.leave(0, &next);
        assert!(world.tlbs.enter(0, &world.space).unwrap().keeps);
    });
}

/// With more spaces than contexts, the space whose context was assigned longest ago starts without
/// translations.
#[test]
fn oldest_context_is_reused() {
    model(|| {
        let world = world();
        let spaces: Vec<_> = (0..=CONTEXTS as u64).map(|root| world.tlbs.space(Pfn::new(root))).collect();
        for space in &spaces {
            assert!(!world.tlbs.enter(0, space).unwrap().keeps);
            world.tlbs.leave(0, space);
        }
        assert!(world.tlbs.enter(0, &spaces[CONTEXTS]).unwrap().keeps);
        world.tlbs.leave(0, &spaces[CONTEXTS]);
        assert!(!world.tlbs.enter(0, &spaces[0]).unwrap().keeps);
    });
}

/// A CPU enters one space again before each of two other spaces. All three spaces keep their contexts.
#[test]
fn space_entered_between_others_keeps_its_context() {
    model(|| {
        let world = world();
        let others: Vec<_> = (0..2).map(|root| world.tlbs.space(Pfn::new(root))).collect();
        let run = |space: &SpaceCpus| {
            let how = world.tlbs.enter(0, space).unwrap();
            world.tlbs.leave(0, space);
            how.keeps
        };
        for round in 0..2 {
            for other in &others {
                run(&world.space);
                assert_eq!(run(other), round > 0);
            }
        }
    });
}

/// Two CPUs flush each other: each answers while it waits with interrupts off.
#[test]
fn two_cpus_that_flush_each_other_make_progress() {
    model(|| {
        let world = world();
        let flush = |world: &World, number| {
            let cpu = Cpu::default();
            world.enter(number, &cpu);
            cpu.known()[0].set(true);
            world.tlbs.flush(number, &world.space, &page(0), &cpu);
            assert!(!cpu.known()[0].get());
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

/// A lazy CPU returns to its space during a flush. It keeps its translations unless the flush made it leave
/// the space.
#[test]
fn lazy_cpu_returns_with_its_root_unless_flushed() {
    model(|| {
        let world = world();
        let cpu = Cpu::default();
        world.enter(1, &cpu);
        let loaded = cpu.loaded.get();
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                let cpu = Cpu { loaded: Cell::new(loaded), ..Cpu::default() };
                world.access(&cpu, 0);
                world.tlbs.idle(1, &world.space);
                world.tlbs.answer(1, &cpu);
                let how = world.tlbs.enter(1, &world.space);
                let switched = cpu.loaded.get().is_none();
                assert_eq!(how.is_some(), switched, "the root stays unless a flush made the CPU leave");
                how.into_iter().for_each(|how| cpu.load(how));
                world.access(&cpu, 0);
                world.leave(1, &cpu);
                world.serve(1, &cpu, 1);
            })
        };
        world.unmap(0, &Cpu::default(), 0);
        other.join().unwrap();
    });
}
