//! Clearing the accessed bits of many entries for reclaim, which gives their pages a younger age.
//!
//! A test of one page by the reverse map costs a lookup of its home and of its page table. Neighbours in the
//! table are often used together, so `freehold` ages them in one walk: around a page that was accessed
//! (`rmap/entries.rs`), and for whole address spaces that ran (`call/age_pages.rs`).
//!
//! Nothing is flushed; see `Engine::referenced`. Listeners keep their accessed bits, which a test of the page
//! finds. `reclaim` in the tests of `freehold` tests this file.

use crate::{RssKind, UserRange, VmSpace, platform::Platform};
use core::ops::ControlFlow;
use freehold_pagetable::{
    Kind, LargeLeafPolicy, LeafGuard, Level, NotCached, Pte, PteFlags, PteGuard, VaRange, Visitor,
};

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Clears the accessed bit of each entry of `range`, and gives the page the age that `age` returns for
    /// its kind and its former age. Skips pages that reclaim cannot take. Returns the number of pages whose
    /// bits were cleared.
    ///
    /// # Locks
    ///
    /// The lock of one table at a time. The caller has a lock that keeps the tables linked.
    pub fn age_young(&self, range: UserRange, age: impl FnMut(RssKind, u8) -> u8) -> u64 {
        let mut visitor = Young { platform: self.platform(), age, cleared: 0 };
        let walked = self.walk(range.va(), &mut visitor);
        debug_assert!(walked.is_ok(), "clearing bits in place ran out of memory");
        visitor.cleared
    }
}

/// A visitor that clears accessed bits and sets ages.
struct Young<'p, P, A> {
    platform: &'p P,
    age: A,
    /// Number of pages whose bits were cleared.
    cleared: u64,
}

impl<P: Platform, A: FnMut(RssKind, u8) -> u8> Young<'_, P, A> {
    /// Returns the entry that replaces `pte`. The bit stays if no page got a new age, so that the access is
    /// not forgotten.
    fn aged(&mut self, pte: Pte<P::Format>, level: Level) -> Pte<P::Format> {
        let Kind::Leaf { pfn, flags } = pte.kind(level) else { return pte };
        if flags.contains(PteFlags::SPECIAL) || !flags.contains(PteFlags::ACCESSED) {
            return pte;
        }
        let mut count = 0;
        for n in 0..level.frames() {
            let frame = self.platform.frame(pfn.add(n));
            let Some(glance) = frame.glance() else { continue };
            count += u64::from(frame.set_age(glance, (self.age)(glance.kind, glance.age)));
        }
        self.cleared += count;
        if count > 0 { pte.with_flags(level, flags - PteFlags::ACCESSED) } else { pte }
    }
}

impl<P: Platform, A: FnMut(RssKind, u8) -> u8> Visitor<P::Format, P> for Young<'_, P, A> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.change_each(range, &mut NotCached, |_, pte| self.aged(pte, Level::Pte));
        ControlFlow::Continue(())
    }

    fn large(&mut self, mut leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let level = leaf.level();
        // A part of a huge page says nothing about the whole.
        if range == VaRange::entry(range.start(), level) {
            leaf.change(&mut NotCached, |pte| self.aged(pte, level));
        }
        ControlFlow::Continue(())
    }
}
