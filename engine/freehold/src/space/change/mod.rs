//! Parts of changes of the VMAs that several system calls share. The calls in `call/` combine these parts.
//!
//! A change has the steps *decode*, *prepare*, *commit*, *settle* and *retire*; `unmap.rs` describes them and
//! is the model of every change.
//!
//! | file | contents |
//! | --- | --- |
//! | `unmap.rs` | removal of mappings, step by step |
//! | `unmap_all.rs` | removal of everything, for exec and exit |
//! | `unmap_range.rs` | the range of a removal |
//! | `unmap_unclaimed.rs` | removal of whole mappings by a range writer, in one step |
//! | `sections.rs` | removal section by section, for the design `Sectioned` |
//! | `vma_list.rs` | the list of the VMAs that a removal collects and frees |
//! | `split_merge.rs` | split, merge and insertion of VMAs |
//! | `vma_ranges.rs` | iteration over the VMAs of a range |
//! | `anon.rs` | the choice of an anon_vma |
//! | `deferred_retire.rs` | the retire step of calls that remove several parts |

pub(crate) mod anon;
pub(crate) mod deferred_retire;
mod latched;
mod sections;
pub(crate) mod split_merge;
pub(crate) mod unmap;
mod unmap_all;
mod unmap_range;
mod unmap_unclaimed;
mod vma_list;
pub(crate) mod vma_ranges;
