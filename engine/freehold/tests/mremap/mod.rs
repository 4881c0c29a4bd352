//! mremap and exec's stack move: every scenario under every design of the locks.

mod beside;
mod moves;
mod stack;

use crate::support::{self, *};
