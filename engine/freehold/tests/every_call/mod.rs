//! What every call keeps to: arguments, contexts, bounds, and what is left when memory runs out or a signal
//! comes.

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
