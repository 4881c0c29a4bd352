//! The engine's tests, one program: each that is added would be linked with all of the engine once more. A module for each subject.

mod advice;
mod contexts;
mod direct;
mod drop_clean;
mod edges;
mod engines;
mod failure;
mod faulting_together;
mod files;
mod guards;
mod hazards;
mod hostile;
mod huge;
mod hugetlb;
mod merging;
mod moves;
mod munmap_callers;
mod nommu;
mod page_entries;
mod pins;
mod pkeys;
mod probes;
mod random_interactions;
mod readers;
mod remap_file_pages;
mod rmap;
mod seals;
mod secret;
mod shm;
mod special;
mod support;
mod sweep;
mod uffd;
mod zeroes;

#[global_allocator]
static HEAP: support::heap::Recorder = support::heap::Recorder;
