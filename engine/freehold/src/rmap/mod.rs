//! The reverse map: from a page to every entry that maps it.
//!
//! Reading order: `tree/` (the trees of VMAs), `walk.rs` (from a frame to its page and the page's entries),
//! `entries.rs` (operations on all entries of a page), `migrate.rs`, `failure.rs`, `lose.rs`, `edit.rs`
//! (linking and unlinking of VMAs that change).

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
