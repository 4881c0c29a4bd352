//! A store to a page that is mapped without the right to write: the entry gets it, or a copy takes the page's
//! place.

use crate::{Pfn, RssKind, VirtAddr, VmSpace, platform::Platform};
use freehold_pagetable::{Kind, Level, Pte, PteFlags, PteGuard, PteTable};

/// A page that is mapped without the right to write.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct ReadOnly {
    /// Where it is.
    pub pfn: Pfn,
    /// The frame is not counted: the zero page, or one that the engine does not own.
    pub special: bool,
}

/// What a store finds.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum StoreOutcome {
    /// The entry allows it.
    Allowed,
    /// Something else is there, or write-protected by a userfaultfd, since it was looked at; or the table was
    /// reclaimed.
    Changed,
    /// The page has to be copied first. The caller has a reference to it, if it is counted.
    Copy(ReadOnly),
}

/// What the entry says now.
fn find<P: Platform>(guard: &PteGuard<'_, P::Format, P>, address: VirtAddr) -> StoreOutcome {
    match guard.get(address).kind(Level::Pte) {
        Kind::Leaf { flags, .. } if flags.contains(PteFlags::WRITE) => StoreOutcome::Allowed,
        Kind::Leaf { flags, .. } if flags.contains(PteFlags::UFFD_WP) => StoreOutcome::Changed,
        Kind::Leaf { pfn, flags } => {
            StoreOutcome::Copy(ReadOnly { pfn, special: flags.contains(PteFlags::SPECIAL) })
        }
        Kind::None | Kind::Marker { .. } | Kind::Table { .. } => StoreOutcome::Changed,
    }
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// The store goes to the page of a file: the entry gets `rights`. Never says [`StoreOutcome::Copy`]. No
    /// flush: a TLB that remembers the old rights faults once more at most.
    pub fn allow_shared_store(
        &self,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        rights: PteFlags,
    ) -> StoreOutcome {
        let Some(mut guard) = table.lock_linked() else { return StoreOutcome::Changed };
        let found = find::<P>(&guard, address);
        let StoreOutcome::Copy(page) = found else { return found };
        if !page.special {
            self.platform().frame(page.pfn).set_dirty();
        }
        guard.grant(address, rights);
        StoreOutcome::Allowed
    }

    /// The store goes to a private page: the entry gets `rights` if the frame is this space's alone.
    pub fn allow_private_store(
        &self,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        rights: PteFlags,
    ) -> StoreOutcome {
        let Some(mut guard) = table.lock_linked() else { return StoreOutcome::Changed };
        let found = find::<P>(&guard, address);
        let StoreOutcome::Copy(ReadOnly { pfn, special: false }) = found else { return found };
        let frame = self.platform().frame(pfn);
        if self.may_store_to(pfn) {
            if !frame.is_exclusive() {
                frame.set_exclusive();
            }
            guard.grant(address, rights);
            return StoreOutcome::Allowed;
        }
        frame.get();
        found
    }

    /// Whether a store may go straight to a frame that an entry of ours maps, under that entry's table's
    /// lock.
    #[inline]
    pub fn may_store_to(&self, pfn: Pfn) -> bool {
        let frame = self.platform().frame(pfn);
        // One reference is this entry's: nobody else has the frame, and nobody can come to have it but
        // through this table.
        frame.is_anon() && (frame.is_exclusive() || frame.refs() == 1)
    }

    /// Puts `new`, of a page of anonymous memory, in place of the entry for `old`; false: that is not there
    /// any more.
    pub fn replace_by_copy(
        &self,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        old: ReadOnly,
        new: Pte<P::Format>,
    ) -> bool {
        // Nobody else's gather can see the entry empty: the lock is let go of only after the flush and the
        // new entry.
        let mut gather = self.exclusive_gather::<1>();
        let Some(mut guard) = table.lock_linked() else { return false };
        // The reference keeps the frame from becoming another page, so the same number is the same page.
        // Anything else than the old entry, writable or not, is somebody else's work, to be looked at
        // again.
        let same = |now: ReadOnly| now.pfn == old.pfn && now.special == old.special;
        if !matches!(find::<P>(&guard, address), StoreOutcome::Copy(now) if same(now)) {
            drop(guard);
            gather.finish();
            return false;
        }
        guard.take(address, &mut gather);
        gather.flush();
        guard.set(address, new);
        if !old.special {
            let frame = self.platform().frame(old.pfn);
            self.count_page(frame.kind(), -1);
            frame.sub_map();
            gather.add_frame(old.pfn, Level::Pte);
        }
        drop(guard);
        self.count_page(RssKind::Anon, 1);
        gather.finish();
        true
    }
}
