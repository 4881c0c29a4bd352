//! Tests of CPUs that switch spaces and flush them while ASIDs are assigned again.
//!
//! Each CPU has a simulated TLB, which marks translations with ASIDs. A flush removes the translations of one
//! ASID from all TLBs, as a broadcast instruction does. An access holds the lock of its TLB, because the
//! instruction waits for the accesses in progress. A test fails if a CPU uses a translation of another space,
//! or of a page that was unmapped. Every space has one page. The spaces that need no race have their ASIDs
//! before the threads start.

use super::Memory;
use freehold_kit::{AsidCpu, Asids, SpaceAsid, asid::set};
use freehold_sync::atomic::{AtomicBool, Ordering::Relaxed};
use freehold_sync::testing::model_bounded;
use loom::sync::{Arc, Mutex};
use loom::thread;

const SPACES: usize = 5;

/// The translations of a CPU: for each ASID, the space whose page it translates.
type Tlb = [Option<usize>; 8];

struct World<const CPUS: usize> {
    asids: Asids<CPUS, 1>,
    spaces: [SpaceAsid; SPACES],
    tlbs: [Mutex<Tlb>; CPUS],
    /// True while the entry of the space's page is present.
    entries: [AtomicBool; SPACES],
    frames: [Memory; SPACES],
}

fn world<const CPUS: usize>() -> Arc<World<CPUS>> {
    Arc::new(World {
        asids: Asids::new(std::array::from_fn(|_| AsidCpu::new()), [set()]),
        spaces: Default::default(),
        tlbs: std::array::from_fn(|_| Mutex::new(Tlb::default())),
        entries: std::array::from_fn(|_| AtomicBool::new(true)),
        frames: std::array::from_fn(|_| Memory::new()),
    })
}

impl<const CPUS: usize> World<CPUS> {
    /// Switches a CPU to a space. Returns the ASID.
    fn enter(&self, cpu: usize, space: usize) -> u16 {
        let load = self.asids.enter(cpu, &self.spaces[space], thread::yield_now);
        if load.flushes {
            *self.tlbs[cpu].lock().unwrap() = Tlb::default();
        }
        load.asid
    }

    /// Accesses the page of the space that the CPU runs with this ASID.
    fn access(&self, cpu: usize, space: usize, asid: u16) {
        let mut tlb = self.tlbs[cpu].lock().unwrap();
        let known = &mut tlb[usize::from(asid)];
        if known.is_none() && self.entries[space].load(Relaxed) {
            *known = Some(space);
        }
        if let Some(found) = *known {
            assert_eq!(found, space, "a translation of another space is used");
            self.frames[space].read();
        }
    }

    fn unmap(&self, space: usize) {
        self.entries[space].store(false, Relaxed);
        if let Some(asid) = self.asids.to_flush(&self.spaces[space]) {
            self.tlbs.iter().for_each(|tlb| tlb.lock().unwrap()[usize::from(asid)] = None);
        }
        self.frames[space].free();
    }
}

#[test]
fn flush_reaches_a_cpu_that_gives_the_space_its_first_asid() {
    model_bounded(3, || {
        let world = world::<2>();
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                let asid = world.enter(1, 0);
                world.access(1, 0, asid);
                world.access(1, 0, asid);
            })
        };
        world.unmap(0);
        other.join().unwrap();
    });
}

/// CPU 1 enters the space without the lock, with the ASID that CPU 2 has assigned.
#[test]
fn flush_reaches_a_cpu_that_uses_the_asid_of_another_cpu() {
    model_bounded(3, || {
        let world = world::<3>();
        world.enter(1, 1);
        let assigns = {
            let world = world.clone();
            thread::spawn(move || _ = world.enter(2, 0))
        };
        let runs = {
            let world = world.clone();
            thread::spawn(move || {
                let asid = world.enter(1, 0);
                world.access(1, 0, asid);
                world.access(1, 0, asid);
            })
        };
        world.unmap(0);
        assigns.join().unwrap();
        runs.join().unwrap();
    });
}

/// A rollover begins while CPU 1 switches to space 0. CPU 0 then runs this space, too, and unmaps its page.
#[test]
fn cpu_that_switches_during_a_rollover_keeps_its_asid_or_drops_its_translations() {
    model_bounded(3, || {
        let world = world::<2>();
        for space in [0, 1] {
            let asid = world.enter(1, space);
            world.access(1, space, asid);
        }
        world.enter(0, 2);
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                let asid = world.enter(1, 0);
                world.access(1, 0, asid);
                world.access(1, 0, asid);
            })
        };
        // Space 3 finds no ASID, and gets one of space 0 or 1.
        let asid = world.enter(0, 3);
        world.access(0, 3, asid);
        let asid = world.enter(0, 0);
        world.access(0, 0, asid);
        world.unmap(0);
        other.join().unwrap();
    });
}

/// Both CPUs need an ASID when there is none. The CPUs run different spaces afterwards.
#[test]
fn two_cpus_that_find_no_asid_use_no_translation_of_another_space() {
    model_bounded(2, || {
        let world = world::<2>();
        for space in [0, 1, 2] {
            let asid = world.enter(1, space);
            world.access(1, space, asid);
        }
        let run = |world: &World<2>, cpu: usize, spaces: [usize; 2]| {
            for space in spaces {
                let asid = world.enter(cpu, space);
                world.access(cpu, space, asid);
            }
        };
        let other = {
            let world = world.clone();
            thread::spawn(move || run(&world, 1, [3, 0]))
        };
        run(&world, 0, [4, 1]);
        other.join().unwrap();
    });
}
