//! Tests of the machine itself, in one program.

mod common;
mod first_steps;
mod host;
mod memory;
mod oracles;
#[cfg(not(any(loom, shuttle)))]
mod snapshot_pager;
mod tlb;
