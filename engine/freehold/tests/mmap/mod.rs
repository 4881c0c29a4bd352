//! mmap and related subjects (`src/call/mmap/`, `src/space/placement.rs`): where mappings are placed, what
//! they merge with, limits, counts of pages, committed memory, and stacks that grow. brk and mlock have no
//! module of their own.
//!
//! Expected addresses and answers are those of Linux 6.18 unless a test says otherwise. The crate
//! `freehold-model` compares random calls with the running kernel. A list of calls to which engine, model and
//! Linux must give the same answers may be a case in `lab/freehold-model/cases` instead of a test here.
//!
//! The subjects of the files: places (`places.rs`, `layouts.rs`, `five_levels.rs`), counts of pages
//! (`sizes.rs`), committed memory (`committed.rs`), PR_SET_MEMORY_MERGE (`merging.rs`), the call
//! remap_file_pages (`remap_file_pages.rs`), and /dev/zero (`zeroes.rs`).
//! `lab/freehold-machine/tests/shuttle_engine/reuse.rs` and `stack.rs` explore concurrent cases.

mod committed;
mod five_levels;
mod layouts;
mod merging;
mod places;
mod remap_file_pages;
// The sizes need more addresses than this format has.
#[cfg(not(machine_format = "sv39"))]
mod sizes;
mod zeroes;

use crate::support::*;
