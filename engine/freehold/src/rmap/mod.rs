//! The reverse map: from a page to every entry that maps it.
//!
//! Reading order: `tree/` (the trees of VMAs), `walk.rs` (from a frame to its page and its entries),
//! `entries.rs` (what is done to all of them), `migrate.rs`, `failure.rs`, `lose.rs`; `edit.rs` (links of a
//! VMA that changes).

pub(crate) mod edit;
mod entries;
mod failure;
mod lose;
mod migrate;
pub(crate) mod tree;
pub(crate) mod walk;

pub use crate::error::MigrateError;
pub use entries::PageError;
pub(crate) use failure::failed_frame;
pub use failure::{Damage, OfflineError};
pub use tree::lock::FileRmap;
