//! Stores to pages that are mapped without the right to write: the entry gets that right, or a copy replaces
//! the page.
//!
//! `fault/cow.rs` of `freehold` decides what a store needs and allocates and fills the copy. This file does
//! the steps on one entry: examine it, grant the right, or replace it. Each step holds the lock of the
//! entry's table and examines the entry again, because the entry may have changed since the caller read it. A
//! replaced entry is flushed before the new entry is set, under the same hold of the lock (hazard C-21).
//! `tests/fork/held_pages.rs` of `freehold` tests this.

use crate::{Pfn, RssKind, VirtAddr, VmSpace, platform::Platform};
use freehold_pagetable::{Kind, Level, Pte, PteFlags, PteGuard, PteTable, VaRange};

/// A page that is mapped without the right to write.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct ReadOnly {
    /// The frame of the page.
    pub pfn: Pfn,
    /// True if the frame is not counted: the page of zeroes, or a frame that the engine does not own.
    pub special: bool,
}

/// The result of looking at the entry for a store.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum StoreOutcome {
    /// The entry allows the store.
    Allowed,
    /// The entry has changed since it was read, a userfaultfd has write-protected the page, or the table was
    /// reclaimed.
    Changed,
    /// The page has to be copied first. The caller has a reference to the page if it is counted.
    Copy(ReadOnly),
}

/// Examines the entry for a store.
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
    /// Gives the entry `rights`, for a store that goes to the page of a file, if `may_grant` returns true.
    /// Then calls `granted`. Both are called under the lock of the table. Never returns
    /// [`StoreOutcome::Copy`]. Does not flush: a TLB that holds the old rights causes at most one more fault.
    pub fn allow_shared_store(
        &self,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        rights: PteFlags,
        may_grant: impl FnOnce() -> bool,
        granted: impl FnOnce(),
    ) -> StoreOutcome {
        let Some(mut guard) = table.lock_linked() else { return StoreOutcome::Changed };
        let found = find::<P>(&guard, address);
        let StoreOutcome::Copy(page) = found else { return found };
        if !may_grant() {
            return StoreOutcome::Changed;
        }
        if !page.special {
            self.platform().frame(page.pfn).set_dirty();
        }
        guard.grant(address, rights);
        granted();
        StoreOutcome::Allowed
    }

    /// Gives the entry `rights` if only this space has the frame, for a store to a private page.
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

    /// Returns true if a store may go directly to a frame that an entry of this space maps. The caller holds
    /// the lock of that entry's table.
    #[inline]
    pub fn may_store_to(&self, pfn: Pfn) -> bool {
        let frame = self.platform().frame(pfn);
        // The only reference is that of this entry. So no other task has the frame, and a task can reach the
        // frame only through this table.
        frame.is_anon() && (frame.is_exclusive() || frame.refs() == 1)
    }

    /// Replaces the entry for `old` by `new`, the entry of a page of anonymous memory. Returns false if the
    /// entry for `old` is no longer there.
    pub fn replace_by_copy(
        &self,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        old: ReadOnly,
        new: Pte<P::Format>,
    ) -> bool {
        // An exclusive gather is enough: the lock is released only after the flush and the new entry, so no
        // other gather sees the entry empty.
        let mut gather = self.exclusive_gather::<1>(VaRange::entry(address, Level::Pte));
        let Some(mut guard) = table.lock_linked() else { return false };
        // The caller's reference keeps the frame from becoming another page, so an equal number means the
        // same page. Any other entry, writable or not, was installed by another task. The caller then looks
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
