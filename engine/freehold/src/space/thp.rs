//! Where a program does without huge pages of anonymous and of shared memory, by a word for all of it
//! (prctl's `PR_SET_THP_DISABLE`).

use super::AddressSpace;
use crate::{
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use freehold_sync::atomic::Ordering::Relaxed;

/// Where a program has no huge pages, with the numbers that `PR_GET_THP_DISABLE` returns. A forked child has
/// it, too, and so has an address space that an exec makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThpDisable {
    /// As its VMAs say.
    #[default]
    Nowhere = 0,
    /// In all of its memory.
    Everywhere = 1,
    /// Where nobody asked for them, by MADV_HUGEPAGE or MADV_COLLAPSE (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux
    /// 6.18).
    UnlessAdvised = 3,
}

impl ThpDisable {
    /// What the second and third arguments of `PR_SET_THP_DISABLE` ask for. `None`: they make no sense.
    pub fn from_raw(on: u64, flags: u64) -> Option<Self> {
        match (on, flags) {
            (0, 0) => Some(ThpDisable::Nowhere),
            (1.., 0) => Some(ThpDisable::Everywhere),
            (1.., 2) => Some(ThpDisable::UnlessAdvised),
            _ => None,
        }
    }

    /// What [`AddressSpace::thp_disable`] has stored.
    fn of(word: u32) -> Self {
        match word {
            0 => ThpDisable::Nowhere,
            3 => ThpDisable::UnlessAdvised,
            _ => ThpDisable::Everywhere,
        }
    }
}

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
