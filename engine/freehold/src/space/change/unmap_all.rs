//! Removal of all mappings of an address space, by the steps of `unmap.rs`. No VMA is split, so prepare
//! cannot fail.
//!
//! exec and exit (`call/exit.rs`) call this file. `exec_zaps_without_the_lock` in `tests/munmap/callers.rs`
//! checks which locks are held, and `c10_exec_and_exit_succeed_without_memory` in `tests/every_call/oom.rs`
//! lets memory run out.

use super::unmap::{Detached, Gathered};
use crate::{
    platform::Platform,
    space::{AddressSpace, design::MmapHold, locking::WriteGuard},
};
use freehold_vmspace::UserRange;

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Unmaps everything in an address space to which no task has a reference. Releases the lock before
    /// pages are unmapped, without a closing reservation: no task is left that could map something. Needs no
    /// memory, so it cannot fail. No range may be closing.
    pub(crate) fn unmap_all_unreferenced(self) {
        let detached = self.gather_all().detach_all();
        drop(self);
        detached.settle(UserRange::ALL.va()).retire();
    }

    /// Unmaps everything and releases the lock, early if the design allows it. Cannot fail: without memory
    /// for the closing reservation, the lock is held until the end. No range may be closing.
    pub(crate) fn unmap_all_unlocking(self) {
        let gathered = self.gather_all();
        let releases = matches!(self.space.locking.unmap.policy().held, MmapHold::Nothing);
        if releases && gathered.totals.vmas != 0 && self.reserve(1).is_ok() {
            let detached = gathered.close(UserRange::new(0, AddressSpace::<P>::TASK_SIZE));
            drop(self);
            return detached.settle_released().retire();
        }
        let unmapped = gathered.detach_all().settle(UserRange::ALL.va());
        drop(self);
        unmapped.retire();
    }

    /// Performs prepare for all VMAs. Cannot fail, because no VMA is split. The range is all of user space:
    /// page tables can be left where there are no VMAs any more.
    fn gather_all(&self) -> Gathered<'_, 's, P> {
        let mut gathered = self.gather_nothing(UserRange::ALL);
        for vma in self.vmas(UserRange::ALL) {
            P::cond_resched();
            gathered.add(vma);
        }
        gathered
    }
}

impl<'s, P: Platform> Gathered<'_, 's, P> {
    /// Performs commit for all VMAs of the space, and leaves the tree empty.
    fn detach_all(self) -> Detached<'s, P> {
        self.guard.clear_tree();
        self.detach(UserRange::ALL)
    }
}
