//! Steps that several system calls share: unmapping in five steps (`unmap.rs`, the model of every change),
//! splitting and merging VMAs, iterating over the VMAs of a range, and releasing objects after the locks.

pub(crate) mod anon;
pub(crate) mod deferred_retire;
mod sections;
pub(crate) mod split_merge;
pub(crate) mod unmap;
mod vma_list;
pub(crate) mod vma_ranges;
