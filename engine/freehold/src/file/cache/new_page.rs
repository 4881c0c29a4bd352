//! A page that is about to be added to a file's cache ([`NewPage`]): its frame is filled, but no lookup finds
//! it yet.
//!
//! `fill.rs` and `kinds/huge.rs` allocate and fill the frame, and then call [`put`](NewPage::put) with a
//! function that publishes the page. A fault publishes at once. The pager of a userfaultfd (`uffd/fill.rs`)
//! publishes under the lock of a page table, so that a fault that finds the page also finds the entry. If two
//! tasks add the same page, the compare-and-swap in [`publish`](NewPage::publish) decides which of them
//! succeeds. The frame's record must be complete before `publish`, because lookups take no lock.
//! `uffd::c53_protected_fill_concurrent_with_accesses` (`shuttle_engine`) fails if the pager publishes too
//! early.

use super::entry::Word;
use crate::{
    Pfn,
    platform::{Frame, Platform},
};
use freehold_sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

/// A page that is about to be added to a file, under the file's invalidate lock held for reading. The frame's
/// contents and record are complete. No other task can find the page before it is published.
pub(crate) struct NewPage<'m> {
    /// The word of the page in the file's tree. 0 until this page or another page is published at the same
    /// index.
    word: &'m AtomicU64,
    /// The frame that holds the contents.
    pfn: Pfn,
    /// The record of the frame.
    frame: &'m Frame,
    /// True after a successful `publish`.
    is_published: bool,
}

impl<'m> NewPage<'m> {
    /// Runs `put` within one read section. Returns true if `put` published the page. Otherwise the caller
    /// still owns the page.
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

    /// Returns the frame that holds the contents.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Adds the page to the file, so that lookups find it. Returns false if the file has another page at this
    /// index.
    pub fn publish(&mut self) -> bool {
        self.frame.enter_cache();
        // Release pairs with the acquire in `find`: contents and record are visible with the word.
        let put = self.word.compare_exchange(0, Word::present(self.pfn).0, Release, Relaxed).is_ok();
        if !put {
            self.frame.leave_cache();
        }
        self.is_published |= put;
        put
    }
}
