//! Markers in place of the entries of an anonymous page that is being moved to another frame.
//!
//! `rmap/migrate.rs` of `freehold` holds the frame's lock, replaces every entry of the page by a marker, and
//! copies the page. It then replaces the markers by entries of the new frame, or of the old frame if the move
//! fails. A fault that finds a marker waits for the frame's lock. The page counts as resident during the
//! move, so a task that removes a marker also removes the page from the counts. Fork copies markers
//! ([`MigrationEntry::shared`]). `tests/rmap/moves.rs` of `freehold` tests moves.

use crate::{Pfn, VirtAddr, VmGather, VmSpace, platform::Platform};
use freehold_pagetable::{
    Format, Kind, Level, MarkerKind, NotCached, Pte, PteFlags, StaleTranslations, VaRange,
};

/// The part of a replaced entry that the marker keeps.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MigrationEntry {
    /// The frame that the page leaves.
    pub pfn: Pfn,
    /// The entry allowed stores.
    pub write: bool,
    /// Only this address space could reach the frame. During the move, the marker keeps this flag in place of
    /// the frame's record, because fork changes the flag in the marker.
    pub exclusive: bool,
    /// A userfaultfd has write-protected the page.
    pub uffd_wp: bool,
    /// The page was written since the soft-dirty bits were last cleared.
    pub soft_dirty: bool,
}

impl MigrationEntry {
    /// Returns the marker as an entry.
    pub fn entry<F: Format>(self) -> Pte<F> {
        let bits = [self.write, self.exclusive, self.uffd_wp, self.soft_dirty];
        let bits = bits.iter().rev().fold(0, |bits, bit| bits << 1 | u64::from(*bit));
        Pte::marker(MarkerKind::Migration, self.pfn.get() << 4 | bits)
    }

    /// Returns the marker that has this payload.
    #[inline]
    pub fn of(payload: u64) -> Self {
        let bit = |n: u64| payload >> n & 1 != 0;
        MigrationEntry {
            pfn: Pfn::new(payload >> 4),
            write: bit(0),
            exclusive: bit(1),
            uffd_wp: bit(2),
            soft_dirty: bit(3),
        }
    }

    /// Returns the marker for a forked child. The same marker also replaces the parent's marker.
    #[inline]
    pub fn shared(self) -> Self {
        MigrationEntry { write: false, exclusive: false, ..self }
    }
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Replaces the entry at `address` by a marker if the entry maps `pfn`. When this returns, no processor
    /// uses the old entry.
    pub fn set_migration_entry(&self, address: VirtAddr, level: Level, pfn: Pfn) {
        let mut gather: VmGather<'_, _, 1> = self.gather(VaRange::entry(address, level));
        self.gather_migration_entry(address, level, pfn, &mut gather);
        gather.finish();
    }

    /// Does [`set_migration_entry`](Self::set_migration_entry), but leaves the flush to `gather`. Until then,
    /// processors may use the old entry.
    pub fn gather_migration_entry(
        &self,
        address: VirtAddr,
        level: Level,
        pfn: Pfn,
        gather: &mut impl StaleTranslations,
    ) {
        self.with_entry(address, level, pfn, |leaf| {
            let flags = leaf.pte().flags();
            let frame = self.platform().frame(pfn);
            if frame.must_copy_on_fork() {
                // The page may be pinned and cannot move, and a marker would let fork share it.
                return;
            }
            let (write, exclusive) = (flags.contains(PteFlags::WRITE), frame.is_exclusive());
            let uffd_wp = flags.contains(PteFlags::UFFD_WP);
            let soft_dirty = flags.contains(PteFlags::SOFT_DIRTY);
            let moving = MigrationEntry { pfn, write, exclusive, uffd_wp, soft_dirty };
            let old = leaf.replace(moving.entry(), gather);
            if old.flags().contains(PteFlags::DIRTY) {
                // The new entry may be clean. Without this mark, a page that was freed lazily and written
                // afterwards would count as discardable.
                frame.set_dirty();
            }
            if exclusive {
                frame.clear_exclusive();
            }
            frame.sub_map();
            // This is not the last reference: the caller keeps the page. The page still counts as resident.
            frame.put();
        });
    }

    /// Replaces a marker for `pfn` by an entry for the frame `to`. `rights` is called under the table's lock,
    /// and returns the rights of the entry and whether the entry may allow stores.
    pub fn end_migration_entry(
        &self,
        rights: impl FnOnce() -> (PteFlags, bool),
        address: VirtAddr,
        level: Level,
        pfn: Pfn,
        to: Pfn,
    ) {
        let Some(mut leaf) = self.lock_leaf(address, level) else { return };
        let Kind::Marker { kind: MarkerKind::Migration, payload } = leaf.kind() else { return };
        let moving = MigrationEntry::of(payload);
        if moving.pfn != pfn {
            return;
        }
        let frame = self.platform().frame(to);
        frame.get();
        frame.add_map();
        if moving.exclusive {
            frame.set_exclusive();
        }
        let (mut flags, may_write) = rights();
        if moving.write && may_write {
            flags |= PteFlags::WRITE | PteFlags::DIRTY;
        }
        flags.set(PteFlags::UFFD_WP, moving.uffd_wp);
        flags.set(PteFlags::SOFT_DIRTY, moving.soft_dirty);
        // No TLB caches a marker.
        leaf.replace(Pte::leaf(level, to, flags), &mut NotCached);
    }
}
