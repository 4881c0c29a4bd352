//! The reverse map: from a page to every entry that maps it.
//!
//! Reading order: this file, `tree.rs` (VMAs by what they map, and the lock over them), `home.rs` (which VMAs may map a
//! page), `edit.rs` (who changes the trees), `walk.rs` (from a frame to its page and its entries), `migrate.rs`.

pub(crate) mod edit;
pub(crate) mod home;
mod migrate;
pub(crate) mod tree;
pub(crate) mod walk;

pub use migrate::MigrateError;
pub(crate) use migrate::{MOVING, Moving};
pub use tree::FileRmap;
