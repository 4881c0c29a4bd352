//! A page that is about to become a file's.

use super::word::Word;
use crate::{Pfn, platform::Platform};
use freehold_sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

/// A page that is to become a file's, under its invalidate lock held for reading. Its contents and its record
/// are there; nobody else knows of it.
pub(crate) struct NewPage<'m> {
    word: &'m AtomicU64,
    pfn: Pfn,
    is_published: bool,
}

impl<'m> NewPage<'m> {
    /// Runs `put` within one read section; returns whether it published the page. If not, that is still the
    /// caller's.
    pub(crate) fn put<P: Platform>(
        word: &'m AtomicU64,
        pfn: Pfn,
        put: impl FnOnce(&mut NewPage<'m>),
    ) -> bool {
        let mut page = NewPage { word, pfn, is_published: false };
        let _rcu = P::rcu_read();
        put(&mut page);
        page.is_published
    }

    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// From here on it is the file's, and lookups find it; false: the file has another.
    pub fn publish(&mut self) -> bool {
        // Release pairs with the acquire in `lookup`: contents and record are seen.
        let put = self.word.compare_exchange(0, Word::present(self.pfn).0, Release, Relaxed);
        self.is_published |= put.is_ok();
        put.is_ok()
    }
}
