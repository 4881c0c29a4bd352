//! Arbitrary calls have the same results in the engine and in the model. If the results differ, proptest
//! shrinks the calls.
//!
//! Proptest draws bytes, and `freehold_model::script` decodes them as calls, as in the fuzz target `engine`.
//! In contrast to `engine.rs`, the calls are not aimed at existing mappings, so they find other errors. Three
//! worlds are tested, each on one design; a new world is a test that calls `any_calls_agree`. The last test
//! checks that bytes decode to all kinds of calls. `FREEHOLD_EFFORT=long` runs a hundred times as many cases.

use freehold::space::Locking;
use freehold_model::compare::{self, Report};
use freehold_model::{Engine, Model, script, text};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use std::cell::RefCell;

fn config() -> Config {
    let cases = freehold_machine::Effort::of(100, 500, 50_000);
    Config { cases, failure_persistence: None, ..Config::default() }
}

/// Compares model and engine with arbitrary calls. Panics with the shortest calls that show a difference.
fn any_calls_agree(world: &freehold_model::World, locking: Locking) {
    let subjects = RefCell::new((Model::new(world.clone()), Engine::new(world.clone(), locking)));
    let calls = prop::collection::vec(any::<[u8; script::CODE]>(), 1..120);
    let result = TestRunner::new(config()).run(&calls, |codes| {
        let (model, engine) = &mut *subjects.borrow_mut();
        let ops = script::ops(world, codes.as_flattened());
        match compare::run_ops(model, engine, &ops, 8, &mut Report::default()) {
            None => Ok(()),
            Some(what) => Err(TestCaseError::fail(what)),
        }
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(what, codes)) => {
            let ops = script::ops(world, codes.as_flattened());
            let ops: String = ops.iter().map(|op| text::op(world, op) + "\n").collect();
            panic!("model (left) and engine {locking:?} (right) differ:\n{ops}=> {what}");
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn any_calls_agree_in_the_default_design() {
    any_calls_agree(&Engine::world_for(false), Locking::default());
}

#[test]
fn any_calls_agree_in_the_oldest_design_without_lock_limit() {
    any_calls_agree(&Engine::world_for(true), Locking::ALL[0]);
}

#[test]
fn any_calls_agree_with_little_room() {
    any_calls_agree(&Engine::world_with_room(6), Locking::ALL[5]);
}

/// Bytes that always decode to the same call, or to no call, would test little.
#[test]
fn bytes_decode_to_all_kinds_of_calls() {
    let world = Engine::world_for(false);
    let mut kinds = std::collections::BTreeMap::<&str, u32>::new();
    for n in 0..20_000u64 {
        let code = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        for op in script::ops(&world, &code.to_le_bytes()) {
            *kinds.entry(text::name(&op.call)).or_default() += 1;
        }
    }
    assert!(kinds.len() >= 20, "only {kinds:?}");
    assert!(kinds.values().all(|count| *count >= 10), "fewer than 10 calls of a kind: {kinds:?}");
}
