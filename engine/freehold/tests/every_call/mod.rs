//! Properties that hold for every call: arguments, contexts, bounds, and the state that a call leaves if
//! memory runs out or a signal arrives. `sweep/` combines the calls with many kinds of memory.
//!
//! A new public method needs an entry in `numbers.rs` if it takes numbers, in `lengths.rs` if Linux checks
//! its length, and in `oom/calls.rs`, which `killed.rs` uses also. No test enforces these entries;
//! `sweep/complete.rs` enforces the ones of the sweep.

mod contexts;
mod edges;
mod engines;
mod hostile;
mod killed;
mod lengths;
mod messages;
mod numbers;
mod oom;
mod storm;

use crate::support::{self, *};
