//! The trees that lead from a page to the VMAs that may map it: what they are (`tree.rs`), by what they are
//! locked (`lock.rs`), whose they are (`root.rs`), and how they change (`edit.rs`). Walks of them:
//! [`rmap`](crate::rmap).

pub(crate) mod edit;
pub(crate) mod lock;
pub(crate) mod root;
pub(crate) mod tree;
