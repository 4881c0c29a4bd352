//! Tests that need a heap that fails on demand: the global allocator of this program is `FailingAllocator`.
//!
//! With this allocator, the machine also detects uses of the heap in contexts that forbid them, such as under
//! a spin lock. Tests in other programs use the heap in such contexts on purpose, so a test belongs here only
//! if it makes heap allocations fail or checks such uses. The failures of each operation of the engine are
//! tested in `engine/freehold/tests` (modules `oom`).

#[cfg(not(shuttle))]
mod claims;
#[cfg(not(shuttle))]
mod failures;
mod kernel_half;

#[global_allocator]
static HEAP: freehold_machine::FailingAllocator = freehold_machine::FailingAllocator;
