//! The model against the running kernel: random calls must have equal results, maps, counters and contents.
//!
//! Each test compares with `compare::run` in one configuration: a limit of locked memory, no such limit, few
//! free mappings. Together they make more than ten thousand calls. A failure prints the shortest calls that
//! show the difference. In that case the model is wrong, unless Linux may choose between several results
//! (`src/compare.rs`). Without the rights to drive the kernel the tests end early. The example `differential`
//! runs more calls and any pair of subjects. The last test checks that the comparison can fail. A known
//! difference is added to the cases (`cases.rs`); a new configuration of the kernel's processes is a test
//! here with other [`Options`].

use crate::support::{assert_same, linux};
use freehold_model::compare::{self, Plan};
use freehold_model::linux::Options;
use freehold_model::{Model, Subject};

/// Compares model and kernel. Does nothing if the kernel cannot be driven.
fn compare(plan: &Plan, options: Options) {
    let Some(mut linux) = linux(options) else { return };
    let mut model = Model::new(linux.world());
    let report = compare::run(&mut model, &mut linux, plan);
    assert_same("model and kernel", plan, &report, &model);
    model.check();
}

#[test]
fn model_agrees_with_the_kernel() {
    compare(&Plan { seed: 1, calls: 8_000, per_run: 256, between_maps: 16 }, Options::default());
}

#[test]
fn model_agrees_with_the_kernel_without_lock_limit() {
    compare(
        &Plan { seed: 77, calls: 2_000, per_run: 400, between_maps: 16 },
        Options { may_lock: true, ..Options::default() },
    );
}

#[test]
fn model_agrees_with_the_kernel_at_the_limit_of_mappings() {
    compare(
        &Plan { seed: 99, calls: 2_000, per_run: 1000, between_maps: 16 },
        Options { room: Some(9), ..Options::default() },
    );
}

#[test]
fn model_agrees_with_the_kernel_for_a_million_calls() {
    if crate::support::long() {
        let plan = Plan { seed: 1 << 32, calls: 1_000_000, per_run: 512, between_maps: 64 };
        compare(&plan, Options::default());
    }
}

/// Checks that the comparison can fail: it detects a model that returns a wrong errno.
#[test]
fn comparison_finds_and_shrinks_a_difference() {
    let mut right = Model::new(freehold_model::World::bare());
    let mut left = Crooked(right.clone());
    let plan = Plan { seed: 5, calls: 100_000, per_run: 256, between_maps: 16 };
    let found = compare::run(&mut left, &mut right, &plan).difference.expect("a wrong errno");
    assert!(found.ops.len() <= 3, "more than 3 calls: {:?}", found.ops);
}

/// A model that returns one errno wrongly.
struct Crooked(Model);

impl Subject for Crooked {
    fn reset(&mut self) {
        self.0.reset();
    }
    fn world(&self) -> freehold_model::World {
        self.0.world()
    }
    fn apply(&mut self, op: &freehold_model::Op) -> freehold_model::Outcome {
        use freehold_model::{Call, Outcome};
        match (self.0.apply(op), &op.call) {
            (Outcome::Err(12), Call::Mprotect { .. }) => Outcome::Err(14),
            (outcome, _) => outcome,
        }
    }
    fn maps(&mut self, proc: u8) -> Vec<freehold_model::MapLine> {
        self.0.maps(proc)
    }
}
