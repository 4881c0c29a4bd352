//! Mapped files (`src/file/`): their pages, their caches, write-back, truncation, seals, and the advice and
//! reports that concern them. Files of huge pages are tested in `hugetlb/`, blocks of shared memory in
//! `huge/shared.rs`, pages that migrate or fail in `rmap/`.
//!
//! A file gets its contents from a *pager*, which a test may implement itself: it counts or stores what the
//! engine writes, or runs code in the middle of a read or write. Most tests run on every design, and
//! `Mapping::check` recounts the pages of the cache. `lab/freehold-machine/tests/shuttle_engine/files.rs` and
//! `file_moves.rs` explore concurrent cases.
//!
//! The subjects of the files: the basic rules (`mapped.rs`), direct access (`direct.rs`), calls such as
//! mincore and msync (`advice.rs`), seals (`seals.rs`), the cache (`drop_clean.rs`, `page_counts.rs`), sizes
//! of the storage (`adopt_size.rs`), reads (`reads.rs`, `readahead.rs`), writes (`writes.rs`, `permits.rs`,
//! `throttle.rs`), removals and what they wait for (`removals.rs`), stores before a flush
//! (`cached_translations.rs`), and removal without a wait for readers (`read_sections.rs`). A new way to
//! remove pages of a file belongs in the lists of the last two files.

mod adopt_size;
mod advice;
mod cached_translations;
mod device;
mod direct;
mod drop_clean;
mod mapped;
mod page_counts;
mod permits;
mod read_sections;
mod readahead;
mod reads;
mod removals;
mod seals;
mod throttle;
mod writes;

use crate::support::*;
