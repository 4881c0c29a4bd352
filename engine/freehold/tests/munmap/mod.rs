//! munmap: locks held in each step, refused calls, and state left behind. Numbers such as C-10 refer to
//! `docs/hazards.md`.

mod balance;
mod callers;
mod hooks;
mod leftovers;
mod listed;
mod refused;

use crate::support::{self, *};
