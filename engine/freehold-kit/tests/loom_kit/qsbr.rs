//! Readers and what waits for them.

use super::Memory;
use freehold_kit::{Qsbr, QsbrCpu};
use freehold_sync::RcuHead;
use freehold_sync::atomic::{AtomicBool, Ordering::Relaxed};
use freehold_sync::testing::model;
use loom::sync::Arc;
use loom::thread;
use std::ptr::NonNull;

/// Something that is found by a flag, and freed after a grace period once the flag is down.
#[repr(C)]
struct Found {
    head: RcuHead,
    memory: Memory,
}

struct World {
    rcu: Qsbr<2>,
    linked: AtomicBool,
    /// The reader may go.
    over: AtomicBool,
    found: Box<Found>,
}

fn world() -> Arc<World> {
    Arc::new(World {
        rcu: Qsbr::new([QsbrCpu::new(), QsbrCpu::new()]),
        linked: AtomicBool::new(true),
        over: AtomicBool::new(false),
        found: Box::new(Found { head: RcuHead::new(), memory: Memory::new() }),
    })
}

unsafe fn free(head: NonNull<RcuHead>) {
    // SAFETY: the head is the first field of a `Found`, which lives as long as the world.
    unsafe { head.cast::<Found>().as_ref() }.memory.free();
}

impl World {
    fn section(&self) {
        if self.linked.load(Relaxed) {
            self.found.memory.read();
        }
    }

    fn unlink(&self, cpu: usize) {
        self.linked.store(false, Relaxed);
        // SAFETY: asked for once, and the world lives until it has run.
        unsafe { self.rcu.defer(cpu, NonNull::from(&self.found.head), free) };
    }
}

/// Relaxed accesses order nothing, so all that keeps reader and free apart is the grace period.
#[test]
fn a_reader_that_comes_and_goes() {
    model(|| {
        let world = world();
        let reader = {
            let world = world.clone();
            thread::spawn(move || {
                world.rcu.online(1);
                world.section();
                world.rcu.offline(1);
            })
        };
        world.unlink(0);
        world.rcu.advance();
        reader.join().unwrap();
        world.rcu.barrier(thread::yield_now);
    });
}

#[test]
fn a_reader_that_passes_quiescent_states() {
    model(|| {
        let world = world();
        world.rcu.online(1);
        let reader = {
            let world = world.clone();
            thread::spawn(move || {
                world.section();
                // It never goes offline: what waits for it waits for these.
                while !world.over.load(Relaxed) {
                    world.rcu.quiescent(1);
                    world.section();
                    thread::yield_now();
                }
            })
        };
        world.unlink(0);
        world.rcu.barrier(thread::yield_now);
        world.over.store(true, Relaxed);
        reader.join().unwrap();
    });
}

/// What is asked for on one processor is taken and run by another, which sees it whole.
#[test]
fn a_request_is_run_elsewhere() {
    model(|| {
        let world = world();
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                world.rcu.advance();
                world.rcu.advance();
            })
        };
        world.found.memory.read();
        world.unlink(0);
        other.join().unwrap();
        world.rcu.barrier(thread::yield_now);
    });
}

/// After the barrier, what ran elsewhere is over for its caller, without another word.
#[test]
fn a_barrier_sees_what_ran_elsewhere() {
    model(|| {
        let world = world();
        world.unlink(0);
        let other = {
            let world = world.clone();
            thread::spawn(move || world.rcu.advance())
        };
        world.rcu.barrier(thread::yield_now);
        // SAFETY: it has run.
        world.found.memory.0.with(|there| assert!(unsafe { !*there }));
        other.join().unwrap();
    });
}

/// Requests of one processor, from an interrupt too, and of two: each runs once.
#[test]
fn requests_side_by_side() {
    model(|| {
        let rcu = Arc::new(Qsbr::new([QsbrCpu::new(), QsbrCpu::new()]));
        let objects: Arc<[Found; 3]> =
            Arc::new(std::array::from_fn(|_| Found { head: RcuHead::new(), memory: Memory::new() }));
        let ask = |rcu: &Qsbr<2>, objects: &[Found; 3], cpu, n: usize| {
            // SAFETY: each is asked for once, and lives until it has run.
            unsafe { rcu.defer(cpu, NonNull::from(&objects[n].head), free) };
        };
        let other = {
            let (rcu, objects) = (rcu.clone(), objects.clone());
            thread::spawn(move || {
                ask(&rcu, &objects, 0, 1);
                rcu.advance();
            })
        };
        ask(&rcu, &objects, 0, 0);
        ask(&rcu, &objects, 1, 2);
        rcu.advance();
        other.join().unwrap();
        rcu.barrier(thread::yield_now);
        for object in &*objects {
            // SAFETY: all have run.
            object.memory.0.with(|there| assert!(unsafe { !*there }));
        }
    });
}
