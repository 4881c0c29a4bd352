//! The flags of a VMA (`VmFlags`): its access rights and properties, with the two-letter names by which smaps
//! reports them.
//!
//! The meanings are Linux's; most bit numbers are the engine's own. A flag changes only while a writer has
//! write-locked the VMA; the only exception is `MAYBE_GUARD` (`Vma::note_guards`). VMAs that differ in a flag
//! do not merge, unless the flag is in `STICKY`, and VMAs with a flag in `SPECIAL` never merge. fork copies
//! all flags except those that its code removes. A new flag that Linux shows needs its name in `SMAPS`.
//! Recordings (`freehold-replay`) and the cases of `freehold-model` compare the flags by these names with
//! Linux's.

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
        /// Stores reach the object, and therefore all other mappings of the object.
        const SHARED = 1 << 3;
        /// mprotect may allow loads.
        const MAYREAD = 1 << 4;
        /// mprotect may allow stores.
        const MAYWRITE = 1 << 5;
        /// mprotect may allow fetches.
        const MAYEXEC = 1 << 6;
        /// Mapped with MAP_SHARED. Also set if the descriptor is not writable and `SHARED` is therefore not
        /// set.
        const MAYSHARE = 1 << 7;
        /// Grows downwards on a fault below it (a stack).
        const GROWSDOWN = 1 << 8;
        /// Maps frames that the engine does not own.
        const PFNMAP = 1 << 9;
        /// Device memory: never dumped, never merged, never read by other processes.
        const IO = 1 << 10;
        /// mremap may not enlarge the VMA.
        const DONTEXPAND = 1 << 11;
        /// Not copied to a forked child (MADV_DONTFORK).
        const DONTCOPY = 1 << 12;
        /// Pages stay in memory.
        const LOCKED = 1 << 13;
        /// With `LOCKED`: pages are locked when they are faulted in, and not populated in advance.
        const LOCKONFAULT = 1 << 14;
        /// Sequential access expected.
        const SEQ_READ = 1 << 15;
        /// Random access expected.
        const RAND_READ = 1 << 16;
        /// Counts towards committed memory.
        const ACCOUNT = 1 << 17;
        /// MAP_NORESERVE.
        const NORESERVE = 1 << 18;
        /// Mapped but empty in a forked child (MADV_WIPEONFORK).
        const WIPEONFORK = 1 << 19;
        /// Left out of core dumps (MADV_DONTDUMP).
        const DONTDUMP = 1 << 20;
        /// MADV_HUGEPAGE.
        const HUGEPAGE = 1 << 21;
        /// MADV_NOHUGEPAGE.
        const NOHUGEPAGE = 1 << 22;
        /// MADV_MERGEABLE.
        const MERGEABLE = 1 << 23;
        /// Sealed by mseal.
        const SEALED = 1 << 24;
        /// Some entries may be guard markers. Never cleared. A merged VMA has the flag if a part had it.
        const MAYBE_GUARD = 1 << 25;
        /// Pages may be dropped under pressure.
        const DROPPABLE = 1 << 26;
        /// Maps huge pages of a pool.
        const HUGETLB = 1 << 27;
        /// Maps frames that have records and frames that have none.
        const MIXEDMAP = 1 << 28;
        /// Soft-dirty: written or created since the soft-dirty bits were last cleared.
        const SOFTDIRTY = 1 << 29;
        /// The protection key, a number; see [`pkey`](VmFlags::pkey).
        const PKEY = 0xf << PKEY_SHIFT;
        /// Registered with a userfaultfd, which is notified of missing pages.
        const UFFD_MISSING = 1 << 40;
        /// Registered with a userfaultfd, which is notified of stores to pages that it has write-protected.
        const UFFD_WP = 1 << 41;
        /// Registered with a userfaultfd, which is notified of pages that are in the file's page cache but
        /// not mapped.
        const UFFD_MINOR = 1 << 42;
        /// MAP_SYNC: recorded, no effect.
        const SYNC = 1 << 43;
    }
}

/// Bit position of the protection key, as on Linux.
const PKEY_SHIFT: u32 = 32;

impl VmFlags {
    /// Flags that prevent a VMA from merging with another VMA.
    pub const SPECIAL: Self = Self::IO.union(Self::DONTEXPAND).union(Self::PFNMAP).union(Self::MIXEDMAP);
    /// Flags that a merge combines and does not compare.
    pub const STICKY: Self = Self::SOFTDIRTY.union(Self::MAYBE_GUARD);
    /// Flags that mprotect changes.
    pub const ACCESS: Self = Self::READ.union(Self::WRITE).union(Self::EXEC);
    /// Flags of registration with a userfaultfd. A registered VMA has at least one of these flags.
    pub const UFFD: Self = Self::UFFD_MISSING.union(Self::UFFD_WP).union(Self::UFFD_MINOR);
    /// Flags that a VMA can have. If a cargo feature is off, its flags are missing here, and the compiler
    /// removes the code that handles them.
    pub(crate) const POSSIBLE: Self = {
        let mut bits = u64::MAX;
        if !cfg!(feature = "hugetlb") {
            bits &= !Self::HUGETLB.bits();
        }
        if !cfg!(feature = "uffd") {
            bits &= !Self::UFFD.bits();
        }
        Self::from_bits_retain(bits)
    };
    /// Flags that mlock changes.
    pub const LOCK_MASK: Self = Self::LOCKED.union(Self::LOCKONFAULT);

    /// Returns the protection key of the pages, 0 to 15.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::flags::VmFlags;
    /// assert_eq!(VmFlags::READ.pkey(), 0);
    /// assert_eq!(VmFlags::READ.with_pkey(5).pkey(), 5);
    /// ```
    pub fn pkey(self) -> u8 {
        ((self & Self::PKEY).bits() >> PKEY_SHIFT) as u8
    }

    /// Returns these flags with the protection key `pkey`, 0 to 15.
    ///
    /// # Panics
    ///
    /// Panics if `pkey` is greater than 15.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::flags::VmFlags;
    /// let flags = VmFlags::READ.with_pkey(5);
    /// assert!(flags.contains(VmFlags::READ));
    /// assert_eq!(flags.with_pkey(0), VmFlags::READ);
    /// ```
    pub fn with_pkey(self, pkey: u8) -> Self {
        assert!(pkey < 16, "there are only 16 protection keys");
        (self - Self::PKEY) | (Self::from_bits_retain(u64::from(pkey) << PKEY_SHIFT) & Self::PKEY)
    }

    /// Returns true if the pages count for RLIMIT_DATA: private, writable, not a stack.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::flags::VmFlags;
    /// let private = VmFlags::READ | VmFlags::WRITE;
    /// assert!(private.is_data() && !(private | VmFlags::SHARED).is_data());
    /// ```
    pub fn is_data(self) -> bool {
        self & (Self::WRITE | Self::SHARED | Self::GROWSDOWN) == Self::WRITE
    }

    /// Returns true if the pages are counted as program text in statistics: executable, not writable, not a
    /// stack.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::flags::VmFlags;
    /// let text = VmFlags::READ | VmFlags::EXEC;
    /// assert!(text.is_exec() && !(text | VmFlags::WRITE).is_exec());
    /// ```
    pub fn is_exec(self) -> bool {
        self & (Self::EXEC | Self::WRITE | Self::GROWSDOWN) == Self::EXEC
    }

    /// Returns true for a stack.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::flags::VmFlags;
    /// assert!((VmFlags::READ | VmFlags::GROWSDOWN).is_stack() && !VmFlags::READ.is_stack());
    /// ```
    pub fn is_stack(self) -> bool {
        self.contains(Self::GROWSDOWN)
    }

    /// Returns true if the VMA has the `MAY` flag of each access right that it has.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::flags::VmFlags;
    /// assert!((VmFlags::READ | VmFlags::MAYREAD | VmFlags::MAYWRITE).allows_its_rights());
    /// assert!(!(VmFlags::READ | VmFlags::MAYWRITE).allows_its_rights());
    /// ```
    pub fn allows_its_rights(self) -> bool {
        // The bit of each `MAY` flag is four places above the bit of its access right.
        const _: () = assert!(VmFlags::READ.bits() << 4 == VmFlags::MAYREAD.bits());
        const _: () = assert!(VmFlags::WRITE.bits() << 4 == VmFlags::MAYWRITE.bits());
        const _: () = assert!(VmFlags::EXEC.bits() << 4 == VmFlags::MAYEXEC.bits());
        (self & Self::ACCESS).bits() & !(self.bits() >> 4) == 0
    }

    /// Returns true if stores make private copies, now or after an mprotect.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::flags::VmFlags;
    /// let private = VmFlags::READ | VmFlags::MAYREAD | VmFlags::MAYWRITE;
    /// assert!(private.is_cow() && !(private | VmFlags::SHARED).is_cow());
    /// ```
    pub fn is_cow(self) -> bool {
        self & (Self::SHARED | Self::MAYWRITE) == Self::MAYWRITE
    }

    /// Returns the two-letter names in smaps' `VmFlags:` line, in Linux's order.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::flags::VmFlags;
    /// let flags = VmFlags::MAYREAD | VmFlags::READ | VmFlags::LOCKED;
    /// assert!(flags.smaps_names().eq(["rd", "mr", "lo"]));
    /// ```
    pub fn smaps_names(self) -> impl Iterator<Item = &'static str> {
        SMAPS.iter().filter(move |(flag, _)| self.contains(*flag)).map(|(_, name)| *name)
    }

    /// Returns the flag with this two-letter name.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::flags::VmFlags;
    /// assert_eq!(VmFlags::of_smaps_name(b"lo"), Some(VmFlags::LOCKED));
    /// assert_eq!(VmFlags::of_smaps_name(b"??"), None);
    /// ```
    pub fn of_smaps_name(name: &[u8; 2]) -> Option<Self> {
        SMAPS.iter().find(|(_, known)| known.as_bytes() == name).map(|(flag, _)| *flag)
    }
}

/// The names of the flags in smaps, in Linux's order.
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
