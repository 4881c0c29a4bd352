//! Faults at an entry that permits the access.
//!
//! | cause of the fault | action |
//! | --- | --- |
//! | another task installed the entry first, or a TLB cached an entry with fewer rights | none: the access is retried |
//! | the entry lacks ACCESSED, or DIRTY for a store, and the hardware leaves these bits to software | the bits are set, under the table's lock |
//!
//! Examples of such hardware are RISC-V with Svade and arm64 without FEAT_HAFDBS. [`Format::HARDWARE_FLAGS`]
//! says which bits the hardware may set, but some kernels learn only at boot whether it does. So the bits are
//! set here on every format. On hardware that sets the bits, a fault finds them missing only in the case of
//! the table's first row. The fault then sets bits that the access is about to set anyway.
//!
//! `resolve` in `mod.rs` and the faults on huge pages of pools call
//! [`present_fault`](AddressSpace::present_fault). The entry was found without the table's lock, so it must
//! be checked again under the lock before bits are set. `tests/fault/software_bits.rs` tests the bits and
//! this check.
//!
//! [`Format`]: crate::platform::Format

use super::outcome::FaultOutcome;
use crate::{VirtAddr, platform::Platform, space::AddressSpace};
use freehold_pagetable::{Access, Kind, Level, PteFlags};

/// Returns the bits that an access sets in its entry.
pub(super) fn bits_of(access: Access) -> PteFlags {
    if access.write { PteFlags::ACCESSED | PteFlags::DIRTY } else { PteFlags::ACCESSED }
}

impl<P: Platform> AddressSpace<P> {
    /// Handles a fault at a leaf of `level` that had these flags at the lookup, and that permits `access`.
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
