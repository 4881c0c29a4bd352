//! Waiting for grace periods, and loops that a fatal signal ends.

mod grace_period;
mod retries;

pub(crate) use grace_period::grace_period;
pub(crate) use retries::Rounds;
