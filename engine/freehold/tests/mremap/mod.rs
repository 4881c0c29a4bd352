//! mremap (`src/call/mremap/`) and exec's stack move (`src/call/stack_move.rs`). `range_writers.rs` in the
//! parent folder tests the claims of an mremap, and `special/` and `shm.rs` test moves of their kinds of
//! memory. `lab/freehold-machine/tests/shuttle_engine/mremap.rs` explores concurrent moves.
//!
//! `moves.rs` tests the calls, and `range_writers.rs` compares range writers with the exclusive writer.
//! `stack.rs` tests the stack move.

mod moves;
mod range_writers;
mod stack;

use crate::support::{self, *};
