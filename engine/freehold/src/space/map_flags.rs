//! The arguments `prot` and `flags` of mmap and mprotect, with Linux's numbers on x86-64, and the VMA flags
//! that follow from them.
//!
//! This file only defines and converts bits. `call/mmap/` and `call/mprotect.rs` check which bits and
//! combinations are allowed, and `VmFlags` (`vma/flags/`) has the flags of a VMA. An embedder for an
//! architecture with other numbers converts them before it calls the engine. The model (`freehold-model`) has
//! the same rules, and its tests compare the model and the engine with the running kernel.

use crate::vma::flags::VmFlags;
use bitflags::bitflags;
use freehold_vmspace::HugePageSize;

bitflags! {
    /// Access rights, with the numbers of mmap and mprotect.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Prot: u64 {
        /// PROT_READ
        const READ = 1;
        /// PROT_WRITE
        const WRITE = 2;
        /// PROT_EXEC
        const EXEC = 4;
        /// PROT_SEM: accepted, no effect.
        const SEM = 8;
        /// PROT_GROWSDOWN: mprotect extends its range down to the start of a VMA that grows downwards.
        const GROWSDOWN = 0x0100_0000;
        /// PROT_GROWSUP: mprotect of mapped memory fails, because no VMA grows upwards.
        const GROWSUP = 0x0200_0000;
    }

    /// Flags of mmap, with Linux's numbers on x86-64.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MapFlags: u64 {
        /// MAP_SHARED
        const SHARED = 0x01;
        /// MAP_PRIVATE
        const PRIVATE = 0x02;
        /// MAP_SHARED_VALIDATE: shared; unknown flags are rejected.
        const SHARED_VALIDATE = 0x03;
        /// MAP_DROPPABLE: the pages may be dropped under memory pressure.
        const DROPPABLE = 0x08;
        /// MAP_FIXED
        const FIXED = 0x10;
        /// MAP_ANONYMOUS
        const ANONYMOUS = 0x20;
        /// MAP_32BIT: placed in the second GiB, so that addresses fit in 31 bits.
        const BIT32 = 0x40;
        /// MAP_ABOVE4G: the top-down search ends at 4 GiB. A hint below 4 GiB is still used.
        const ABOVE_4G = 0x80;
        /// MAP_GROWSDOWN
        const GROWSDOWN = 0x0100;
        /// MAP_DENYWRITE: ignored.
        const DENYWRITE = 0x0800;
        /// MAP_EXECUTABLE: ignored.
        const EXECUTABLE = 0x1000;
        /// MAP_LOCKED
        const LOCKED = 0x2000;
        /// MAP_NORESERVE: ignored if [committed memory is limited](crate::engine::Overcommit::Never), except
        /// for huge pages of pools.
        const NORESERVE = 0x4000;
        /// MAP_POPULATE
        const POPULATE = 0x8000;
        /// MAP_NONBLOCK: cancels `POPULATE`.
        const NONBLOCK = 0x1_0000;
        /// MAP_STACK
        const STACK = 0x2_0000;
        /// MAP_HUGETLB
        const HUGETLB = 0x4_0000;
        /// MAP_SYNC
        const SYNC = 0x8_0000;
        /// MAP_FIXED_NOREPLACE
        const FIXED_NOREPLACE = 0x10_0000;
        /// MAP_UNINITIALIZED: ignored.
        const UNINITIALIZED = 0x400_0000;
    }
}

/// Bit position of the huge page size in the flags.
const HUGE_SHIFT: u32 = 26;

/// Mask of the sharing type, which is a number and not a set of bits. The four values follow.
pub(crate) const TYPE: u64 = 0x0f;
pub(crate) const SHARED: u64 = 1;
pub(crate) const PRIVATE: u64 = 2;
pub(crate) const SHARED_VALIDATE: u64 = 3;
pub(crate) const DROPPABLE: u64 = 8;

/// VMA flags of droppable memory. Like shared memory, droppable memory is never marked for merging with equal
/// pages.
pub(crate) const DROPPED: VmFlags =
    VmFlags::DROPPABLE.union(VmFlags::NORESERVE).union(VmFlags::WIPEONFORK).union(VmFlags::DONTDUMP);

/// Returns the VMA flags that follow directly from the arguments of mmap.
pub(crate) fn vm_flags(prot: Prot, flags: MapFlags) -> VmFlags {
    let mut vm =
        VmFlags::MAYREAD | VmFlags::MAYWRITE | VmFlags::MAYEXEC | VmFlags::SOFTDIRTY | access_flags(prot);
    vm.set(VmFlags::GROWSDOWN, flags.contains(MapFlags::GROWSDOWN));
    vm.set(VmFlags::LOCKED, flags.contains(MapFlags::LOCKED));
    vm.set(VmFlags::SYNC, flags.contains(MapFlags::SYNC));
    vm.set(VmFlags::NOHUGEPAGE, flags.contains(MapFlags::STACK));
    vm
}

/// Returns the VMA flags for the access rights in `prot`.
pub(crate) fn access_flags(prot: Prot) -> VmFlags {
    let mut vm = VmFlags::empty();
    vm.set(VmFlags::READ, prot.contains(Prot::READ));
    vm.set(VmFlags::WRITE, prot.contains(Prot::WRITE));
    vm.set(VmFlags::EXEC, prot.contains(Prot::EXEC));
    vm
}

impl MapFlags {
    /// Returns the page size that is encoded in the flags together with `HUGETLB`: six bits hold its binary
    /// logarithm, and 0 means the default size. Returns `None` if there are no huge pages of that size, or if
    /// the feature `hugetlb` is off.
    pub(crate) fn huge_page_size(self) -> Option<HugePageSize> {
        if !cfg!(feature = "hugetlb") {
            return None;
        }
        match self.bits() >> HUGE_SHIFT & 0x3f {
            0 => Some(HugePageSize::Mib2),
            shift => HugePageSize::from_bytes(1 << shift),
        }
    }
}
