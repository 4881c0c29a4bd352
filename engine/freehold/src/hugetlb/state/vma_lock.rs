//! The additional state of a VMA of huge pages ([`HugetlbVma`]): the hugetlb VMA lock, the flag that allows
//! sharing of page tables, and the reservations.
//!
//! `hugetlb_part` (`hugetlb/pools.rs`) creates the state with the VMA. [`hugetlb`](crate::hugetlb) describes
//! the lock, `sharing.rs` (in the folder above) describes the flag, and `reserves.rs` describes the
//! reservations. Each field has its own rule for writers; a flag must not be changed without the lock that
//! its documentation names.

use super::reserves::Reserves;
use crate::{
    counted::{Counted, Shared},
    platform::Platform,
    rmap::tree::{IMmap, RmapWriteGuard},
};
use freehold_sync::{
    Rank, RwSem,
    atomic::{AtomicBool, Ordering::Relaxed},
    publish::ActiveCount,
    stats::LockStats,
};

/// The additional state of a VMA of huge pages. Reference-counted, so that a truncation can wait for the
/// hugetlb VMA lock without holding another lock.
pub(crate) struct HugetlbVma<P: Platform> {
    /// The hugetlb VMA lock; [`hugetlb`](crate::hugetlb) describes its use.
    pub(crate) lock: RwSem<P>,
    /// Number of calls that have closed the VMA: if it is not 0, no table is shared with the VMA. Incremented
    /// under i_mmap held exclusively, by a task that holds `lock` or the VMA's own lock for writing. The call
    /// that detaches the VMA closes it permanently.
    pub(crate) closers: ActiveCount,
    /// Reservations of a private VMA that mmap, and not fork, has created. Never changes.
    reserves: Option<Counted<Reserves>>,
    /// True if mremap has passed the reservations on to another VMA. Written with the mmap lock held for
    /// writing.
    moved: AtomicBool,
    /// True if the owner of the reservations has taken a shared page from this VMA because the pool had no
    /// other page. Accesses to absent pages then fail. Written under the page's fault mutex.
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
        HugetlbVma { lock, closers: ActiveCount::new(), reserves, moved: no(), resv_unmapped: no() }
    }

    /// Returns the reservations that the VMA's pages use first.
    pub fn reserves(&self) -> Option<&Counted<Reserves>> {
        self.reserves.as_ref()
    }

    /// Returns the reservations, if this VMA must release the unused ones.
    pub fn own_reservations(&self) -> Option<&Counted<Reserves>> {
        // Relaxed, here and below: the locks that guard the fields order the accesses.
        self.reserves().filter(|_| !self.moved.load(Relaxed))
    }

    /// Records that mremap has passed the reservations on to another VMA.
    pub fn transfer_reservation(&self) {
        self.moved.store(true, Relaxed);
    }

    /// Ends sharing of tables with this VMA permanently. The VMA is detached: no fault is running in it, and
    /// no task holds [`ClosedTables`](crate::hugetlb::sharing::ClosedTables) of it.
    pub fn close(&self, _edit: &RmapWriteGuard<'_, P, IMmap>) {
        // Readers hold the i_mmap lock for reading, and this task holds it for writing.
        self.closers.begin();
    }

    /// Returns the field `resv_unmapped`.
    pub fn is_resv_unmapped(&self) -> bool {
        self.resv_unmapped.load(Relaxed)
    }

    /// Sets the field `resv_unmapped`.
    pub fn set_resv_unmapped(&self) {
        self.resv_unmapped.store(true, Relaxed);
    }
}
