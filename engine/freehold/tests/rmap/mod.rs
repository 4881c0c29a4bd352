//! Reverse map (`src/rmap/`): pages that migrate, are write-protected, or fail. `Process::check` also walks
//! the reverse map of every page, in all tests. Concurrent cases are explored in `rmap.rs` and `failure.rs`
//! of `lab/freehold-machine/tests/shuttle_engine`.

mod failure;
mod moves;
mod page_entries;
