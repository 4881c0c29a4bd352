//! The tests of the machine itself, one program.

mod common;
mod first_steps;
#[cfg(not(shuttle))]
mod heap;
mod host;
mod kernel_half;
mod memory;
mod oracles;
#[cfg(not(any(loom, shuttle)))]
mod snapshot_pager;
mod tlb;

#[global_allocator]
static HEAP: freehold_machine::FailingAllocator = freehold_machine::FailingAllocator;
