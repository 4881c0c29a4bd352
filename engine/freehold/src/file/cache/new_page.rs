//! A page that is about to become a file's.

use super::entry::Word;
use crate::{
    Pfn,
    platform::{Frame, Platform},
};
use freehold_sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

/// A page that is to become a file's, under its invalidate lock held for reading. Its contents and its record
/// are there; nobody else knows of it.
pub(crate) struct NewPage<'m> {
    word: &'m AtomicU64,
    pfn: Pfn,
    frame: &'m Frame,
    is_published: bool,
}

impl<'m> NewPage<'m> {
    /// Runs `put` within one read section; returns whether it published the page. If not, that is still the
    /// caller's.
    pub(crate) fn put<P: Platform>(
        platform: &'m P,
        word: &'m AtomicU64,
        pfn: Pfn,
        put: impl FnOnce(&mut NewPage<'m>),
    ) -> bool {
        let mut page = NewPage { word, pfn, frame: platform.frame(pfn), is_published: false };
        let _rcu = P::rcu_read();
        put(&mut page);
        page.is_published
    }

    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// From here on it is the file's, and lookups find it; false: the file has another.
    pub fn publish(&mut self) -> bool {
        self.frame.enter_cache();
        // Release pairs with the acquire in `find`: contents and record are seen.
        let put = self.word.compare_exchange(0, Word::present(self.pfn).0, Release, Relaxed).is_ok();
        if !put {
            self.frame.leave_cache();
        }
        self.is_published |= put;
        put
    }
}
