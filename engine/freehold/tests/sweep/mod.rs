//! Memory runs out in the middle of any call, on any kind of memory (C-10, C-47, C-55, C-64).
//!
//! Operations x states: every call of [`each_op`] is made on memory of each kind of [`STATES`], as
//! `support/oom.rs` says. `complete.rs` compares the list of operations with the public methods in the sources,
//! so that a new one cannot be forgotten.

mod complete;
mod ops;
mod own;
mod scene;
mod stage;
mod states;

use crate::support::{
    self,
    oom::{Call, EITHER, Left, Needs, every_failure, told},
    *,
};
use freehold::{error::Errno, space::Write};
use ops::{Op, each_op};
use stage::Stage;
use states::STATES;

/// The designs take turns: what allocates depends little on munmap and faults. It does on how changes keep
/// apart, so that is the same for all points of a call.
fn design(nth: u64, write: Write) -> Locking {
    let [mmap_lock, .., vma_lock] = Locking::ALL;
    Locking { write, ..if nth % 4 == 2 { mmap_lock } else { vma_lock } }
}

/// A share of the operations, on all states.
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
        // In a quick run, too, each operation meets both.
        let write = if (number / STEP).is_multiple_of(2) { Write::RangesOnly } else { Write::Whole };
        for (nth, (op, met)) in ops.iter_mut().enumerate() {
            if some && (nth + number) % STEP != 0 {
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
        // What fails in few states may not have met one of them in a quick run.
        if (*met > 0) == (op.needs == Needs::Nothing) && (*met > 0 || !some) {
            wrong.push(format!("{}: {met} allocations failed", op.name));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// In a quick run an operation is made on every so many-th state, each on others.
const STEP: usize = 4;
/// They run side by side.
const SHARES: usize = 4;

#[test]
fn every_failure_of_every_call_in_every_state_0() {
    sweep(0);
}

#[test]
fn every_failure_of_every_call_in_every_state_1() {
    sweep(1);
}

#[test]
fn every_failure_of_every_call_in_every_state_2() {
    sweep(2);
}

#[test]
fn every_failure_of_every_call_in_every_state_3() {
    sweep(3);
}
