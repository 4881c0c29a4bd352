//! Entries of a page that is moving: markers keep their places meanwhile.

use crate::{Pfn, VirtAddr, VmGather, VmSpace, platform::Platform};
use freehold_pagetable::{Format, Kind, Level, MarkerKind, NotCached, Pte, PteFlags};

/// What a marker keeps of the entry in whose place it stands.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MigrationEntry {
    /// The frame that the page leaves.
    pub pfn: Pfn,
    /// Stores went to the frame.
    pub write: bool,
    /// Only this address space could reach the frame. It cannot be the frame's own to say meanwhile: fork
    /// changes it here.
    pub exclusive: bool,
    /// A userfaultfd has it write-protected.
    pub uffd_wp: bool,
}

impl MigrationEntry {
    /// It, as an entry.
    pub fn entry<F: Format>(self) -> Pte<F> {
        let bits = u64::from(self.uffd_wp) << 2 | u64::from(self.exclusive) << 1 | u64::from(self.write);
        Pte::marker(MarkerKind::Migration, self.pfn.get() << 3 | bits)
    }

    /// From a marker's payload.
    #[inline]
    pub fn of(payload: u64) -> Self {
        let bit = |n: u64| payload >> n & 1 != 0;
        MigrationEntry { pfn: Pfn::new(payload >> 3), write: bit(0), exclusive: bit(1), uffd_wp: bit(2) }
    }

    /// Its copy in a forked child, and what its original becomes.
    #[inline]
    pub fn shared(self) -> Self {
        MigrationEntry { write: false, exclusive: false, ..self }
    }
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// A marker takes the place of the entry at `address` if that maps `pfn`.
    pub fn set_migration_entry(&self, address: VirtAddr, level: Level, pfn: Pfn) {
        let mut gather: VmGather<'_, _, 1> = self.gather();
        self.with_entry(address, level, pfn, |leaf| {
            let flags = leaf.pte().flags();
            let frame = self.platform().frame(pfn);
            if frame.must_copy_on_fork() {
                // It cannot move, and fork must not come to share it by a marker.
                return;
            }
            let (write, exclusive) = (flags.contains(PteFlags::WRITE), frame.is_exclusive());
            let uffd_wp = flags.contains(PteFlags::UFFD_WP);
            leaf.replace(MigrationEntry { pfn, write, exclusive, uffd_wp }.entry(), &mut gather);
            if exclusive {
                frame.clear_exclusive();
            }
            frame.sub_map();
            // Not the last: the page is kept. It stays resident as far as anybody is told.
            frame.put();
        });
        gather.finish();
    }

    /// An entry of the frame `to` takes the place of a marker for `pfn`. Under the table's lock `rights` says
    /// what it allows, and whether it may allow stores.
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
        // No processor remembers a marker.
        leaf.replace(Pte::leaf(level, to, flags), &mut NotCached);
    }
}
