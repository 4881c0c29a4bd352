//! Changing the rights of entries, for mprotect. `write_protect.rs` changes rights for a userfaultfd,
//! `clean.rs` for the write-back of files, and `copy_on_write.rs` for a single store.
//!
//! Entries change in place under the lock of their table, so no task sees an entry empty. A change that
//! removes rights needs a gather, which flushes. An entry without the right to write gets this right only if
//! its frame is anonymous and no other address space can reach it. All other stores fault first: a store
//! without a fault would reach a page that another space sees, or a file that was not notified.
//! `lab/freehold-machine/tests/shuttle_engine/mprotect.rs` explores changes of rights concurrent with faults.

use crate::{PAGE_SIZE, Pfn, UserRange, VmGather, VmSpace, platform::Platform};
use core::ops::ControlFlow;
use freehold_pagetable::{
    Kind, LargeLeafPolicy, LeafGuard, Level, NotCached, Pte, PteFlags, PteGuard, StaleTranslations, VaRange,
    Visitor,
};

/// The rights that entries get.
#[derive(Clone, Copy, Debug)]
pub struct Protect {
    /// All rights except the right to write.
    pub rights: PteFlags,
    /// Stores are allowed. An entry gets the right to write if the entry already has this right, or if a
    /// store may go directly to the frame. Otherwise the first store faults, and the fault decides whether to
    /// grant the right.
    pub write: bool,
    /// Stores reach a file, which must be notified of the first store.
    pub shared: bool,
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Changes every entry of `range` in place. Allocates nothing: the caller has split the huge pages at the
    /// edges.
    ///
    /// Without a gather, `change` may only add rights. A TLB may then hold an entry with fewer rights, which
    /// costs at most one fault.
    pub fn protect(&self, range: UserRange, change: Protect, gather: Option<&mut VmGather<'_, P, 1>>) {
        let (platform, range) = (self.platform(), range.va());
        let change = Protect { rights: change.rights & (RIGHTS - PteFlags::WRITE), ..change };
        let walked = match gather {
            Some(stale) => self.walk(range, &mut Changer { platform, change, stale }),
            None => self.walk(range, &mut Changer { platform, change, stale: &mut NotCached }),
        };
        debug_assert!(walked.is_ok(), "changing entries in place ran out of memory");
    }
}

impl<P: Platform, S: StaleTranslations> Changer<'_, P, S> {
    // This function is not inlined, so that the variables of the walk take no registers from the loop over
    // the pages.
    /// Changes the entries of `range` in one table.
    #[inline(never)]
    fn pages(
        &mut self,
        mut table: PteGuard<'_, P::Format, P>,
        range: VaRange,
        change: impl Fn(Pte<P::Format>) -> Pte<P::Format>,
    ) {
        table.change_each(range, self.stale, |_, pte| change(pte));
    }
}

/// A visitor that gives every leaf the requested rights.
struct Changer<'c, P, S> {
    platform: &'c P,
    change: Protect,
    stale: &'c mut S,
}

/// The flags of an entry that follow from its VMA. All other flags are kept.
const RIGHTS: PteFlags = PteFlags::WRITE
    .union(PteFlags::USER)
    .union(PteFlags::EXEC)
    .union(PteFlags::NO_ACCESS)
    .union(PteFlags::PKEY);

/// Returns `pte` with the requested rights.
// Inlined because the lowest level needs only part of the code.
#[inline(always)]
fn with_rights<P: Platform>(
    platform: &P,
    change: Protect,
    level: Level,
    pte: Pte<P::Format>,
) -> Pte<P::Format> {
    let Kind::Leaf { pfn, flags: old } = pte.kind(level) else { return pte };
    let mut new = (old - RIGHTS) | change.rights;
    let write = change.write
        && (old.contains(PteFlags::WRITE)
            || records(platform, pfn, level).all(|pfn| may_grant_write(platform, change, pfn, old)));
    new.set(PteFlags::WRITE, write);
    pte.with_flags(level, new)
}

/// Returns the frames of a leaf that have their own records. A huge page of a pool has one record, that of
/// its first frame.
#[inline]
fn records<P: Platform>(platform: &P, pfn: Pfn, level: Level) -> impl Iterator<Item = Pfn> {
    let one = level == Level::Pte || platform.frame(pfn).hugetlb().is_some();
    let counted = if one { 1 } else { level.frames() };
    (0..counted).map(move |n| pfn.add(n))
}

/// Returns true if a store may go directly to the frame: no other address space can reach the frame, no
/// userfaultfd waits for the store, and the entry is soft-dirty. Otherwise the first store faults, and the
/// fault decides whether to grant the right.
fn may_grant_write<P: Platform>(platform: &P, change: Protect, pfn: Pfn, entry: PteFlags) -> bool {
    let deciding = PteFlags::SPECIAL | PteFlags::UFFD_WP | PteFlags::SOFT_DIRTY;
    if change.shared || entry & deciding != PteFlags::SOFT_DIRTY {
        return false;
    }
    let frame = platform.frame(pfn);
    frame.is_anon() && frame.is_exclusive()
}

impl<P: Platform, S: StaleTranslations> Visitor<P::Format, P> for Changer<'_, P, S> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    #[inline]
    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let (platform, change) = (self.platform, self.change);
        let with_rights = move |pte| with_rights(platform, change, Level::Pte, pte);
        match range.len() {
            PAGE_SIZE => table.change_filled(range.start(), self.stale, with_rights),
            _ => self.pages(table, range, with_rights),
        }
        ControlFlow::Continue(())
    }

    fn large(&mut self, mut leaf: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        let (platform, change, level) = (self.platform, self.change, leaf.level());
        leaf.change(self.stale, |pte| with_rights(platform, change, level, pte));
        ControlFlow::Continue(())
    }
}
