//! Tests of the search for an order of concurrent calls (`freehold_model::history`): the search accepts a
//! history that Linux allows, and rejects a history that no order explains.
//!
//! The histories are written by hand, because a real schedule shows them once in many thousands of runs.

use freehold_model::history::{Plan, Scene, Step, explain};
use freehold_model::{Call, Engine, Model, Op, Outcome, PAGE, Subject};

const READ_WRITE: u64 = 3;
const ANON_FIXED: u64 = 0x32;
const MAYMOVE_FIXED: u64 = 3;

fn op(call: Call) -> Op {
    Op { proc: 0, call }
}

/// Tests a history of three threads, on a VMA of two pages that were never written. One thread stores 5 in
/// the first page. During this call, a second thread moves the second page next to another VMA, and a third
/// thread then stores 6 in the first page.
///
/// `value` is the content of the first page at the end. `merged` is true if the moved page and the other VMA
/// are one VMA at the end. They merge only if the move comes before the first fault, because a VMA with an
/// anon_vma keeps its page offset. Returns true if an order explains the history.
fn is_explained(value: u8, merged: bool) -> bool {
    let world = Engine::world_for(false);
    let page = world.heap + 16 * PAGE;
    let other = page + 16 * PAGE;
    let map = |addr, pages| {
        let (len, prot, flags) = (pages * PAGE, READ_WRITE, ANON_FIXED);
        op(Call::Mmap { addr, len, prot, flags, file: None, off: 0 })
    };
    let store = |value| op(Call::Write { addr: page, value });
    let before = vec![map(page, 2), map(other, 1)];
    let (old, new_addr) = (page + PAGE, other + PAGE);
    let remap = op(Call::Mremap { old, old_len: PAGE, new_len: PAGE, flags: MAYMOVE_FIXED, new_addr });

    let mut model = Model::new(world.clone());
    let mut end = Model::new(world.clone());
    for op in &before {
        assert_eq!(model.apply(op), end.apply(op));
    }
    let calls = match merged {
        true => [remap.clone(), store(value)],
        false => [store(value), remap.clone()],
    };
    calls.iter().for_each(|op| assert!(matches!(end.apply(op), Outcome::Ok(_))));
    assert_eq!(end.maps(0).len(), if merged { 2 } else { 3 });

    let step = |thread, time, op, outcome| Step { op, outcome: Outcome::Ok(outcome), time, thread };
    let steps =
        [step(0, (0, 5), store(5), 0), step(1, (1, 2), remap, new_addr), step(2, (3, 4), store(6), 0)];
    let plan = Plan { world, before, threads: Vec::new() };
    explain(&plan, &model, &steps, &Scene::of(&mut end)).is_ok()
}

#[test]
fn a_fault_and_its_store_may_have_calls_between_them() {
    assert!(is_explained(5, true), "move, store 6, store 5");
    assert!(is_explained(6, true), "move, store 5, store 6");
    assert!(is_explained(6, false), "store 5, move, store 6");
    assert!(is_explained(5, false), "fault of the first store, move, store 6, store 5");
    assert!(!is_explained(0, false), "no store was lost");
}
