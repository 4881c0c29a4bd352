//! Checks that any sequence of calls has the same results on the engine, in any design, and in the model.
//!
//! The input selects a design and a world; `freehold_model::script` decodes the rest as calls, and
//! `freehold_model::compare` runs them and shrinks a difference. The test `properties` of `freehold-model`
//! does the same with random bytes. `cargo xtask fuzz` runs each target for one minute.
//!
//! Run with cargo-fuzz: `cargo +nightly fuzz run engine`. On stable, without a sanitizer: build with
//! `--target` and `RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
//! -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
//! -Cdebug-assertions=on"`, and run the program on a folder of inputs.
//!
//! A finding is printed as calls. Add these as a case to `lab/freehold-model/cases`. A new target is a file
//! in this folder and an entry in `lab/fuzz/Cargo.toml`.
#![no_main]

use arbitrary::Arbitrary;
use freehold::space::Locking;
use freehold_model::compare::{self, Report};
use freehold_model::{Engine, Model, World, script, text};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

/// The decoded input.
#[derive(Arbitrary, Debug)]
struct Input {
    /// Index of a design in `Locking::ALL`.
    design: u8,
    /// Selects the world: true if its processes may lock memory without limit (`CAP_IPC_LOCK`).
    may_lock: bool,
    /// True if the world has room for only a few more mappings; `may_lock` is then unused.
    crowded: bool,
    /// The calls, encoded for `script::ops`.
    codes: Vec<[u8; script::CODE]>,
}

impl Input {
    fn locking(&self) -> Locking {
        Locking::ALL[usize::from(self.design) % Locking::ALL.len()]
    }

    fn world(&self) -> World {
        if self.crowded { Engine::world_with_room(6) } else { Engine::world_for(self.may_lock) }
    }
}

thread_local! {
    /// The subjects of each design and world. The subjects are kept from one input to the next, because
    /// building a machine takes longer than a run.
    static STAGES: RefCell<Vec<(Model, Engine)>> = const { RefCell::new(Vec::new()) };
}

fuzz_target!(|input: Input| {
    STAGES.with_borrow_mut(|stages| {
        let (world, locking) = (input.world(), input.locking());
        let found = stages.iter().position(|(model, engine)| {
            engine.locking() == locking && freehold_model::Subject::world(model) == world
        });
        let at = found.unwrap_or_else(|| {
            stages.push((Model::new(world.clone()), Engine::new(world.clone(), locking)));
            stages.len() - 1
        });
        let (model, engine) = &mut stages[at];
        let ops = script::ops(&world, input.codes.as_flattened());
        if let Some(what) = compare::run_ops(model, engine, &ops, 16, &mut Report::default()) {
            let (ops, what) = compare::shrink(model, engine, ops, what);
            let calls: String = ops.iter().map(|op| text::op(&world, op) + "\n").collect();
            panic!("model (left) and engine with {locking:?} (right) differ:\n{calls}=> {what}");
        }
    });
});
