//! The reverse map: from a page to every entry that maps it.
//!
//! Reading order: this file, `tree.rs` (VMAs by what they map, and the lock over them), `home.rs` (which VMAs may map a
//! page), `edit.rs` (who changes the trees), `walk.rs` (from a frame to its page and its entries), `entries.rs`
//! (what is done to all of them), `migrate.rs`, `failure.rs`.

pub(crate) mod edit;
mod entries;
mod failure;
mod migrate;
pub(crate) mod root;
pub(crate) mod tree;
pub(crate) mod walk;

pub use entries::PageError;
pub(crate) use failure::failed_frame;
pub use failure::{Damage, OfflineError};
pub use migrate::MigrateError;
pub use tree::FileRmap;
