//! What an entry of a page in a VMA allows.

use super::VmFlags;
use freehold_pagetable::PteFlags;

/// The rights of an entry in a VMA and its protection key, all but the right to write, which depends on the
/// frame.
pub(crate) fn vma_pte_flags(flags: VmFlags) -> PteFlags {
    let mut rights = PteFlags::USER | PteFlags::ACCESSED;
    rights.set(PteFlags::EXEC, flags.contains(VmFlags::EXEC));
    rights.set(PteFlags::NO_ACCESS, !flags.intersects(VmFlags::ACCESS));
    rights.with_pkey(flags.pkey())
}

/// What an entry gets when a store goes straight to its frame.
pub(crate) const WRITTEN: PteFlags = PteFlags::WRITE.union(PteFlags::DIRTY).union(PteFlags::ACCESSED);

/// What an entry gets when a store goes to its frame, in a VMA that may not allow stores to anybody but a
/// debugger. Wherever an entry is made for a store: the page that a debugger wanted to copy may be gone by
/// the time its fault comes.
pub(crate) fn written(flags: VmFlags) -> PteFlags {
    if flags.contains(VmFlags::WRITE) { WRITTEN } else { WRITTEN - PteFlags::WRITE }
}
