//! The reverse map: from a page to every entry that maps it.
//!
//! Reading order: this file, `tree.rs` (VMAs by what they map, and the lock over them), `anon.rs` (which VMAs may map an
//! anonymous page), `edit.rs` (who changes the trees).

pub(crate) mod anon;
pub(crate) mod edit;
pub(crate) mod tree;
