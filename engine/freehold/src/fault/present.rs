//! Faults at an entry that permits the access.
//!
//! | why the hardware faulted | what the fault does |
//! | --- | --- |
//! | another task installed the entry first, or a TLB remembered an entry with fewer rights | nothing: the access is tried again |
//! | the entry lacks ACCESSED, or DIRTY at a store, and the hardware leaves these bits to software | it sets them, under the table's lock |
//!
//! Examples of the second are RISC-V with Svade and arm64 without FEAT_HAFDBS. A [`Format`] does not say
//! which hardware it is: some kernels know that only when they boot. Where the hardware sets the bits, a
//! fault finds them missing in the first case only, and sets what the access is about to set.
//!
//! [`Format`]: crate::platform::Format

use super::outcome::FaultOutcome;
use crate::{VirtAddr, platform::Platform, space::AddressSpace};
use freehold_pagetable::{Access, Kind, Level, PteFlags};

/// The bits that an access sets in the entry it goes through.
pub(super) fn bits_of(access: Access) -> PteFlags {
    if access.write { PteFlags::ACCESSED | PteFlags::DIRTY } else { PteFlags::ACCESSED }
}

impl<P: Platform> AddressSpace<P> {
    /// A fault at a leaf of `level` that had these flags a moment ago, and permits `access`.
    ///
    /// # Locks
    ///
    /// The caller keeps the leaf's table from being unlinked. Takes the table's lock.
    #[inline(never)]
    pub(crate) fn present_fault(
        &self,
        address: VirtAddr,
        level: Level,
        flags: PteFlags,
        access: Access,
    ) -> FaultOutcome<P> {
        if flags.contains(bits_of(access)) {
            return FaultOutcome::Done;
        }
        let Some(mut leaf) = self.vm.lock_leaf(address, level) else { return FaultOutcome::Retry };
        match leaf.kind() {
            Kind::Leaf { flags, .. } if !access.write || flags.contains(PteFlags::WRITE) => {
                leaf.grant(bits_of(access));
                FaultOutcome::Done
            }
            Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => FaultOutcome::Retry,
        }
    }
}
