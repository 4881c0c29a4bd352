//! The objects that a VMA can map: anonymous memory, a file, or a mapping with an embedder's own hooks.
//!
//! | file or folder | contents |
//! | --- | --- |
//! | `object.rs` | [`Object`]: the kind of memory that a VMA maps |
//! | `open_file.rs`, `mapping.rs` | an open file; a file's pages and the rules for adding and removing them |
//! | `fill.rs`, `remove.rs` | adding pages to the cache; removing pages from it |
//! | `removal.rs` | what other tasks do while a removal waits for the pager |
//! | `read.rs`, `request.rs` | requests to read pages from the backing store; the pages of a request |
//! | `readahead/` | reads of pages that a program needs soon |
//! | `write.rs`, `dirty.rs` | requests to write pages; the rule by which write-back finds dirty pages |
//! | `permit.rs`, `throttle.rs` | questions to the pager before clean pages change; the bound on dirty pages |
//! | `contents.rs`, `pager.rs` | reading and writing file contents; the backing store of a file |
//! | `in_place.rs` | the pages for address spaces without page tables |
//! | `swap_in.rs`, `swapped.rs` | bringing pages into the swap cache; pages of shared memory that are swapped out |
//! | `files.rs`, `file_list.rs` | the state that all files of an engine share; lists of files |
//! | `seals.rs`, `sealing.rs`, `committed.rs` | seals and the count of writable mappings; accounting of committed pages |
//! | `cache/` | the page cache: its tree, its entries, lookups, blocks of pages |
//! | `change/` | operations that remove a file's pages from page tables or replace them |
//! | `kinds/` | special kinds of files: direct storage, drivers, secret memory, segments, huge pages |
//!
//! [`rmap`](crate::rmap) keeps the VMAs that map a file.
//!
//! The order of a file's locks and the states of a page are in `mapping.rs`. This folder, except `change/`,
//! is a layer below VMAs and address spaces, and must not use either; the test
//! `each_layer_uses_only_layers_below_it` (`xtask/tests/tidy.rs`) checks that. An operation that needs the
//! VMAs of a file therefore belongs in `change/`. An operation for a single kind of file belongs in `kinds/`.
//! The trees in `rmap/tree/` lead from a file to its VMAs.

pub(crate) mod cache;
pub(crate) mod change;
mod committed;
mod contents;
mod dirty;
mod file_list;
mod files;
mod fill;
pub(crate) mod in_place;
pub(crate) mod kinds;
mod mapping;
mod object;
mod open_file;
mod pager;
mod permit;
mod read;
mod readahead;
mod removal;
mod remove;
pub(crate) mod request;
mod sealing;
mod seals;
mod shortage;
mod swap_in;
mod swapped;
mod throttle;
mod write;

pub(crate) use cache::{
    entry::{LOST, SwappedOut, Word},
    lookup::CachedPage,
    mthp::{Need, Wanted, block_around},
    new_page::NewPage,
    radix::Stay,
};
pub use change::advise::FileAdvice;
pub use files::{Files, HasFiles};
pub(crate) use kinds::{driver::Run, special::Asked};
pub use kinds::{
    driver::{Driver, MapRequest},
    foreign::ForeignFrames,
    segment::Segment,
    special::{Caching, Frames, HookFault, Special, VmOps},
};
pub use mapping::{FillError, Mapping};
pub(crate) use mapping::{Kind, MAX_BYTES, zero};
pub use object::Object;
pub use open_file::{File, FileAccess};
pub use pager::{IoError, Pager, Zeroes};
pub use permit::WriteRefused;
pub use read::ReadRequest;
pub(crate) use readahead::AccessOrder;
pub(crate) use remove::Copies;
pub use sealing::Seals;
pub(crate) use seals::Writing;
pub(crate) use swap_in::{SwapInError, SwapWindow};
pub(crate) use swapped::is_zero;
pub use write::WriteRequest;

pub use crate::vma::info::VmaInfo;
