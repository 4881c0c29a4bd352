//! Address spaces whose private pages another task removes: the process was killed and has not ended yet.
//!
//! An empty entry of such memory may stand for lost contents. No fault fills it any more, whether the
//! program, the kernel or another process makes the access: a reader must not take zeroes for data (hazard
//! C-66). Two protections enforce this:
//!
//! - `reaped` is set before the first page is removed. A task that finds an entry empty because of the
//!   removal also finds `reaped` set, and installs nothing (`may_have_lost_pages`).
//! - fork and MADV_COLLAPSE look at `reaped` under the mmap lock for writing, which excludes the removal.
//!
//! `call/reap.rs` removes the pages. A new place that fills empty entries of private memory calls
//! `may_have_lost_pages` after it has found the entry empty. The mutations `reap-faults`, `reap-fork`,
//! `reap-collapse` and `reap-order` remove the protections.

use super::AddressSpace;
use crate::{
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use freehold_sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, Release},
    fence,
};

impl<P: Platform> AddressSpace<P> {
    /// Records that pages will be removed.
    pub(crate) fn begin_reaping(&self) {
        begin(&self.reaped);
    }

    /// Returns true once the removal of pages has begun.
    pub(crate) fn is_reaped(&self) -> bool {
        has_begun(&self.reaped)
    }

    /// Returns true if an empty entry of the VMA may stand for a page that was removed. The caller has found
    /// the entry empty before, by an acquire load, or holds the mmap lock for writing.
    #[inline(always)]
    pub(crate) fn may_have_lost_pages(&self, vma: &Vma<P>) -> bool {
        self.is_reaped() && loses_pages(vma)
    }
}

/// Sets the word. The caller removes entries afterwards.
fn begin(reaped: &AtomicU32) {
    // Relaxed: the fence orders this store before each removal. The fence pairs with the acquire load of an
    // entry that was removed.
    reaped.store(1, Relaxed);
    fence(Release);
}

/// Returns true if the word is set.
fn has_begun(reaped: &AtomicU32) -> bool {
    // Relaxed: the caller has found an empty entry by an acquire load, or holds the mmap lock.
    reaped.load(Relaxed) != 0
}

/// Returns true if the pages of the VMA belong to the process alone.
#[cold]
pub(crate) fn loses_pages<P: Platform>(vma: &Vma<P>) -> bool {
    !vma.flags().intersects(VmFlags::SHARED | VmFlags::HUGETLB | VmFlags::SPECIAL)
}

#[cfg(all(test, loom))]
#[path = "reaped_loom_tests.rs"]
mod loom_tests;
