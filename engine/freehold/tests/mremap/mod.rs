//! mremap and exec's stack move. Every scenario runs on every design.

mod moves;
mod range_writers;
mod stack;

use crate::support::{self, *};
