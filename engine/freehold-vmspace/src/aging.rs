//! Clearing accessed and dirty bits, for MADV_FREE, MADV_COLD and writes to clear_refs. *Aging* a page means
//! that the engine forgets that the page was used, or forgets that its contents are needed.
//!
//! The walk holds the lock of one table at a time. It changes accessed and dirty bits and the records of
//! frames, and may split huge pages, but never changes which frames are mapped, or with which rights.
//! `freehold` decides which VMAs are aged (`call/madvise/pages.rs`, `report/clear_refs.rs`). `clean.rs`
//! write-protects file pages. `tests/reports/usage.rs` of `freehold` tests aging. A further kind of aging is
//! a variant of [`Aging`] with its case in `aged`.

use crate::{RssKind, UserRange, VmGather, VmSpace, platform::Platform};
use core::ops::ControlFlow;
use freehold_pagetable::{
    Kind, LargeLeafPolicy, LeafGuard, Level, NotCached, Pfn, Pte, PteFlags, PteGuard, StaleTranslations,
    VaRange, Visitor,
};

/// The fact about a page that aging forgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aging {
    /// The page was accessed.
    Accessed,
    /// The page was accessed, if only one entry maps it. The page gets an old [age](crate::frame::age).
    Cold(OldAges),
    /// The contents of anonymous memory are needed. After the engine has forgotten this, the page counts as
    /// clean and as not accessed, and has an old age. As on Linux, a page is unchanged if its record is dirty
    /// and several entries map it. A page in the swap cache is unchanged too.
    LazyFree(OldAges),
}

/// The ages of pages that reclaim takes next, by the kind of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldAges {
    /// The age of anonymous pages.
    pub anon: u8,
    /// The age of pages of shared memory.
    pub shmem: u8,
    /// The age of pages of files.
    pub file: u8,
}

impl OldAges {
    /// Returns the age for a kind of pages.
    fn of(&self, kind: RssKind) -> u8 {
        match kind {
            RssKind::Anon => self.anon,
            RssKind::Shmem => self.shmem,
            RssKind::File | RssKind::Swap => self.file,
        }
    }
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Forgets `what` for every page in `range`. Pages keep their contents and their rights.
    ///
    /// Flushes, so that a later access is recorded. [`Aging::Cold`], which is a hint, does not flush: see
    /// `Engine::referenced`.
    ///
    /// A huge page at an edge of the range is split if one entry maps it, and is otherwise unchanged, as on
    /// Linux. If there is no memory to split a huge page, the walk ends there, because the bits are only
    /// hints.
    pub fn age(&self, range: UserRange, what: Aging) {
        if !matches!(what, Aging::LazyFree(_)) {
            self.clear_young(range.va());
        }
        if matches!(what, Aging::Cold(_)) {
            return self.age_in(range, what, &mut NotCached);
        }
        let mut gather: VmGather<'_, P, 1> = self.gather(range.va());
        self.age_in(range, what, &mut gather);
        gather.finish();
    }

    /// Ages `range`, and passes changed translations to `stale`. Repeats the walk with splits if a huge page
    /// reaches across an edge.
    fn age_in<S: StaleTranslations>(&self, range: UserRange, what: Aging, stale: &mut S) {
        let (platform, mut rest) = (self.platform(), range.va());
        loop {
            let mut whole = AgingVisitor::<_, _, false> { platform, what, stale, edge: None };
            let walked = self.walk(rest, &mut whole);
            let Some(edge) = whole.edge.filter(|_| walked.is_ok()) else { return };
            let mut split = AgingVisitor::<_, _, true> { platform, what, stale, edge: None };
            if self.walk(edge, &mut split).is_err() {
                return;
            }
            rest = VaRange::new(edge.end(), rest.end());
        }
    }
}

/// A visitor that ages entries. With `SPLIT`, it splits a huge page that the range covers partly. Without
/// `SPLIT`, the walk ends at such a page if only one entry maps it.
struct AgingVisitor<'f, P, S, const SPLIT: bool> {
    platform: &'f P,
    what: Aging,
    stale: &'f mut S,
    /// If the walk ended at a huge page, the part of that page inside the range.
    edge: Option<VaRange>,
}

/// Returns the entry that replaces `pte`.
fn aged<P: Platform>(platform: &P, what: Aging, level: Level, pte: Pte<P::Format>) -> Pte<P::Format> {
    let Kind::Leaf { pfn, flags } = pte.kind(level) else { return pte };
    if flags.contains(PteFlags::SPECIAL) || platform.frame(pfn).hugetlb().is_some() {
        return pte;
    }
    let lost = match what {
        Aging::Accessed => PteFlags::ACCESSED,
        Aging::Cold(old) if platform.frame(pfn).maps() == 1 => {
            (0..level.frames()).for_each(|n| make_old(platform, pfn.add(n), &old));
            PteFlags::ACCESSED
        }
        Aging::LazyFree(old) if free_lazily(platform, pfn, level) => {
            (0..level.frames()).for_each(|n| make_old(platform, pfn.add(n), &old));
            PteFlags::ACCESSED | PteFlags::DIRTY
        }
        Aging::Cold(_) | Aging::LazyFree(_) => return pte,
    };
    pte.with_flags(level, flags - lost)
}

/// Gives a mapped page an old age. The lock of the entry's table is held.
fn make_old<P: Platform>(platform: &P, pfn: Pfn, old: &OldAges) {
    let frame = platform.frame(pfn);
    frame.make_old(old.of(frame.kind()));
}

/// Records that the contents of the frames of an entry are not needed. Returns false and records nothing if
/// the contents are needed.
fn free_lazily<P: Platform>(platform: &P, pfn: Pfn, level: Level) -> bool {
    let first = platform.frame(pfn);
    let is_shared = first.maps() != 1 && (level != Level::Pte || first.is_dirty());
    // Swap entries of other spaces may need a page in the swap cache. It does not enter the cache while this
    // entry maps it.
    if is_shared || !first.is_anon() || first.is_in_cache() {
        return false;
    }
    (0..level.frames()).for_each(|n| platform.frame(pfn.add(n)).free_lazily());
    true
}

impl<P: Platform, S: StaleTranslations, const SPLIT: bool> Visitor<P::Format, P>
    for AgingVisitor<'_, P, S, SPLIT>
{
    const LARGE: LargeLeafPolicy = if SPLIT { LargeLeafPolicy::SplitPart } else { LargeLeafPolicy::Visit };

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let (platform, what) = (self.platform, self.what);
        table.change_each(range, self.stale, |_, pte| aged(platform, what, Level::Pte, pte));
        ControlFlow::Continue(())
    }

    fn large(&mut self, mut leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let (platform, what, level) = (self.platform, self.what, leaf.level());
        if range != VaRange::entry(range.start(), level) {
            let Kind::Leaf { pfn, .. } = leaf.kind() else { return ControlFlow::Continue(()) };
            if platform.frame(pfn).maps() != 1 {
                return ControlFlow::Continue(());
            }
            self.edge = Some(range);
            return ControlFlow::Break(());
        }
        leaf.change(self.stale, |pte| aged(platform, what, level, pte));
        ControlFlow::Continue(())
    }
}
