//! Reverse map (`src/rmap/`): pages that migrate, are write-protected, or fail. `Process::check` also walks
//! the reverse map of every page, in all tests. `lab/freehold-machine/tests/shuttle_engine/rmap.rs` and
//! `failure.rs` explore concurrent cases.

mod failure;
mod moves;
mod page_entries;
