//! Wild calls: every public call of the engine, with arguments that no sane program would pass. Nothing may
//! panic, and `check` holds.
//!
//! What comes of a call is not looked at: whether the engine answers as Linux does is what
//! [`compare`](crate::compare) is for. The calls come from bytes, so that a fuzzer and a seeded test share
//! them; [`run`] plays one life on a machine of its own.
//!
//! ```text
//! values.rs   numbers: edges of pages, tables and user space, signs, overflows; or something that is mapped
//! stage.rs    the machine, and what calls can name: spaces, files, segments, userfaultfds, pins
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

/// What a life did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Calls made.
    pub calls: u64,
    /// Of these, calls that did what they were asked for.
    pub done: u64,
}

/// Makes the calls that the bytes mean, until they are used up, and ends everything.
///
/// # Panics
///
/// If the engine does.
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
