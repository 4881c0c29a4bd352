//! Tests of read sections, and of requests that wait for them.
//!
//! A flag says whether readers can find an object. A test clears the flag and defers a function that frees
//! the object. The function must not run while a section that found the object is open, and must run once.
//! The flag is accessed relaxed, so that only the grace period orders the last use before the free: loom
//! reports a race if an acquire, a release or a fence of `qsbr.rs` is missing. A new test takes a [`world`],
//! whose two CPUs are offline at first. It ends with `barrier`, so that the deferred function runs in every
//! schedule.

use super::Memory;
use freehold_kit::{Qsbr, QsbrCpu};
use freehold_sync::RcuHead;
use freehold_sync::atomic::{AtomicBool, Ordering::Relaxed};
use freehold_sync::testing::model;
use loom::sync::Arc;
use loom::thread;
use std::ptr::NonNull;

/// An object that readers find while a flag is set. It is freed after the flag is cleared and a grace period
/// is over.
#[repr(C)]
struct Found {
    head: RcuHead,
    memory: Memory,
}

/// The grace periods of two CPUs, and an object that readers find while `linked` is set.
struct World {
    rcu: Qsbr<2>,
    linked: AtomicBool,
    /// Set when the reader may end.
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
        // SAFETY: each head is deferred once, and the world lives until the function has run.
        unsafe { self.rcu.defer(cpu, NonNull::from(&self.found.head), free) };
    }
}

/// Relaxed accesses order nothing, so only the grace period orders the reader and the free.
#[test]
fn grace_period_waits_for_an_online_reader() {
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
fn grace_period_waits_for_quiescent_states() {
    model(|| {
        let world = world();
        world.rcu.online(1);
        let reader = {
            let world = world.clone();
            thread::spawn(move || {
                world.section();
                // The CPU never goes offline, so the grace period waits for these quiescent states.
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

/// A request made on one CPU is taken and run by another CPU, which sees the whole request.
#[test]
fn request_runs_on_another_cpu() {
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

/// After the barrier, its caller sees the effects of functions that ran on another CPU, without further
/// synchronization.
#[test]
fn barrier_sees_functions_that_ran_on_another_cpu() {
    model(|| {
        let world = world();
        world.unlink(0);
        let other = {
            let world = world.clone();
            thread::spawn(move || world.rcu.advance())
        };
        world.rcu.barrier(thread::yield_now);
        // SAFETY: the function has run, so no thread writes.
        world.found.memory.0.with(|there| assert!(unsafe { !*there }));
        other.join().unwrap();
    });
}

/// Each of three requests runs once. Two are made on one CPU concurrently, as by an interrupt, and the third
/// is made on another CPU.
#[test]
fn concurrent_requests_run_once_each() {
    model(|| {
        let rcu = Arc::new(Qsbr::new([QsbrCpu::new(), QsbrCpu::new()]));
        let objects: Arc<[Found; 3]> =
            Arc::new(std::array::from_fn(|_| Found { head: RcuHead::new(), memory: Memory::new() }));
        let ask = |rcu: &Qsbr<2>, objects: &[Found; 3], cpu, n: usize| {
            // SAFETY: each head is deferred once, and lives until the function has run.
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
            // SAFETY: all functions have run, so no thread writes.
            object.memory.0.with(|there| assert!(unsafe { !*there }));
        }
    });
}
