//! The locking designs of an address space, as values: how munmap, faults, huge pages and writers lock. Most
//! values are the locking of Linux before or after one of the five changes that `docs/guide/five-steps.md`
//! describes; "step 0" to "step 4" in this file are the steps of that page. `Released` and `Ranges` are
//! designs of Freehold.
//!
//! A `Locking` is fixed when its address space is created. Most tests of the engine run on all combinations
//! in `Locking::ALL`, and expect the same results from each. To add a design of munmap, add its
//! `UnmapPolicy`, and combinations in `Locking::ALL`. The code in `change/unmap.rs` depends on the
//! `UnmapPolicy`. The last table of `docs/guide/five-steps.md` names the code that reads each setting.

use crate::PAGE_SIZE;
use freehold_sync::FaultLock;

/// Mode in which munmap of a large range holds the mmap lock, and the duration of each hold; see
/// `change/unmap.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Unmap {
    /// Holds the mmap lock for writing during the whole munmap (Linux before 4.20).
    Exclusive,
    /// Unmaps section by section under the mmap lock held for writing, and releases the lock between two
    /// sections (step 0).
    Sectioned {
        /// Bytes of a section. An address space rounds them up to a power of two of at least a page.
        bytes: u64,
    },
    /// Detaches under the mmap lock held for writing, zaps under the downgraded lock (step 1, Linux today).
    Downgraded,
    /// Detaches under the mmap lock held for writing, then zaps without a lock. A *closing* reservation keeps
    /// the range from being mapped.
    #[default]
    Released,
}

/// The properties of a munmap design.
pub(super) struct UnmapPolicy {
    /// Mode in which the mmap lock is held while pages are zapped.
    pub(super) held: MmapHold,
    /// Bytes of a section, if the lock is released between sections.
    pub(super) sections: Option<u64>,
    /// True if special VMAs (`AddressSpace::is_special`) are unmapped section by section, as in step 0.
    pub(super) falls_back: bool,
}

/// Mode in which the mmap lock is held.
pub(super) enum MmapHold {
    Write,
    Read,
    Nothing,
}

impl Unmap {
    /// Returns the properties of this design. No other code matches on the design.
    pub(super) fn policy(self) -> UnmapPolicy {
        let exclusive = UnmapPolicy { held: MmapHold::Write, sections: None, falls_back: false };
        match self {
            Unmap::Exclusive => exclusive,
            Unmap::Sectioned { bytes } => UnmapPolicy { sections: Some(bytes), ..exclusive },
            Unmap::Downgraded => UnmapPolicy { held: MmapHold::Read, falls_back: true, ..exclusive },
            Unmap::Released => UnmapPolicy { held: MmapHold::Nothing, ..exclusive },
        }
    }

    /// Returns this design with a section size that is a power of two and at least a page.
    pub(super) fn rounded(self) -> Self {
        match self {
            Unmap::Sectioned { bytes } => {
                let bytes = bytes.max(PAGE_SIZE).checked_next_power_of_two().unwrap_or(1 << 63);
                Unmap::Sectioned { bytes }
            }
            other => other,
        }
    }

    /// The section size of step 0 (`docs/guide/five-steps.md`): the range of one PUD entry.
    pub const SECTIONED: Unmap = Unmap::Sectioned { bytes: 1 << 30 };
}

/// The lock that keeps a shared page table of huge pages in place after a fault has found it; see
/// [`hugetlb`](crate::hugetlb).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HugetlbLock {
    /// The lock over all VMAs of the file, which each fault holds for reading (Linux 5.7 to 6.0).
    FileLock,
    /// One lock per VMA (step 3).
    #[default]
    VmaLock,
}

/// The way in which changes of one address space exclude each other; see `docs/guide/ranges.md`. Without the
/// cargo feature `range_writers`, every address space uses [`Whole`](Self::Whole), which is then the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Write {
    /// One change at a time (Linux).
    #[cfg_attr(not(feature = "range_writers"), default)]
    Whole,
    /// Concurrent range writers, for changes that need different VMAs and different holes. Changes become
    /// range writers once a change finds another change in progress, and become exclusive writers again once
    /// a change takes the mmap lock for writing.
    #[cfg_attr(feature = "range_writers", default)]
    Ranges,
    /// Range writers from the first change on, even if no other change is under way. For tests and
    /// measurements.
    #[doc(hidden)]
    RangesOnly,
}

impl Write {
    /// Returns this kind, or [`Whole`](Self::Whole) if the crate has no range writers. The result is then a
    /// constant, so that the compiler removes the code of range writers.
    #[inline(always)]
    pub(super) fn available(self) -> Self {
        if cfg!(feature = "range_writers") { self } else { Write::Whole }
    }
}

settings! {
    /// The locking designs of an address space. The default of each field is the last value of its type, not
    /// counting values for tests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Locking {
        /// The design of munmap.
        pub unmap: Unmap,
        /// The lock of page faults.
        pub fault: FaultLock,
        /// The additional lock of faults on huge pages.
        pub hugetlb: HugetlbLock,
        /// The kind of writers.
        pub write: Write,
    }
}

impl Locking {
    /// Returns the default designs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns these designs with a valid size of sections, and with a kind of writers that the crate has.
    pub(super) fn available(self) -> Self {
        Locking { unmap: self.unmap.rounded(), write: self.write.available(), ..self }
    }

    /// Combinations of a design of munmap, a design of faults and a kind of writers, for tests and
    /// comparisons. The combinations with [`Write::Whole`] come first. These combinations contain every
    /// design of munmap with two designs of faults, and every design of faults except `VmaRwsem` with at
    /// least two designs of munmap. The combinations with range writers come last, and contain every design
    /// of munmap, and every design of faults except `MmapLock`.
    pub const ALL: [Locking; 13] = {
        const fn with(unmap: Unmap, fault: FaultLock, write: Write) -> Locking {
            Locking { unmap, fault, hugetlb: HugetlbLock::VmaLock, write }
        }
        use FaultLock::{MmapLock, VmaCount, VmaPerCpu, VmaRwsem};
        use Write::{Ranges, RangesOnly, Whole};
        [
            with(Unmap::Exclusive, MmapLock, Whole),
            with(Unmap::SECTIONED, VmaRwsem, Whole),
            with(Unmap::Downgraded, VmaCount, Whole),
            with(Unmap::Released, MmapLock, Whole),
            with(Unmap::Exclusive, VmaPerCpu, Whole),
            with(Unmap::SECTIONED, VmaCount, Whole),
            with(Unmap::Downgraded, VmaPerCpu, Whole),
            with(Unmap::Released, VmaPerCpu, Whole),
            with(Unmap::Exclusive, VmaCount, RangesOnly),
            with(Unmap::SECTIONED, VmaPerCpu, RangesOnly),
            with(Unmap::Downgraded, VmaRwsem, RangesOnly),
            with(Unmap::Released, VmaPerCpu, RangesOnly),
            with(Unmap::Released, VmaPerCpu, Ranges),
        ]
    };
}
