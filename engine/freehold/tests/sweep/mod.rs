//! Memory runs out in the middle of every call, on every kind of memory (C-10, C-47, C-55, C-64).
//!
//! The tests run every operation of [`each_op`] on memory of every kind of [`STATES`], with the harness of
//! `support/oom.rs`. `complete.rs` compares the list of operations with the public methods in the sources, so
//! that no new method is left out.
//!
//! A *state* is a kind of memory that fills a range of eight units; a unit is a page, a quarter of a huge
//! page or a huge page (`states.rs`). An *operation* is a call with fixed arguments on that range (`ops/`). A
//! failure names the operation and the state; `SWEEP_OP=NAME SWEEP_STATE=NAME` repeats only this combination.
//!
//! A new public call needs an entry in a file of `ops/`, and a new kind of memory needs a row in `states.rs`.
//! `scene.rs` and `stage.rs` have the objects that operations use. `own.rs` has a call without an address
//! space. `retried.rs` has the operations that are tried again after the platform has made memory free.

mod complete;
mod heard;
mod ops;
mod own;
mod retried;
mod scene;
mod stage;
mod states;

use crate::support::{
    self,
    oom::{Call, EITHER, Left, Needs, errno, every_failure},
    *,
};
use freehold::{error::Errno, space::Write};
use ops::{Op, each_op};
use stage::Stage;
use states::STATES;

/// Chooses the design for a failure. Allocations depend little on the designs of munmap and faults, so the
/// designs alternate. Allocations do depend on `write`, which is therefore equal for all failures of a call.
fn design(nth: u64, write: Write) -> Locking {
    let [mmap_lock, .., vma_lock] = Locking::ALL;
    (if nth % 4 == 2 { mmap_lock } else { vma_lock }).write(write)
}

/// Returns the design for a state. `number / STEP` alternates, so that each operation runs with both values also
/// in a quick run.
fn write_of(number: usize) -> Write {
    if (number / STEP).is_multiple_of(2) { Write::RangesOnly } else { Write::Whole }
}

/// Returns true if a quick run makes the operation `nth` in the state `number`.
fn is_in_quick_run(nth: usize, number: usize) -> bool {
    (nth + number).is_multiple_of(STEP)
}

/// Runs a quarter of the operations on all states.
fn sweep(share: usize) {
    let only = |name: &str| std::env::var(name).ok();
    let (only_op, only_state) = (only("SWEEP_OP"), only("SWEEP_STATE"));
    let some = only_op.is_none() && only_state.is_none() && Effort::asked() == Effort::Quick;
    let mut ops: Vec<(&Op, u64)> =
        each_op().enumerate().filter(|(n, _)| n % SHARES == share).map(|(_, op)| (op, 0)).collect();
    ops.retain(|(op, _)| only_op.as_ref().is_none_or(|only| only == op.name));
    let mut wrong = Vec::new();
    for (number, state) in STATES.iter().enumerate() {
        if only_state.as_ref().is_some_and(|only| only != state.name) {
            continue;
        }
        let mut stage = Some(Stage::new(state));
        let write = write_of(number);
        for (nth, (op, met)) in ops.iter_mut().enumerate() {
            if some && !is_in_quick_run(nth, number) {
                continue;
            }
            match every_failure(op, &mut stage, |nth| design(nth, write)) {
                Ok(failures) => *met += failures,
                Err(how) => {
                    wrong.push(format!("{} of {}: {how}", op.call, state.name));
                    stage = Some(Stage::new(state));
                }
            }
        }
        stage.expect("a stage").end();
    }
    for (op, met) in ops.iter().filter(|_| only_state.is_none()) {
        // A quick run omits most states of each operation. A quick run may omit all states in which the
        // operation allocates.
        if (*met > 0) == (op.needs == Needs::Nothing) && (*met > 0 || !some) {
            wrong.push(format!("{}: {met} allocations failed", op.name));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// A quick run makes each operation only on every fourth state. The first state differs between operations.
const STEP: usize = 4;
/// Number of tests that run in parallel.
const SHARES: usize = 4;

#[test]
fn c10_failed_allocation_in_any_call_and_state_quarter_0() {
    sweep(0);
}

#[test]
fn c10_failed_allocation_in_any_call_and_state_quarter_1() {
    sweep(1);
}

#[test]
fn c10_failed_allocation_in_any_call_and_state_quarter_2() {
    sweep(2);
}

#[test]
fn c10_failed_allocation_in_any_call_and_state_quarter_3() {
    sweep(3);
}
