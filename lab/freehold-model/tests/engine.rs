//! The engine, in every design, against the model and against the running kernel: random calls must have
//! equal results, maps, counters and contents.
//!
//! The engine runs on a machine with oracles, which also detect missing flushes. The comparisons with the
//! model use several worlds: with and without a limit of locked memory, close to the maximum number of
//! mappings, with other layouts, and with page tables of five levels. The comparisons with the kernel leave
//! out calls that meet a quirk of Linux (`Quirks::Avoided`). With `FREEHOLD_EFFORT=long` each comparison runs
//! a million calls. The last test checks that one wrong byte is found. A new world is a test that calls
//! `against_the_model`.

use crate::support::{assert_same, calls, linux, lockings};
use freehold::space::Locking;
use freehold_model::compare::{self, Plan};
use freehold_model::linux::Options;
use freehold_model::world::{LEGACY_BASE, Quirks};
use freehold_model::{Call, Engine, EngineOn, MapLine, Model, Op, Outcome, Subject, World};
use freehold_pagetable::{Format, X86_4, X86_5};

/// Runs random calls on the model and on an engine.
fn against_the_model<F: Format>(world: World, locking: Locking, plan: &Plan) {
    let mut model = Model::new(world.clone());
    let mut engine = EngineOn::<F>::new(world, locking);
    let report = compare::run(&mut model, &mut engine, plan);
    assert_same(&format!("model and engine {locking:?}"), plan, &report, &model);
}

#[test]
fn every_design_agrees_with_the_model() {
    for (n, locking) in lockings().into_iter().enumerate() {
        let plan = Plan { seed: (n as u64) << 32, calls: calls(10_000), per_run: 256, between_maps: 16 };
        against_the_model::<X86_4>(Engine::world_for(false), locking, &plan);
    }
}

#[test]
fn every_design_agrees_with_the_model_without_lock_limit() {
    for (n, locking) in lockings().into_iter().enumerate() {
        let plan =
            Plan { seed: 77 + ((n as u64) << 32), calls: calls(2_000), per_run: 400, between_maps: 16 };
        against_the_model::<X86_4>(Engine::world_for(true), locking, &plan);
    }
}

#[test]
fn every_design_agrees_with_the_model_at_the_limit_of_mappings() {
    for (n, locking) in lockings().into_iter().enumerate() {
        let plan =
            Plan { seed: 99 + ((n as u64) << 32), calls: calls(2_000), per_run: 1000, between_maps: 16 };
        against_the_model::<X86_4>(Engine::world_with_room(9), locking, &plan);
    }
}

/// Runs with the middle of the arena at each border of the ranges in which mappings are placed, with searches
/// upwards and downwards.
#[test]
fn every_layout_agrees_with_the_model() {
    let borders = [1 << 30, 2 << 30, 4 << 30, LEGACY_BASE];
    for (n, locking) in lockings().into_iter().enumerate() {
        let world = Engine::world_for(false).with_layout(n % 2 == 0).around(borders[n / 2 % 4]);
        let plan = Plan { seed: 3 + ((n as u64) << 32), calls: calls(8_000), per_run: 256, between_maps: 16 };
        against_the_model::<X86_4>(world, locking, &plan);
    }
}

/// Runs with page tables of five levels. The middle of the arena is at the end of the addresses that four
/// levels can map.
#[test]
fn every_design_agrees_with_the_model_on_five_levels() {
    for (n, locking) in lockings().into_iter().enumerate() {
        let world = EngineOn::<X86_5>::world_for(false).with_layout(n % 4 == 0).around(1 << 47);
        let plan = Plan { seed: 7 + ((n as u64) << 32), calls: calls(8_000), per_run: 256, between_maps: 16 };
        against_the_model::<X86_5>(world, locking, &plan);
    }
}

/// Runs `calls` calls in total on the kernel and on engines of all designs.
fn against_the_kernel(options: Options, seed: u64, calls: u64, per_run: usize) {
    let Some(mut linux) = linux(options) else { return };
    linux.treat_quirks(Quirks::Avoided);
    let designs = lockings();
    let calls = calls.div_ceil(designs.len() as u64);
    for (n, locking) in designs.into_iter().enumerate() {
        let plan = Plan { seed: seed + ((n as u64) << 32), calls, per_run, between_maps: 16 };
        let mut engine = Engine::new(linux.world(), locking).with_file_pages_resident();
        let report = compare::run(&mut engine, &mut linux, &plan);
        assert_same(&format!("engine {locking:?} and kernel"), &plan, &report, &engine);
    }
}

#[test]
fn the_engine_agrees_with_the_kernel() {
    against_the_kernel(Options::default(), 1 << 40, calls(10_000), 256);
}

#[test]
fn the_engine_agrees_with_the_kernel_without_lock_limit() {
    against_the_kernel(Options { may_lock: true, ..Options::default() }, 1 << 41, calls(4_000), 256);
}

#[test]
fn the_engine_agrees_with_the_kernel_at_the_limit_of_mappings() {
    against_the_kernel(Options { room: Some(9), ..Options::default() }, 1 << 42, calls(9_000), 1000);
}

/// Checks that the comparison detects the smallest difference that only the engine can have: one wrong byte.
#[test]
fn comparison_finds_a_wrong_byte() {
    let world = Engine::world_for(false);
    let mut model = Model::new(world.clone());
    let mut engine = Forgetful(Engine::new(world, Locking::default()));
    let plan = Plan { seed: 5, calls: 100_000, per_run: 256, between_maps: 16 };
    let found = compare::run(&mut model, &mut engine, &plan).difference.expect("a store is lost");
    assert!(found.ops.len() <= 3, "more than 3 calls: {:?}", found.ops);
}

/// An engine that loses every store of the value 7.
struct Forgetful(Engine);

impl Subject for Forgetful {
    fn reset(&mut self) {
        self.0.reset();
    }
    fn world(&self) -> World {
        self.0.world()
    }
    fn apply(&mut self, op: &Op) -> Outcome {
        match op.call {
            Call::Write { addr, value: 7 } => {
                let call = Call::Read { addr, len: 1 };
                match self.0.apply(&Op { call, ..*op }) {
                    Outcome::Bytes(_) => Outcome::Ok(0),
                    other => other,
                }
            }
            _ => self.0.apply(op),
        }
    }
    fn maps(&mut self, proc: u8) -> Vec<MapLine> {
        self.0.maps(proc)
    }
}
