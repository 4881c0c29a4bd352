//! Properties that hold for every call: arguments, contexts, bounds, and the state that a call leaves if
//! memory runs out or a signal arrives. `sweep/` combines the calls with many kinds of memory.
//!
//! A new call that takes numbers belongs in `numbers.rs`. A call with a length also belongs in `lengths.rs`.
//! A call that allocates or waits belongs in `oom/calls.rs`, which `killed.rs` uses too. No test fails if a
//! call is missing from these files; `sweep/complete.rs` fails if a call is missing from the sweep.
//!
//! The subjects of the other files: the contexts of platform calls (`contexts.rs`), arguments at their limits
//! (`edges.rs`), objects of two engines (`engines.rs`), bounds of loops (`hostile.rs`), texts of errors
//! (`messages.rs`), and calls of several threads (`storm.rs`).

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
