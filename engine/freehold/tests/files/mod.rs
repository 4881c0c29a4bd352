//! Mapped files: their pages, their caches, write-back, truncation, seals.

mod advice;
mod counted;
mod direct;
mod drop_clean;
mod mapped;
mod remembered;
mod seals;
mod taken;

use crate::support::*;
