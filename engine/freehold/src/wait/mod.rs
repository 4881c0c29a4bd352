//! Waiting that is not waiting for a lock: `grace_period.rs` waits for the end of read sections, `turns.rs`
//! has the counters that tasks sleep on until the state of a page changes, and `retries.rs` ends loops of
//! unbounded length after a fatal signal. Callers hold no spin lock. This folder is one of the lowest layers,
//! so it may use only the platform and errors.

mod grace_period;
mod retries;
mod turns;

pub(crate) use grace_period::grace_period;
pub(crate) use retries::Rounds;
pub(crate) use turns::{Turn, Turns};
