//! Harness of tests in which memory runs out in the middle of a call. Every allocation of the call fails
//! once, alone and together with all later allocations. Afterwards no lock is held, the invariants hold, and
//! the state is as follows:
//!
//! ```text
//! the call failed     the state is unchanged, or changed only as `Left` allows, as on Linux;
//!                     a second call, with memory, ends like a call without failures
//! the call succeeded  it did without the memory: the state is that after a call without failures
//! ```
//!
//! At the end of the scene, all its memory is free. The state is a [`View`], which `view.rs` takes.
//!
//! Users are `every_call/oom.rs`, `huge/oom.rs` and `sweep/`. Each of these modules has a list of [`Call`]s
//! and a type that implements [`Scene`]. A new call is one entry of such a list. [`every_failure_of_each`]
//! tests a whole list, and [`every_failure`] tests one call. The methods of [`Call`], from `errnos` to
//! `looks`, state each exception from the rule above; a call without exceptions needs none of them.

use super::{
    failure::{Failure, Point, try_at_every_allocation},
    view::View,
    *,
};
use freehold::{error::Errno, space::Write};

/// Changes that a failed call may leave behind. As on Linux, a call that works from left to right does not
/// undo its earlier steps when memory runs out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// No change, except that VMAs may stay split.
    Nothing,
    /// VMAs below the address of the failure have changed. No page has changed.
    Layout,
    /// Pages have changed or were discarded. No VMA has changed.
    Pages,
    /// VMAs and pages may have changed.
    Anything,
    /// Pages are lost to all spaces that share them. No VMA has changed.
    Losses,
}

impl Left {
    /// Returns true if a call may leave `found` in place of `expected`.
    pub fn allows(self, found: &View, expected: &View) -> bool {
        match self {
            Left::Nothing => false,
            Left::Layout => found.contents == expected.contents && found.child == expected.child,
            Left::Pages => found.maps == expected.maps && found.child == expected.child,
            Left::Anything => found.child == expected.child,
            Left::Losses => found.maps == expected.maps,
        }
    }
}

/// A call's need for memory if the engine's caches are empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// The call allocates, and fails if an allocation fails.
    Memory,
    /// The call allocates, and succeeds even if an allocation fails.
    Asks,
    /// The call does not allocate.
    Nothing,
}

/// A call that is made on a scene.
pub struct Call<S> {
    /// Name of the public call, as the completeness test of the sweep finds it.
    pub call: &'static str,
    /// Name of the call in failure messages.
    pub name: &'static str,
    /// Makes the call. The result must be equal with and without failures, so a value that may differ is
    /// replaced by 0.
    pub run: fn(&mut S) -> Result<u64, Errno>,
    /// Errors that the call may return without memory.
    pub errnos: &'static [Errno],
    /// Changes that the call may leave after a failure.
    pub left: Left,
    /// Changes that the call may leave if it succeeds although some allocations fail.
    pub left_by_success: Left,
    /// True if a failed call may complete a part of its work and report that part.
    pub partial: bool,
    /// True if a failed call may complete a part of its work, so that the result of a second call differs.
    pub once: bool,
    /// True if a child shares the pages.
    pub forked: bool,
    pub needs: Needs,
    /// Checks further conditions after a failure.
    pub look: fn(&mut S) -> Result<(), String>,
}

pub const NO_MEMORY: &[Errno] = &[Errno::ENOMEM];
pub const TRY_AGAIN: &[Errno] = &[Errno::EAGAIN];
pub const EITHER: &[Errno] = &[Errno::ENOMEM, Errno::EAGAIN];

impl<S> Call<S> {
    /// Returns a call that needs memory. Without memory, the call fails with one of `errnos` and changes
    /// nothing.
    pub const fn new(
        call: &'static str,
        name: &'static str,
        run: fn(&mut S) -> Result<u64, Errno>,
        errnos: &'static [Errno],
    ) -> Self {
        let (left, left_by_success) = (Left::Nothing, Left::Nothing);
        let (partial, once, forked, needs) = (false, false, false, Needs::Memory);
        let look = |_: &mut S| Ok(());
        Call { call, name, run, errnos, left, left_by_success, partial, once, forked, needs, look }
    }

    /// Replaces the errors that the call may return without memory.
    pub const fn errnos(self, errnos: &'static [Errno]) -> Self {
        Call { errnos, ..self }
    }

    /// Allows a failed call to leave the changes `left`.
    pub const fn changes(self, left: Left) -> Self {
        Call { left, ..self }
    }

    /// Allows a failed call, and a call that succeeds without some memory, to leave the changes `left`.
    pub const fn leaves(self, left: Left) -> Self {
        Call { left, left_by_success: left, ..self }
    }

    /// Allows a failed call to complete a part of its work, to change pages, and to report that part. Such a
    /// call is not repeated.
    pub const fn partial(self) -> Self {
        Call { partial: true, ..self.once().leaves(Left::Pages) }
    }

    /// Prevents a second call after a failure, because its result would differ.
    pub const fn once(self) -> Self {
        Call { once: true, ..self }
    }

    /// Makes the call while a child shares the pages of the scene.
    pub const fn forked(self) -> Self {
        Call { forked: true, ..self }
    }

    /// States that the call allocates and succeeds even without the memory.
    pub const fn asks(self) -> Self {
        Call { needs: Needs::Asks, ..self }
    }

    /// States that the call does not allocate.
    pub const fn needs_nothing(self) -> Self {
        Call { needs: Needs::Nothing, ..self }
    }

    /// Adds a check that runs after a failed call.
    pub const fn looks(self, look: fn(&mut S) -> Result<(), String>) -> Self {
        Call { look, ..self }
    }
}

/// Converts the result of a call: the value becomes 0, and the error becomes its errno number.
#[allow(unused_macros, reason = "each test program uses its part")]
macro_rules! errno {
    ($result:expr) => {
        $result.map(|_| 0).map_err(|error| error.errno())
    };
}
pub(crate) use errno;

/// A process and its surroundings, for one call.
pub trait Scene: Sized {
    /// The part that outlives a scene and is used for the next scene.
    type Stage;

    /// Builds the mappings on which `call` is made, in a process with this design.
    fn new(stage: Self::Stage, call: &Call<Self>, locking: Locking) -> Self;

    /// Makes the call, with a failure at `point`.
    fn run(&mut self, call: &Call<Self>, point: Option<&Point>) -> Result<u64, Errno> {
        match point {
            Some(point) => point.fail(|| (call.run)(self)),
            None => (call.run)(self),
        }
    }

    /// Fails if a lock is held or an invariant is violated.
    fn check(&self);

    /// Returns the memory of the process and its child. Reading the memory populates pages.
    fn view(&mut self) -> View;

    /// Ends the scene. All its memory must be free.
    fn end(self) -> Self::Stage;
}

/// Checks a process and its child. No call may be in progress.
pub fn check(process: &Process, child: Option<&Process>) {
    assert!(process.try_read().is_some(), "a lock is still held");
    process.check();
    child.iter().for_each(|child| child.check());
}

/// Result and effect of a call without failures.
pub struct Undisturbed {
    pub before: View,
    pub result: Result<u64, Errno>,
    pub after: View,
}

/// Makes the call without failures.
pub fn undisturbed<S: Scene>(call: &Call<S>, stage: S::Stage, locking: Locking) -> (Undisturbed, S::Stage) {
    let mut scene = S::new(stage, call, locking);
    let before = scene.view();
    // Reading pages populates them, so the view before the call needs a scene of its own.
    let mut scene = S::new(scene.end(), call, locking);
    let result = scene.run(call, None);
    let after = scene.view();
    (Undisturbed { before, result, after }, scene.end())
}

/// Makes the call with one failure.
///
/// # Errors
///
/// Returns a description of the first mistake.
fn with_failure<S: Scene>(
    call: &Call<S>,
    scene: &mut S,
    point: &Point,
    good: &Undisturbed,
) -> Result<(), String> {
    let result = scene.run(call, Some(point));
    scene.check();
    if !point.reached() && result != good.result {
        return Err(format!("differs without a failure: {result:?}, not {:?}", good.result));
    }
    let view = scene.view();
    let expected = if result == good.result { &good.after } else { &good.before };
    let (again, left) = match result {
        _ if result == good.result => (false, call.left_by_success),
        Ok(_) if call.partial => return Ok(()),
        Err(errno) if call.errnos.contains(&errno) && call.needs == Needs::Memory => (!call.once, call.left),
        other => return Err(format!("ends with {other:?}, not {:?}", good.result)),
    };
    if view != *expected && !left.allows(&view, expected) {
        return Err(format!("leaves an unexpected state: {}", view.differences(expected)));
    }
    if result.is_err() && result != good.result {
        (call.look)(scene)?;
    }
    if again {
        scene.check();
        let result = scene.run(call, None);
        scene.check();
        if result.is_ok() != good.result.is_ok() {
            return Err(format!("a second call ends with {result:?}, not {:?}", good.result));
        }
        let view = scene.view();
        if view != good.after && call.left_by_success != Left::Anything {
            return Err(format!(
                "a second call leaves an unexpected state: {}",
                view.differences(&good.after)
            ));
        }
    }
    Ok(())
}

/// Makes the call with every failure; `design` chooses the design for the `nth` failure. Returns the number
/// of failures.
///
/// # Errors
///
/// Returns a description of the first mistake. The stage is lost then.
pub fn every_failure<S: Scene>(
    call: &Call<S>,
    stage: &mut Option<S::Stage>,
    design: impl Fn(u64) -> Locking,
) -> Result<u64, String> {
    let (good, same) = undisturbed(call, stage.take().expect("a stage"), design(0));
    *stage = Some(same);
    try_at_every_allocation(&Failure::ALL, |point| {
        let locking = design(point.nth);
        let mut scene = S::new(stage.take().expect("a stage"), call, locking);
        if let Err(how) = with_failure(call, &mut scene, point, &good) {
            // Dropping the scene could fail again.
            core::mem::forget(scene);
            return Err(format!("{}, {locking:?}, {point}: {how}", call.name));
        }
        *stage = Some(scene.end());
        Ok(())
    })
}

/// Repeats each call with every possible failure, on some of five designs in rotation. `spares` lists the
/// numbers of frames and VMAs that the caches contain before a call; each number is tested. A quick run uses
/// one design for each call, a full run two, and a long run all.
pub fn every_failure_of_each<S: Scene>(
    calls: &[Call<S>],
    designs: [Locking; 5],
    spares: &[u64],
    new: impl Fn(u64) -> S::Stage,
    end: impl Fn(S::Stage),
) {
    let mut wrong = Vec::new();
    let turns = Effort::of(1, 2, designs.len());
    let mut met = vec![0; calls.len() * turns];
    for &spare in spares {
        let mut stage = Some(new(spare));
        for (number, call) in calls.iter().enumerate() {
            for turn in 0..turns {
                let locking = designs[(number + turn) % designs.len()];
                match every_failure(call, &mut stage, |_| locking) {
                    Ok(failures) => met[number * turns + turn] += failures,
                    Err(how) => {
                        wrong.push(format!("{spare} spare, {how}"));
                        stage = Some(new(spare));
                    }
                }
            }
        }
        end(stage.expect("a stage"));
    }
    for (nth, failures) in met.into_iter().enumerate() {
        let (number, turn) = (nth / turns, nth % turns);
        let (call, locking) = (&calls[number], designs[(number + turn) % designs.len()]);
        // A range writer tries to allocate for its claim, and works without the allocation.
        let may_ask = call.needs != Needs::Memory && locking.write == Write::RangesOnly;
        if (failures > 0) != (call.needs != Needs::Nothing) && !may_ask {
            wrong.push(format!("{}, {locking:?}: {failures} failures", call.name));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
