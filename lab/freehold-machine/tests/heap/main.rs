//! Tests that need the heap that fails on demand. With this heap, the machine also detects uses of the heap
//! in contexts that forbid them; tests in other programs use the heap there on purpose.

#[cfg(not(shuttle))]
mod claims;
#[cfg(not(shuttle))]
mod failures;
mod kernel_half;

#[global_allocator]
static HEAP: freehold_machine::FailingAllocator = freehold_machine::FailingAllocator;
