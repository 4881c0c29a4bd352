//! Properties that hold for every call: arguments, contexts, bounds, and the state that a call leaves if
//! memory runs out or a signal arrives.

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
