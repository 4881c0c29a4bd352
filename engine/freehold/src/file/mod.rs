//! What a VMA maps: anonymous memory, a file, or what an embedder maps by its own rules.
//!
//! | file or folder | what it has |
//! | --- | --- |
//! | `object.rs` | [`Object`], which says what a VMA maps |
//! | `open_file.rs`, `mapping.rs` | a file that is open, and its pages with the rules by which they come and go |
//! | `contents.rs`, `pager.rs` | reading and writing pages, and where they come from |
//! | `in_place.rs` | the pages for spaces without page tables |
//! | `files.rs`, `file_list.rs` | what the files of an engine have in common, and the list of those that may have memory to spare |
//! | `seals.rs`, `committed.rs` | counts of writable VMAs, committed pages |
//! | `cache/` | the page cache: its tree, its entries, lookups, pages that come together |
//! | `change/` | what takes pages away from under page tables, or puts others in their place |
//! | `kinds/` | files with rules of their own: storage, drivers, secret memory, segments, huge pages |
//!
//! The VMAs that map a file: [`rmap`](crate::rmap).

pub(crate) mod cache;
pub(crate) mod change;
mod committed;
mod contents;
mod file_list;
mod files;
mod fill;
pub(crate) mod in_place;
pub(crate) mod kinds;
mod mapping;
mod object;
mod open_file;
mod pager;
mod remove;
mod sealing;
mod seals;

pub(crate) use cache::{
    entry::{LOST, Word},
    lookup::CachedPage,
    mthp::{Wanted, block_around},
    new_page::NewPage,
};
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
pub(crate) use remove::Copies;
pub use sealing::Seals;
pub(crate) use seals::Writing;

pub use crate::vma::info::VmaInfo;
