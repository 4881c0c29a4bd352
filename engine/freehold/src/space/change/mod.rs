//! What changes of an address space share: taking mappings away in five steps (`unmap.rs`, the model of every
//! change), cutting and merging VMAs, VMAs one after the other, and what is released after the locks.

pub(crate) mod anon;
pub(crate) mod deferred_retire;
pub(crate) mod parts;
mod sections;
pub(crate) mod split_merge;
pub(crate) mod unmap;
mod vma_list;
