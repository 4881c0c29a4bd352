//! Reverse map (`src/rmap/`): pages that migrate, are write-protected, or fail. `Process::check` also walks
//! the reverse map of every page, in all tests. `lab/freehold-machine/tests/shuttle_engine/rmap.rs` and
//! `failure.rs` explore concurrent cases.
//!
//! `moves.rs` tests walks and migration, `page_entries.rs` tests operations on all entries of a page, and
//! `failure.rs` tests memory failures. A new operation by frame number belongs in one of these files, and its
//! random form in `random_interactions/`.

mod failure;
mod moves;
mod page_entries;
