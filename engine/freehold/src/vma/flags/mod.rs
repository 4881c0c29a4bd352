//! What a mapped area allows and asks for, and the two-letter names by which smaps reports it.

pub(crate) mod pte_flags;

use bitflags::bitflags;

bitflags! {
    /// The properties of a VMA, with Linux's meanings.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct VmFlags: u64 {
        /// Loads allowed.
        const READ = 1 << 0;
        /// Stores allowed.
        const WRITE = 1 << 1;
        /// Instruction fetches allowed.
        const EXEC = 1 << 2;
        /// Stores reach the object (and all other mappings of it).
        const SHARED = 1 << 3;
        /// mprotect may allow loads.
        const MAYREAD = 1 << 4;
        /// mprotect may allow stores.
        const MAYWRITE = 1 << 5;
        /// mprotect may allow fetches.
        const MAYEXEC = 1 << 6;
        /// Made with MAP_SHARED from a descriptor that may write; kept when `SHARED` is dropped.
        const MAYSHARE = 1 << 7;
        /// Grows downwards on a fault below it (a stack).
        const GROWSDOWN = 1 << 8;
        /// Maps frames that the engine does not own.
        const PFNMAP = 1 << 9;
        /// Device memory: never dumped, merged or read by others.
        const IO = 1 << 10;
        /// mremap may not enlarge it.
        const DONTEXPAND = 1 << 11;
        /// Absent in a forked child.
        const DONTCOPY = 1 << 12;
        /// Pages stay in memory.
        const LOCKED = 1 << 13;
        /// With `LOCKED`: pages are locked as they come, not brought in.
        const LOCKONFAULT = 1 << 14;
        /// Sequential access expected.
        const SEQ_READ = 1 << 15;
        /// Random access expected.
        const RAND_READ = 1 << 16;
        /// Counts towards committed memory.
        const ACCOUNT = 1 << 17;
        /// MAP_NORESERVE.
        const NORESERVE = 1 << 18;
        /// Empty in a forked child.
        const WIPEONFORK = 1 << 19;
        /// Left out of core dumps.
        const DONTDUMP = 1 << 20;
        /// MADV_HUGEPAGE.
        const HUGEPAGE = 1 << 21;
        /// MADV_NOHUGEPAGE.
        const NOHUGEPAGE = 1 << 22;
        /// MADV_MERGEABLE.
        const MERGEABLE = 1 << 23;
        /// mseal.
        const SEALED = 1 << 24;
        /// Some entries may be guard markers; never lost by a merge.
        const MAYBE_GUARD = 1 << 25;
        /// Pages may be dropped under pressure.
        const DROPPABLE = 1 << 26;
        /// hugetlb pages.
        const HUGETLB = 1 << 27;
        /// Holds frames with and without records.
        const MIXEDMAP = 1 << 28;
        /// Soft-dirty: written, or new, since the last clearing.
        const SOFTDIRTY = 1 << 29;
        /// The protection key, a number; see [`pkey`](VmFlags::pkey).
        const PKEY = 0xf << PKEY_SHIFT;
        /// Registered with a userfaultfd: it hears of pages that are not there.
        const UFFD_MISSING = 1 << 40;
        /// Registered with a userfaultfd: it hears of stores to pages that it has write-protected.
        const UFFD_WP = 1 << 41;
        /// Registered with a userfaultfd: it hears of pages that are in the file's cache and not mapped.
        const UFFD_MINOR = 1 << 42;
        /// MAP_SYNC: kept, without meaning here.
        const SYNC = 1 << 43;
    }
}

/// Where Linux has it.
const PKEY_SHIFT: u32 = 32;

impl VmFlags {
    /// Flags of which none may be set on a VMA that merges with another.
    pub const SPECIAL: Self = Self::IO.union(Self::DONTEXPAND).union(Self::PFNMAP).union(Self::MIXEDMAP);
    /// Flags that a merge joins instead of demanding them equal.
    pub const STICKY: Self = Self::SOFTDIRTY.union(Self::MAYBE_GUARD);
    /// What mprotect changes.
    pub const ACCESS: Self = Self::READ.union(Self::WRITE).union(Self::EXEC);
    /// Of which at least one is set on every VMA that is registered with a userfaultfd.
    pub const UFFD: Self = Self::UFFD_MISSING.union(Self::UFFD_WP).union(Self::UFFD_MINOR);
    /// What mlock changes.
    pub const LOCK_MASK: Self = Self::LOCKED.union(Self::LOCKONFAULT);

    /// The protection key of its pages, 0 to 15.
    pub fn pkey(self) -> u8 {
        ((self & Self::PKEY).bits() >> PKEY_SHIFT) as u8
    }

    /// These, with this protection key, 0 to 15.
    ///
    /// # Panics
    ///
    /// If there is no such key.
    pub fn with_pkey(self, pkey: u8) -> Self {
        assert!(pkey < 16, "sixteen protection keys");
        (self - Self::PKEY) | (Self::from_bits_retain(u64::from(pkey) << PKEY_SHIFT) & Self::PKEY)
    }

    /// The part of RLIMIT_DATA: private, writable, not a stack.
    pub fn is_data(self) -> bool {
        self & (Self::WRITE | Self::SHARED | Self::GROWSDOWN) == Self::WRITE
    }

    /// Counted as program text in statistics: executable, not writable, not a stack.
    pub fn is_exec(self) -> bool {
        self & (Self::EXEC | Self::WRITE | Self::GROWSDOWN) == Self::EXEC
    }

    /// A stack.
    pub fn is_stack(self) -> bool {
        self.contains(Self::GROWSDOWN)
    }

    /// Whether every right is one that the VMA may have.
    pub fn allows_its_rights(self) -> bool {
        // The bit of what may be had lies four above that of the right.
        const _: () = assert!(VmFlags::READ.bits() << 4 == VmFlags::MAYREAD.bits());
        const _: () = assert!(VmFlags::WRITE.bits() << 4 == VmFlags::MAYWRITE.bits());
        const _: () = assert!(VmFlags::EXEC.bits() << 4 == VmFlags::MAYEXEC.bits());
        (self & Self::ACCESS).bits() & !(self.bits() >> 4) == 0
    }

    /// Stores make private copies here, now or after an mprotect.
    pub fn is_cow(self) -> bool {
        self & (Self::SHARED | Self::MAYWRITE) == Self::MAYWRITE
    }

    /// The two-letter names of smaps' `VmFlags:` line, in Linux's order.
    pub fn smaps_names(self) -> impl Iterator<Item = &'static str> {
        SMAPS.iter().filter(move |(flag, _)| self.contains(*flag)).map(|(_, name)| *name)
    }

    /// The flag with this two-letter name.
    pub fn of_smaps_name(name: &[u8; 2]) -> Option<Self> {
        SMAPS.iter().find(|(_, known)| known.as_bytes() == name).map(|(flag, _)| *flag)
    }
}

const SMAPS: [(VmFlags, &str); 34] = [
    (VmFlags::READ, "rd"),
    (VmFlags::WRITE, "wr"),
    (VmFlags::EXEC, "ex"),
    (VmFlags::SHARED, "sh"),
    (VmFlags::MAYREAD, "mr"),
    (VmFlags::MAYWRITE, "mw"),
    (VmFlags::MAYEXEC, "me"),
    (VmFlags::MAYSHARE, "ms"),
    (VmFlags::GROWSDOWN, "gd"),
    (VmFlags::UFFD_MISSING, "um"),
    (VmFlags::PFNMAP, "pf"),
    (VmFlags::MAYBE_GUARD, "gu"),
    (VmFlags::UFFD_WP, "uw"),
    (VmFlags::LOCKED, "lo"),
    (VmFlags::IO, "io"),
    (VmFlags::SEQ_READ, "sr"),
    (VmFlags::RAND_READ, "rr"),
    (VmFlags::DONTCOPY, "dc"),
    (VmFlags::DONTEXPAND, "de"),
    (VmFlags::LOCKONFAULT, "lf"),
    (VmFlags::ACCOUNT, "ac"),
    (VmFlags::NORESERVE, "nr"),
    (VmFlags::HUGETLB, "ht"),
    (VmFlags::WIPEONFORK, "wf"),
    (VmFlags::DONTDUMP, "dd"),
    (VmFlags::SOFTDIRTY, "sd"),
    (VmFlags::MIXEDMAP, "mm"),
    (VmFlags::HUGEPAGE, "hg"),
    (VmFlags::NOHUGEPAGE, "nh"),
    (VmFlags::MERGEABLE, "mg"),
    (VmFlags::DROPPABLE, "dp"),
    (VmFlags::UFFD_MINOR, "ui"),
    (VmFlags::SEALED, "sl"),
    (VmFlags::SYNC, "sf"),
];
