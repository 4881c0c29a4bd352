//! Disasters, one file each: what happened elsewhere, and that it does not happen here. Numbers such as C-10 are those of the
//! list of hazards.

mod balance;
mod borrowed;
mod hooks;
mod killed;
mod leftovers;
mod listed;
mod oom;
mod places;
mod refused;
mod remembered;
mod sizes;
mod storm;
mod walkers;

use crate::support::{self, *};
