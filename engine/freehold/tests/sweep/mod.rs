//! Memory runs out in the middle of any call, on any kind of memory (C-10, C-47, C-55, C-64).
//!
//! Operations x states: every call of [`OPS`] is made on memory of each kind of [`STATES`], and every
//! allocation of it fails once, alone and together with all that follow. Afterwards no lock is held, `check`
//! holds, and
//!
//! ```text
//! the call failed     everything is as it was, or as the operation's `Left` says that Linux leaves it too;
//!                     made again, with memory, the call ends as one that never met a failure
//! the call succeeded  it did without: everything is as after a call that met no failure
//! ```
//!
//! and in the end all memory is back. `complete.rs` compares the list of operations with the public methods
//! in the sources, so that a new one cannot be forgotten.

mod complete;
mod ops;
mod own;
mod scene;
mod stage;
mod states;

use crate::support::{
    self,
    failure::{Failure, Point, try_at_every_allocation},
    *,
};
use freehold::{error::Errno, space::Write};
use ops::{Left, Op, each_op};
use scene::{Scene, View};
use stage::Stage;
use states::STATES;

/// How a call without failures ends.
struct Undisturbed {
    before: View,
    result: Result<u64, Errno>,
    after: View,
}

/// The designs take turns: what allocates depends little on munmap and faults. It does on how changes keep
/// apart, so that is the same for all points of a call.
fn design(nth: u64, write: Write) -> Locking {
    let [mmap_lock, .., vma_lock] = Locking::ALL;
    Locking { write, ..if nth % 4 == 2 { mmap_lock } else { vma_lock } }
}

fn undisturbed(op: &Op, stage: &mut Stage, write: Write) -> Undisturbed {
    let mut scene = Scene::new(stage, design(0, write));
    let before = scene.view();
    scene.end();
    // Looking at pages brings them in.
    let mut scene = Scene::new(stage, design(0, write));
    let result = scene.run(op, None);
    let after = scene.view();
    scene.end();
    Undisturbed { before, result, after }
}

/// Makes the call with one failure.
///
/// # Errors
///
/// What is not as it should be.
fn with_failure(
    op: &Op,
    stage: &mut Stage,
    write: Write,
    point: &Point,
    good: &Undisturbed,
) -> Result<(), String> {
    let state = stage.state.name;
    let what = |how: &str, detail: &str| {
        Err(format!("{} ({}) of {state}, {write:?}, {point}: {how}{detail}", op.name, op.call))
    };
    let mut scene = Scene::new(stage, design(point.nth, write));
    let result = scene.run(op, Some(point));
    scene.check();
    if !point.reached() && result != good.result {
        return what("differs without a failure: ", &format!("{result:?}, not {:?}", good.result));
    }
    let view = scene.view();
    let (again, done) = match result {
        _ if result == good.result => (false, view == good.after || op.left.allows(&view, &good.after)),
        Ok(_) if op.partial => (false, true),
        Err(Errno::ENOMEM | Errno::EAGAIN) => {
            (!op.once, view == good.before || op.left.allows(&view, &good.before))
        }
        other => return what("ends with ", &format!("{other:?}, not {:?}", good.result)),
    };
    if !done {
        let expected = if result == good.result { &good.after } else { &good.before };
        return what("leaves something else: ", &view.differences(expected));
    }
    if again {
        let result = scene.run(op, None);
        scene.check();
        if result.is_ok() != good.result.is_ok() {
            return what("made again ends with ", &format!("{result:?}, not {:?}", good.result));
        }
        let view = scene.view();
        if view != good.after && op.left != Left::Anything {
            return what("made again leaves something else: ", &view.differences(&good.after));
        }
    }
    scene.end();
    Ok(())
}

/// Every failure of one operation on one kind of memory; how many there were.
fn every_failure(op: &Op, stage: &mut Stage, write: Write) -> Result<u64, String> {
    let good = undisturbed(op, stage, write);
    try_at_every_allocation(&Failure::ALL, |point| with_failure(op, stage, write, point, &good))
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
        let mut stage = Stage::new(state);
        // In a quick run, too, each operation meets both.
        let write = if (number / STEP).is_multiple_of(2) { Write::RangesOnly } else { Write::Whole };
        for (nth, (op, met)) in ops.iter_mut().enumerate() {
            if some && (nth + number) % STEP != 0 {
                continue;
            }
            stage.doing = op.name;
            match every_failure(op, &mut stage, write) {
                Ok(failures) => *met += failures,
                Err(error) => {
                    wrong.push(error);
                    // What is left of it is in nobody's way.
                    core::mem::replace(&mut stage, Stage::new(state)).abandon();
                }
            }
        }
        stage.end();
    }
    for (op, met) in ops.iter().filter(|_| only_state.is_none()) {
        // What fails in few states may not have met one of them in a quick run.
        if (*met > 0) == op.needs_nothing && (*met > 0 || !some) {
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
