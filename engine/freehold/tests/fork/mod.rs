//! fork (`src/call/fork.rs`), and copy on write between parent and child (`src/fault/cow.rs`). fork with huge
//! pages is tested in `huge/fork.rs` and `hugetlb/private.rs`, with pinned pages in `pins/fork.rs`, with a
//! userfaultfd in `uffd/events.rs`. `lab/freehold-machine/tests/shuttle_engine/fork.rs` explores concurrent
//! cases.
//!
//! `children.rs` tests which mappings and pages a child inherits. `held_pages.rs` tests pages that a reader
//! holds across a fork.

mod children;
mod held_pages;

use crate::support::{self, *};
