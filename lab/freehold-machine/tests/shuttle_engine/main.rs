//! The engine under many schedules, on every design. Each file has one group of scenarios. A scenario bears
//! the number of the hazard against which it was written.
//!
//! Besides the assertions of the scenarios, other checks detect errors. The oracles of the machine detect
//! translations that outlive their frame or table, writes to freed memory, and double frees. The checker
//! detects deadlocks, and lock ranks are checked. At the end of every run the engine's own `check` and the
//! machine's accounting follow.
//!
//! Without a checker, each scenario runs once per design, on threads. Under a checker, `FREEHOLD_EFFORT=long`
//! runs many times more schedules, and `FREEHOLD_SEED` chooses other ones. A failure prints its schedule.

mod collapse;
mod direct;
mod discard;
mod drop_clean;
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
mod mprotect;
mod mremap;
mod munmap;
mod nommu;
mod per_cpu_readers;
mod pinned;
mod pins;
mod probes;
mod ranges;
mod readers;
mod reclaim;
mod reuse;
mod rmap;
mod scene;
mod segments;
mod software_bits;
mod special;
mod speculative_lookup;
mod stack;
mod thread;
mod uffd;
mod waiting;
