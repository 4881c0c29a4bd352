//! Conversion of the engine's VMA flags to the flags of `smaps`, for [`Subject::maps`](crate::Subject::maps).
//!
//! Every flag that the engine can set must be in the table, or be left out of comparisons on purpose like
//! soft-dirty. [`visible`] panics on any other flag, so a new flag of the engine cannot stay uncompared by
//! accident.

use freehold::vma::flags::VmFlags;

use crate::op::vmflag;

/// Each flag of the engine and its bit in [`vmflag`].
const TABLE: [(VmFlags, u32); 25] = [
    (VmFlags::READ, vmflag::READ),
    (VmFlags::WRITE, vmflag::WRITE),
    (VmFlags::EXEC, vmflag::EXEC),
    (VmFlags::SHARED, vmflag::SHARED),
    (VmFlags::MAYREAD, vmflag::MAYREAD),
    (VmFlags::MAYWRITE, vmflag::MAYWRITE),
    (VmFlags::MAYEXEC, vmflag::MAYEXEC),
    (VmFlags::MAYSHARE, vmflag::MAYSHARE),
    (VmFlags::GROWSDOWN, vmflag::GROWSDOWN),
    (VmFlags::LOCKED, vmflag::LOCKED),
    (VmFlags::LOCKONFAULT, vmflag::LOCKONFAULT),
    (VmFlags::SEQ_READ, vmflag::SEQUENTIAL),
    (VmFlags::RAND_READ, vmflag::RANDOM),
    (VmFlags::DONTCOPY, vmflag::DONTFORK),
    (VmFlags::DONTEXPAND, vmflag::DONTEXPAND),
    (VmFlags::ACCOUNT, vmflag::ACCOUNT),
    (VmFlags::NORESERVE, vmflag::NORESERVE),
    (VmFlags::WIPEONFORK, vmflag::WIPEONFORK),
    (VmFlags::DONTDUMP, vmflag::DONTDUMP),
    (VmFlags::MERGEABLE, vmflag::MERGEABLE),
    (VmFlags::HUGEPAGE, vmflag::HUGEPAGE),
    (VmFlags::NOHUGEPAGE, vmflag::NOHUGEPAGE),
    (VmFlags::DROPPABLE, vmflag::DROPPABLE),
    (VmFlags::MAYBE_GUARD, vmflag::MAYBE_GUARD),
    (VmFlags::SEALED, vmflag::SEALED),
];

/// Returns the [`vmflag`] bits of the flags. Panics on a flag that is not in the table. The soft-dirty flag
/// is left out.
pub(super) fn visible(flags: VmFlags) -> u32 {
    let known = TABLE.iter().fold(VmFlags::SOFTDIRTY, |all, (flag, _)| all | *flag);
    assert!(known.contains(flags), "an unexpected flag: {flags:?}");
    TABLE.iter().filter(|(flag, _)| flags.contains(*flag)).fold(0, |bits, (_, bit)| bits | bit)
}
