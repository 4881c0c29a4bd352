//! munmap: locks held in each step, refused calls, and state left behind. Numbers such as C-10 refer to
//! `docs/reference/hazards.md`.

mod balance;
mod callers;
mod file_walks;
mod hooks;
mod leftovers;
mod refused_calls;

use crate::support::{self, *};
