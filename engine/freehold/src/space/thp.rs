//! The setting that disables transparent huge pages for a whole program (prctl's `PR_SET_THP_DISABLE`). The
//! setting applies to anonymous memory and to shared memory.
//!
//! `state/thp.rs` has the values. Faults (`fault/huge.rs`, `fault/mthp.rs`, `fault/shmem_mthp.rs`) call
//! `disables_thp` before they install a huge page or a block, and MADV_COLLAPSE (`call/madvise/collapse.rs`)
//! reads the setting itself. The settings of the engine and the flags of the VMA must also allow the page.
//! The tests in `engine/freehold/tests/huge` fail if a fault ignores the setting.

use super::AddressSpace;
use crate::{
    platform::Platform,
    space::ThpDisable,
    vma::{Vma, flags::VmFlags},
};
use freehold_sync::atomic::Ordering::Relaxed;

impl<P: Platform> AddressSpace<P> {
    /// Returns the part of memory in which transparent huge pages and blocks (multi-size huge pages) are
    /// disabled.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::{AddressSpace, SpaceConfig, ThpDisable}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let thp_disable = ThpDisable::UnlessAdvised;
    /// let space = AddressSpace::new(&engine, &SpaceConfig::new().thp_disable(thp_disable)).unwrap();
    /// assert_eq!(space.fork().unwrap().thp_disable(), thp_disable);
    /// ```
    pub fn thp_disable(&self) -> ThpDisable {
        // Relaxed, here and below: a single word on which no other data depends. A concurrent fault is
        // ordered before or after the change.
        ThpDisable::of(self.thp_disable.load(Relaxed))
    }

    /// Sets the part of memory in which transparent huge pages are disabled from now on. Huge pages that are
    /// already mapped stay.
    ///
    /// # Locks
    ///
    /// None.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.set_thp_disable(ThpDisable::Everywhere);
    /// assert_eq!(space.thp_disable(), ThpDisable::Everywhere);
    /// ```
    pub fn set_thp_disable(&self, disable: ThpDisable) {
        self.thp_disable.store(disable as u32, Relaxed);
    }

    /// Returns true if this setting keeps a fault in `vma` from mapping a huge page.
    pub(crate) fn disables_thp(&self, vma: &Vma<P>) -> bool {
        match self.thp_disable() {
            ThpDisable::Nowhere => false,
            ThpDisable::Everywhere => true,
            ThpDisable::UnlessAdvised => !vma.flags().contains(VmFlags::HUGEPAGE),
        }
    }
}
