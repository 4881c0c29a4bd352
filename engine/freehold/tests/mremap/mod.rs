//! mremap and exec's stack move. Every scenario runs on every design.

mod beside;
mod moves;
mod stack;

use crate::support::{self, *};
