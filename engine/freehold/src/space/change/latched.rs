//! Simple changes of VMAs by a range writer, made with one leaf of the tree latched instead of a claim.
//!
//! A claim is two steps: it marks the entries, and later publishes the new entries. If nothing in between can
//! wait, one step is enough, because no other writer changes a latched leaf. Faults and lookups still read
//! the tree; they find the VMAs write-locked. Code that runs with the leaf latched must not allocate from
//! the heap, wait, wake a task, flush a TLB or call a driver.
//!
//! | the change is simple only if | otherwise the change could |
//! | --- | --- |
//! | each VMA is anonymous memory without an anon_vma | wait for a lock of the reverse map, or call a driver |
//! | no VMA is locked in memory, sealed, of huge pages, or watched by a userfaultfd | need memory for pages or notices |
//! | no VMA has a reader | wait for the reader |
//! | the range is small and no page is mapped in it | leave revoked rights in TLBs when the latch ends |
//! | no listener is registered | wait for a device that must hear about revoked rights |
//! | this CPU caches free VMAs | use the heap. VMAs that the change removes are freed after the latch |
//!
//! A change of attributes uses the write set (`change_or_claim`). New bounds of one VMA do not, because the
//! tree stores them itself (`resize_latched`): mmap extends a VMA, and munmap cuts an end off. New bounds
//! need no free VMA, and no page may be mapped in the part that is cut off.
//!
//! `AddressSpace::with_write_range` (`claim.rs`), mmap (`call/mmap/store.rs`) and munmap
//! (`unmap_unclaimed.rs`) call this file. `ranges` (`shuttle_engine`) runs simple changes concurrently with
//! all others. With debug assertions, the lock order finds a wait for a lock, and the test machine finds
//! other waits, flushes and uses of the heap.

use super::unmap::is_small;
use crate::{
    platform::Platform,
    space::locking::WriteGuard,
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::VaRange;
use freehold_range::{ClaimError, Entry};
use freehold_vmspace::{PageIndex, UserRange};

/// Maximum number of VMAs that a change adds: one for each end of its range.
const MAX_VMAS: usize = 2;

impl<P: Platform> WriteGuard<'_, P> {
    /// Claims `range` like [`claim_range`](Self::claim_range). If the change is simple, also calls `change`
    /// and publishes the result in the same step. Returns the value of `change`, or `None` if `change` was
    /// not called and the range is claimed.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`]. Nothing is claimed then.
    #[inline]
    pub(crate) fn change_or_claim<T>(
        &self,
        range: UserRange,
        change: impl FnOnce(&Self) -> T,
    ) -> Result<Option<T>, ClaimError> {
        self.claims().change_or_claim(range.start(), range.end(), || {
            let done = self.lock_simple(range).then(|| change(self));
            // Another writer may have the VMAs when the latch ends.
            self.locked.unlock_all();
            done
        })
    }

    /// Gives a VMA new bounds and adds `flags`, if that is simple and `allowed` returns true. The caller has
    /// latched the leaf of the VMA, and stores the new bounds of its entry before the latch ends. Returns
    /// true if the bounds are changed. Never waits.
    #[inline]
    pub(crate) fn resize_latched(
        &self,
        vma: &Vma<P>,
        (range, pgoff): (UserRange, PageIndex),
        flags: VmFlags,
        allowed: impl FnOnce() -> bool,
    ) -> bool {
        let done = self.try_lock_simple(vma) && allowed();
        if done {
            let right = self.lock_vma(vma);
            right.set_flags(vma.flags() | flags);
            right.set_bounds(range, pgoff);
        }
        // Another writer may have the VMA when the latch ends.
        self.locked.unlock_all();
        done
    }

    /// Write-locks a VMA, if a change of its attributes or bounds needs no other lock. Never waits.
    #[inline]
    fn try_lock_simple(&self, vma: &Vma<P>) -> bool {
        is_simple(vma) && self.locked.try_lock_unread(vma, &self.right) && !vma.anon().is_some()
    }

    /// Write-locks the VMAs of the write set, if a change of `range` is simple. Never waits.
    #[inline]
    fn lock_simple(&self, range: UserRange) -> bool {
        let lock = |entry: &Entry| self.slot(entry).vma().is_some_and(|vma| self.try_lock_simple(vma));
        is_small(range)
            && !self.space.vm.has_listeners()
            && self.space.engine.slab.caches(MAX_VMAS)
            && self.claims().all_claimed(lock)
            && self.space.vm.is_settled(range, true, || VaRange::of(0, 0))
    }
}

/// Returns true if a change of the VMA's attributes or bounds needs no lock but the VMA's own.
#[inline]
fn is_simple<P: Platform>(vma: &Vma<P>) -> bool {
    let special = VmFlags::LOCK_MASK | VmFlags::SEALED | VmFlags::HUGETLB | VmFlags::SHARED;
    vma.is_anonymous() && vma.uffd().is_none() && !vma.flags().intersects(special)
}
