//! What needs the heap that fails on demand. With it the machine also sees what uses the heap where it must
//! not, as the tests of other programs do on purpose.

#[cfg(not(shuttle))]
mod claims;
#[cfg(not(shuttle))]
mod failures;
mod kernel_half;

#[global_allocator]
static HEAP: freehold_machine::FailingAllocator = freehold_machine::FailingAllocator;
