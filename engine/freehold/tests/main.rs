//! The engine's tests, one program: each that is added would be linked with all of the engine once more. A
//! module for each operation; a table in `CONTRIBUTING.md` says which has the tests of what.

mod access;
mod beside;
mod cpu_arena;
mod every_call;
mod fault;
mod files;
mod fork;
mod guards;
mod huge;
mod hugetlb;
mod mmap;
mod mremap;
mod munmap;
mod nommu;
mod pins;
mod pkeys;
mod probes;
mod random_interactions;
mod reports;
mod rmap;
mod secret;
mod shm;
mod special;
mod support;
mod sweep;
mod uffd;

#[global_allocator]
static HEAP: support::heap::Recorder = support::heap::Recorder;
