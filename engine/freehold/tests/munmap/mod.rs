//! munmap: which locks are held when, what is refused, what is left behind. Numbers such as C-10 are those of
//! `docs/reference/hazards.md`.

mod balance;
mod callers;
mod hooks;
mod leftovers;
mod listed;
mod refused;

use crate::support::{self, *};
