//! What a VMA of huge pages has besides: the hugetlb VMA lock, and its reservations.

use super::reserves::Reserves;
use crate::{
    counted::{Counted, Shared},
    platform::Platform,
    rmap::tree::{IMmap, RmapWriteGuard},
};
use freehold_sync::{
    Rank, RwSem,
    atomic::{AtomicBool, Ordering::Relaxed},
    stats::LockStats,
};

/// What a VMA of huge pages has besides, counted, so that a truncation can wait for its lock without any
/// other.
pub(crate) struct HugetlbVma<P: Platform> {
    /// The hugetlb VMA lock: see the [module](super).
    pub(crate) lock: RwSem<P>,
    /// Whether tables may be shared with this VMA. Cleared under i_mmap exclusively: for a time by the holder
    /// of `lock` for writing, or of the VMA's own lock for writing, which also sets it again; for good by the
    /// call that has detached the VMA.
    pub(crate) sharing_allowed: AtomicBool,
    /// Of a private VMA that mmap made, not fork. Fixed.
    reserves: Option<Counted<Reserves>>,
    /// Its reservations are another VMA's: mremap moved it. Written with the mmap lock for writing.
    moved: AtomicBool,
    /// The owner of the reservations took a page away that both had, for want of another: accesses to what
    /// is missing fail. Written under the page's fault mutex.
    resv_unmapped: AtomicBool,
}

impl<P: Platform> Shared for HugetlbVma<P> {}

impl<P: Platform> HugetlbVma<P> {
    pub fn new(reserves: Option<Counted<Reserves>>, stats: Option<Counted<LockStats<P>>>) -> Self {
        let lock = match stats {
            Some(stats) => RwSem::with_stats(Rank::HugetlbVma, stats),
            None => RwSem::new(Rank::HugetlbVma),
        };
        let no = || AtomicBool::new(false);
        HugetlbVma {
            lock,
            sharing_allowed: AtomicBool::new(true),
            reserves,
            moved: no(),
            resv_unmapped: no(),
        }
    }

    /// What its pages are taken from first.
    pub fn reserves(&self) -> Option<&Counted<Reserves>> {
        self.reserves.as_ref()
    }

    /// The reserves, if their rest is this VMA's to give back.
    pub fn own_reservations(&self) -> Option<&Counted<Reserves>> {
        // Relaxed, here and below: ordered by the locks that guard the fields.
        self.reserves().filter(|_| !self.moved.load(Relaxed))
    }

    /// mremap has given the reserves to another VMA.
    pub fn transfer_reservation(&self) {
        self.moved.store(true, Relaxed);
    }

    /// No table is shared with this VMA any more. It is detached: no fault is under way in it, and nobody has
    /// [`ClosedTables`] of it.
    pub fn close(&self, _edit: &RmapWriteGuard<'_, P, IMmap>) {
        // Relaxed: readers have the lock that we hold.
        self.sharing_allowed.store(false, Relaxed);
    }

    /// See the field.
    pub fn is_resv_unmapped(&self) -> bool {
        self.resv_unmapped.load(Relaxed)
    }

    /// See the field.
    pub fn set_resv_unmapped(&self) {
        self.resv_unmapped.store(true, Relaxed);
    }
}
