//! Wild calls: every public call of the engine, with arguments that no sane program would pass. No call may
//! panic, and `check` must pass.
//!
//! The results of the calls are not checked: [`compare`](crate::compare) tests whether the engine behaves
//! like Linux. The calls are decoded from bytes, so that a fuzzer (`lab/fuzz/fuzz_targets/wild.rs`) and a
//! seeded test (`tests/wild.rs`) share them. [`run`] executes one *life*, which is one such sequence of
//! calls, on a machine of its own. Each of the four files with calls has a function `call`, which takes the
//! kind of call and its arguments from the bytes, makes the call on objects of the [`Stage`], and returns
//! true if the call succeeded. A test fails if a public function of the engine is called in none of these
//! files and is not exempt.
//!
//! ```text
//! values.rs   numbers: edges of pages, tables and user space, signs, overflows; or addresses of mappings
//! stage.rs    the machine, and the objects of calls: spaces, files, segments, userfaultfds, pins
//! space.rs    calls of an address space      others.rs   of files, pools, segments, the engine
//! user.rs     of userfaultfds, pins          flat.rs     without an MMU
//! ```

mod flat;
mod others;
mod space;
mod stage;
mod user;
mod values;

pub use stage::Stage;
use values::Values;

/// Counts of one life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Number of calls.
    pub calls: u64,
    /// Number of calls that succeeded.
    pub done: u64,
}

/// Decodes and makes calls until the bytes are used up, then drops everything and checks for leaks.
///
/// # Panics
///
/// Panics if the engine panics, or if a check fails.
pub fn run(bytes: &[u8]) -> Life {
    let mut values = Values::new(bytes);
    let Some(mut stage) = Stage::new(&mut values) else { return Life::default() };
    let mut life = Life::default();
    while !values.is_empty() {
        let done = match values.below(16) {
            0..=8 => space::call(&mut stage, &mut values),
            9..=11 => user::call(&mut stage, &mut values),
            12..=14 => others::call(&mut stage, &mut values),
            _ => flat::call(&mut stage, &mut values),
        };
        life.calls += 1;
        life.done += u64::from(done);
        if life.calls.is_multiple_of(32) {
            stage.check();
        }
    }
    stage.end();
    life
}
