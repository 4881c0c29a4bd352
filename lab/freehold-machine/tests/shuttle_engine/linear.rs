//! Linearizability: the results and the final state of concurrent calls are those of some sequential order in
//! the naive model.
//!
//! Each schedule draws a plan at random: calls that set up the memory, and a few calls for each of two or
//! three threads. `live` makes the calls on the engine, and `freehold_model::history::explain` searches for
//! an order that explains results and state; it also defines which orders agree with the times of the calls.
//! If there is no such order, the test fails and prints the calls. The calls that a plan may contain are
//! drawn in `freehold_model::history`, so a new kind of call is added there.

use crate::{
    explore::{CHECKED, explore_in, seed, thread},
    ranges::DESIGNS,
};
use freehold::space::Locking;
use freehold_machine::{Effort, MachineConfig};
use freehold_model::{
    Call, Engine, Model, Outcome, Subject, World,
    draw::Draw,
    history::{self, Plan, Scene, Step},
};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The random number generator SplitMix64.
struct Words(u64);

impl Draw for Words {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// Makes the calls of a plan on the engine, each thread on a CPU of its own. Panics if no sequential order of
/// the calls in the model has the same results and the same final state.
fn live(plan: &Plan, locking: Locking) {
    let mut engine = Engine::on(plan.world.clone(), locking, MachineConfig::backed(2 << 20).tables(1 << 20));
    let mut model = Model::new(plan.world.clone());
    for op in &plan.before {
        assert_eq!(engine.apply(op), model.apply(op));
    }
    let clock = AtomicU64::new(0);
    let mut cpus = engine.take_cpus();
    let steps = thread::scope(|scope| {
        let threads = plan.threads.iter().zip(&mut cpus).enumerate().map(|(thread, (ops, cpu))| {
            let (engine, clock) = (&engine, &clock);
            scope.spawn(move || {
                let (mut steps, mut mine) = (Vec::new(), None);
                for op in ops {
                    let Some(op) = history::concrete(op, mine) else { continue };
                    linger(thread as u64 + clock.load(SeqCst));
                    let began = clock.fetch_add(1, SeqCst);
                    let outcome = engine.apply_on(cpu, &op);
                    let time = (began, clock.fetch_add(1, SeqCst));
                    if let (Call::Mmap { .. }, Outcome::Ok(at)) = (&op.call, &outcome) {
                        mine = Some(*at);
                    }
                    steps.push(Step { op, outcome, time, thread });
                }
                steps
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    engine.put_cpus(cpus);
    engine.check();
    let scene = Scene::of(&mut engine);
    if let Err(what) = history::explain(plan, &model, &steps, &scene) {
        panic!("{locking:?}: {what}");
    }
    engine.check();
}

/// Delays a thread for a short time that depends on `number`, so that calls overlap in different ways. Does
/// nothing if a checker chooses the schedule.
fn linger(number: u64) {
    if !CHECKED {
        for _ in 0..Words(number).below(300) {
            std::hint::spin_loop();
        }
    }
}

/// Returns the world with a stack gap of one page, because the memory of a plan has few pages.
fn with_small_gaps(world: World) -> World {
    World { stack_gap: 1, ..world }
}

/// Explores plans of `threads` threads with at most `most` calls each. `world` draws the limits of the
/// address space.
fn explore_histories(name: &str, share: usize, threads: u64, most: u64, world: fn(&mut Words) -> World) {
    // Under the checker, each schedule draws a plan of its own.
    let rounds = if CHECKED { 1 } else { Effort::of(50, 300, 30_000) };
    explore_in(&DESIGNS, name, share, move |locking| {
        for _ in 0..rounds {
            let mut words = Words(seed());
            let world = with_small_gaps(world(&mut words));
            let plan = history::draw(&mut words, &world, threads, most);
            live(&plan, locking);
        }
    });
}

#[test]
fn calls_of_two_threads_are_linearizable() {
    explore_histories("two threads, linear", 200, 2, 3, |_| Engine::world_for(false));
}

#[test]
fn calls_of_three_threads_are_linearizable() {
    explore_histories("three threads, linear", 150, 3, 2, |_| Engine::world_for(false));
}

#[test]
fn calls_at_the_vma_limit_are_linearizable() {
    explore_histories("at the limit of mappings, linear", 100, 2, 3, |words| {
        Engine::world_with_room(2 + words.below(10))
    });
}
