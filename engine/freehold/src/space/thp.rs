//! Where a program does without huge pages of anonymous and of shared memory, by a word for all of it
//! (prctl's `PR_SET_THP_DISABLE`).

use super::AddressSpace;
use crate::{
    platform::Platform,
    space::ThpDisable,
    vma::{Vma, flags::VmFlags},
};
use freehold_sync::atomic::Ordering::Relaxed;

impl<P: Platform> AddressSpace<P> {
    /// Where it has no huge pages, and no blocks.
    pub fn thp_disable(&self) -> ThpDisable {
        // Relaxed, here and below: one word, on which nothing else depends; a fault meanwhile comes before or
        // after.
        ThpDisable::of(self.thp_disable.load(Relaxed))
    }

    /// Has none there from now on. Those that are mapped stay.
    ///
    /// # Locks
    ///
    /// None.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.set_thp_disable(ThpDisable::Everywhere);
    /// assert_eq!(space.thp_disable(), ThpDisable::Everywhere);
    /// ```
    pub fn set_thp_disable(&self, disable: ThpDisable) {
        self.thp_disable.store(disable as u32, Relaxed);
    }

    /// Whether a fault in `vma` may not bring a huge page because of it.
    pub(crate) fn disables_thp(&self, vma: &Vma<P>) -> bool {
        match self.thp_disable() {
            ThpDisable::Nowhere => false,
            ThpDisable::Everywhere => true,
            ThpDisable::UnlessAdvised => !vma.flags().contains(VmFlags::HUGEPAGE),
        }
    }
}
