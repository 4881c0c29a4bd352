//! Resident pages by kind: plain values, without a lock.
//!
//! `rss_counters.rs` has the counters of a space, and adds them up to an [`Rss`]. An operation that changes
//! many entries collects its changes in an [`Rss`] of its own, and adds them to the counters once. Values may
//! therefore be negative. A new kind is a variant of [`RssKind`], a field of [`Rss`], and an element of the
//! arrays in `rss_counters.rs`. These arrays have the order of the variants.

/// Kinds of resident pages, and pages that were swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RssKind {
    /// Pages of ordinary files.
    File,
    /// Anonymous pages, private copies of file pages included.
    Anon,
    /// Pages of shared memory.
    Shmem,
    /// Pages that were swapped out. They are not resident.
    Swap,
}

/// Resident pages by kind, and swapped pages, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    /// Pages of ordinary files.
    pub file: i64,
    /// Anonymous pages.
    pub anon: i64,
    /// Pages of shared memory.
    pub shmem: i64,
    /// Swap entries: pages that were swapped out. Not part of the [total](Self::total).
    pub swap: i64,
}

impl Rss {
    /// Adds `pages` to the count of a kind.
    #[inline]
    pub fn add(&mut self, kind: RssKind, pages: i64) {
        match kind {
            RssKind::File => self.file += pages,
            RssKind::Anon => self.anon += pages,
            RssKind::Shmem => self.shmem += pages,
            RssKind::Swap => self.swap += pages,
        }
    }

    /// Returns the number of resident pages of all kinds.
    #[inline]
    pub fn total(&self) -> i64 {
        self.file + self.anon + self.shmem
    }
}
