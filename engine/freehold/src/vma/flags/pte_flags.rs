//! The flags of page-table entries that follow from the flags of a VMA.
//!
//! All code that installs or changes an entry of a VMA computes the flags here: faults, mprotect, fills of a
//! userfaultfd, moves of pages. Write permission is separate, because it also depends on the frame: a private
//! page is writable only if it belongs to this address space alone. If two functions computed the flags
//! differently, a page could get rights that its VMA does not have. A debug assertion in `resolve`
//! (`fault/mod.rs`) detects an entry that denies an access which its VMA permits.

use super::VmFlags;
use freehold_pagetable::PteFlags;

/// Returns the access rights and the protection key of an entry in a VMA. The result never contains write
/// permission, because that also depends on the frame.
pub(crate) fn vma_pte_flags(flags: VmFlags) -> PteFlags {
    let mut rights = PteFlags::USER | PteFlags::ACCESSED;
    rights.set(PteFlags::EXEC, flags.contains(VmFlags::EXEC));
    rights.set(PteFlags::NO_ACCESS, !flags.intersects(VmFlags::ACCESS));
    rights.with_pkey(flags.pkey())
}

/// Flags of an entry for a store that writes directly to its frame.
pub(crate) const WRITTEN: PteFlags =
    PteFlags::WRITE.union(PteFlags::DIRTY).union(PteFlags::SOFT_DIRTY).union(PteFlags::ACCESSED);

/// Returns the flags of an entry for a store that writes to its frame. The entry is not writable if the VMA
/// does not allow stores, because the store is then a forced store of a debugger.
///
/// All code that makes an entry for a store uses this function. A forced store normally copies a present
/// page, but the page may have been removed before the fault; the fault then makes a new entry.
pub(crate) fn written(flags: VmFlags) -> PteFlags {
    if flags.contains(VmFlags::WRITE) { WRITTEN } else { WRITTEN - PteFlags::WRITE }
}
