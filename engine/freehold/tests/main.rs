//! Tests of the engine. All tests are modules of one program, because each further program would link the
//! whole engine once more. Each module covers an operation; a table in `docs/reference/testing.md` lists them.

mod access;
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
mod range_writers;
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
