//! The engine under many interleavings of threads, with every lock design. Each file has the scenarios of one
//! subject; `docs/reference/testing.md` lists them by operation. `scene.rs`, `device.rs`, `explore.rs` and
//! `thread.rs` are helpers. A test named `c26_...` was written against hazard C-26 of
//! `docs/reference/hazards.md`.
//!
//! Under `cfg(shuttle)` the checker shuttle chooses the schedules: it may switch threads at each access to an
//! atomic of the engine. Without a checker, each scenario runs once per design, on threads of the system.
//! Under the checker, `FREEHOLD_EFFORT=long` runs many times more schedules, and `FREEHOLD_SEED` chooses
//! other schedules. A failure prints its schedule.
//!
//! A scenario sets up a `Scene`, starts two to five threads on CPUs of their own, and asserts in each thread
//! and at the end what a program may see. Keep threads short: each further access makes a given interleaving
//! less likely. Synchronise threads only with atomics of `freehold_sync` and with `yield_now`, because the
//! checker does not see a lock of the system. A new scenario goes into the file of its call; a new file needs
//! a `mod` line here and an entry in the table of `docs/reference/testing.md`.
//!
//! Besides the assertions of the scenarios, other checks detect errors. The oracles of the machine detect
//! translations that outlive their frame or table, writes to freed memory, and double frees. The checker
//! detects deadlocks, and lock ranks are checked. Every run ends with the engine's own `check` and the
//! machine's accounting of frames and tables.

mod break_before_make;
mod collapse;
mod device;
mod direct;
mod discard;
mod drop_clean;
mod evict;
mod explore;
mod failure;
mod file_moves;
mod files;
mod files_shared;
mod forced;
mod fork;
mod huge;
mod hugetlb;
mod killed;
mod linear;
mod listeners;
mod mprotect;
mod mremap;
mod munmap;
mod nommu;
mod pageout;
mod per_cpu_readers;
mod permits;
mod pinned;
mod pins;
mod probes;
mod ranges;
mod readers;
mod reads;
mod reap;
mod reclaim;
mod removals;
mod reuse;
mod rmap;
mod scene;
mod segments;
mod shortage;
mod software_bits;
mod special;
mod speculative_lookup;
mod stack;
mod swap;
mod swapped;
mod swapped_copies;
mod swapped_shared;
mod thread;
mod uffd;
mod waiting;
mod writes;
mod written_pages;
