//! The reverse map: from a page to every entry that maps it.
//!
//! Reading order: this file, `tree.rs` (VMAs by what they map, and the lock over them), `home.rs` (which VMAs may map a
//! page), `edit.rs` (who changes the trees).

pub(crate) mod edit;
pub(crate) mod home;
pub(crate) mod tree;
