//! Disasters, one file each: what happened elsewhere, and that it does not happen here. Numbers such as C-10 are those of the
//! list of hazards.

mod gate;
mod killed;
mod memory_ends;
mod refused;
mod storm;
#[path = "../support/mod.rs"]
mod support;

use freehold_machine::FailingAllocator;
use support::*;

#[global_allocator]
static HEAP: FailingAllocator = FailingAllocator;
