//! The trees that lead from a page to the VMAs that may map it: what they are (`tree.rs`), whose (`root.rs`),
//! and who changes them (`edit.rs`). Who walks them: [`rmap`](crate::rmap).

pub(crate) mod edit;
pub(crate) mod root;
pub(crate) mod tree;
