//! Forgetting that pages were used or written: MADV_FREE, MADV_COLD, and what is written to clear_refs.

use crate::{UserRange, VmGather, VmSpace, platform::Platform};
use core::ops::ControlFlow;
use freehold_pagetable::{
    Kind, LargeLeafPolicy, LeafGuard, Level, NotCached, Pfn, Pte, PteFlags, PteGuard, StaleTranslations,
    VaRange, Visitor,
};

/// Facts about a page that are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aging {
    /// That it was used.
    Accessed,
    /// That it was used, if one entry alone maps it.
    AccessedIfUnshared,
    /// The contents, of anonymous memory: the page counts as unused and clean. A page that several entries
    /// map and whose record is dirty stays as it is, as on Linux.
    LazyFree,
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Forgets `what` of every page in `range`. Pages keep their contents and their rights.
    ///
    /// Flushes, so that an access after this call returns is noticed. Only [`Aging::AccessedIfUnshared`], a
    /// hint, does not: see `Engine::referenced`.
    ///
    /// A huge page at an edge of the range is split if one entry maps it, and otherwise stays as it is, as on
    /// Linux. One that cannot be split, for lack of memory, ends the walk: what is forgotten here is a hint.
    pub fn age(&self, range: UserRange, what: Aging) {
        if what == Aging::AccessedIfUnshared {
            return self.age_in(range, what, &mut NotCached);
        }
        let mut gather: VmGather<'_, P, 1> = self.gather();
        self.age_in(range, what, &mut gather);
        gather.finish();
    }

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

/// With `SPLIT` huge pages of which the range covers a part are split. Without, the walk ends at one that one
/// entry maps.
struct AgingVisitor<'f, P, S, const SPLIT: bool> {
    platform: &'f P,
    what: Aging,
    stale: &'f mut S,
    /// The part of the huge page at which the walk ended.
    edge: Option<VaRange>,
}

/// Returns the entry that takes the place of `pte`.
fn aged<P: Platform>(platform: &P, what: Aging, level: Level, pte: Pte<P::Format>) -> Pte<P::Format> {
    let Kind::Leaf { pfn, flags } = pte.kind(level) else { return pte };
    if flags.contains(PteFlags::SPECIAL) || platform.frame(pfn).hugetlb().is_some() {
        return pte;
    }
    let lost = match what {
        Aging::Accessed => PteFlags::ACCESSED,
        Aging::AccessedIfUnshared if platform.frame(pfn).maps() == 1 => PteFlags::ACCESSED,
        Aging::LazyFree if free_lazily(platform, pfn, level) => PteFlags::ACCESSED | PteFlags::DIRTY,
        Aging::AccessedIfUnshared | Aging::LazyFree => return pte,
    };
    pte.with_flags(level, flags - lost)
}

/// Notes of the frames of an entry that their contents are not needed. Returns false if they are.
fn free_lazily<P: Platform>(platform: &P, pfn: Pfn, level: Level) -> bool {
    let first = platform.frame(pfn);
    let is_shared = first.maps() != 1 && (level != Level::Pte || first.is_dirty());
    if is_shared || !first.is_anon() {
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
