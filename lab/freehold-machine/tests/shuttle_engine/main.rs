//! The engine under every schedule tried, for every design of its locks. One group of scenarios a file; each
//! bears the number of the hazard it was written against.
//!
//! What is looked for, besides the assertions of the scenarios: the machine's oracles (translations that
//! outlive their frame or table, writes to freed memory, double frees), the checker's deadlocks, ranks of
//! locks, and at the end of every run the engine's own `check` and the machine's accounts.
//!
//! Without a checker each scenario runs once per design, on threads. Under one, `FREEHOLD_EFFORT=long` means
//! many times the schedules, and `FREEHOLD_SEED` chooses others; a failure prints its schedule.

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
