//! Tests of the crate `freehold` on the test machine `freehold-machine`. All tests are modules of this one
//! program, because each further program would link the whole engine once more. `stack_depth.rs` and
//! `heap_in_use/` are programs of their own. Most modules test one operation; `every_call`, `sweep` and
//! `random_interactions` test all calls. The head of a module names the engine's files that it tests. In
//! these heads, a path that begins with `src/` is below `engine/freehold`; all other paths are below this
//! folder or the root of the repository.
//!
//! Most tests are *scenarios*: closures that get a world, a process and a CPU, and that run once for each
//! *design* (a value of `Locking::ALL`); `support/mod.rs` has the functions that run them. Where a test needs
//! several tasks, these tasks are threads of the host. A test never depends on the speed of these threads: a
//! gate (`support/gate.rs`) runs code at a chosen point of a call, or the test repeats until an event has
//! occurred. `lab/freehold-machine/tests/shuttle_engine` explores the interleavings of short scenarios.
//!
//! Besides the assertions of a test, these oracles detect defects of the engine:
//!
//! - The machine panics at the use of a stale translation, at a write to a freed frame and at a wrong free.
//!   Builds with debug assertions also panic at a platform call in a forbidden context, and at a wait that
//!   breaks the lock order (`Rank`).
//! - `Process::check` recounts sizes and pages, and checks the VMA tree and the reverse map.
//! - `World::end` fails if a frame, a page table or an address space is still in use.
//!
//! A number such as C-26 in a comment, or as a prefix of a function's name (c26), cites an entry of
//! `docs/reference/hazards.md`.
//!
//! `cargo test --package freehold-tests --test engine munmap::` runs one module. A new call of the engine
//! also needs entries in `every_call` and `sweep`; their heads say which. A new module needs a line here and
//! in the table of operations in `docs/reference/testing.md`; tests of xtask compare the numbers of hazards
//! and the names of modules with these documents.

mod access;
mod charges;
// This format has too few addresses for arenas.
#[cfg(not(machine_format = "sv39"))]
mod cpu_arena;
mod every_call;
mod fault;
mod files;
mod fork;
mod guards;
mod huge;
mod hugetlb;
mod listeners;
mod messages;
mod mmap;
mod mremap;
mod munmap;
mod nodes;
mod nommu;
mod pageout;
mod pins;
// Only x86-64 has protection keys.
#[cfg(not(any(
    machine_format = "sv39",
    machine_format = "sv48",
    machine_format = "sv57",
    machine_format = "aarch64",
    machine_format = "aarch64_0"
)))]
mod pkeys;
mod probes;
mod random_interactions;
mod range_writers;
mod reap;
mod reclaim;
mod reports;
mod rmap;
mod secret;
mod shm;
mod shortage;
mod shortage_objects;
mod special;
mod support;
mod swap;
mod swapped;
mod sweep;
mod uffd;

/// Lets a test make allocations fail.
#[global_allocator]
static HEAP: support::heap::Recorder = support::heap::Recorder;
