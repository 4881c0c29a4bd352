//! Mapped files: their pages, their caches, write-back, truncation, seals.

mod advice;
mod cached_translations;
mod direct;
mod drop_clean;
mod mapped;
mod page_counts;
mod read_sections;
mod seals;

use crate::support::*;
