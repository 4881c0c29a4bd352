//! Waiting that is not waiting for a lock: `grace_period.rs` waits for the end of read sections, and
//! `retries.rs` ends loops of unbounded length after a fatal signal. Callers hold no spin lock. This folder
//! is one of the lowest layers, so it may use only the platform and errors.

mod grace_period;
mod retries;

pub(crate) use grace_period::grace_period;
pub(crate) use retries::Rounds;
