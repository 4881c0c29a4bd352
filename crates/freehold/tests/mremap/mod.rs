//! mremap and exec's stack move: every scenario under every design of the locks.

mod moves;
mod stack;

use crate::support::{self, *};
