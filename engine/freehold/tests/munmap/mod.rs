//! munmap and the removal of mappings (`src/space/change/unmap.rs`): locks held in each step, refused calls,
//! and state left behind. `docs/guide/munmap.md` describes the steps.
//! `lab/freehold-machine/tests/shuttle_engine/munmap.rs` explores faults and other changes during a munmap;
//! `every_call/killed.rs` tests calls that wait for a closing range.
//!
//! The subjects of the files: locks that each caller holds (`callers.rs`), refused calls
//! (`refused_calls.rs`), references to files (`balance.rs`), hooks that call the engine (`hooks.rs`), walks
//! of a file (`file_walks.rs`), and earlier bugs of the engine (`leftovers.rs`).

mod balance;
mod callers;
mod file_walks;
mod hooks;
mod leftovers;
mod refused_calls;

use crate::support::{self, *};
