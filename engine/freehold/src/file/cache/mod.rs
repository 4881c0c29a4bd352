//! The page cache of a file: which pages of the file are in memory, and in which frames.
//!
//! | file | contents |
//! | --- | --- |
//! | `entry.rs` | the word of a page: its frame and its state |
//! | `radix.rs` | the tree of words, which is read without a lock |
//! | `lookup.rs` | lookups, and references to the pages that they find |
//! | `new_page.rs` | a page that is not in the cache yet |
//! | `mthp.rs` | blocks: pages that are added together |
//! | `invalidate_lock.rs` | the lock under which pages enter and leave, and their number |
//!
//! `mapping.rs` (in the folder above) has the table of a word's states, with the lock that each change of a
//! word needs. `fill.rs` adds pages, `remove.rs` and `change/` remove or replace them. New code that only
//! finds pages belongs in `lookup.rs`. The tests are `tests/files`, and `shuttle_files.rs` in
//! `lab/freehold-machine/tests`.

pub(super) mod entry;
pub(super) mod invalidate_lock;
pub(super) mod lookup;
pub(super) mod mthp;
pub(super) mod new_page;
pub(super) mod radix;
pub(super) mod reading;
