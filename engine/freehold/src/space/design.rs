//! The designs of locking that an address space can have: a value for what Linux did before and after each
//! step (`docs/designs.md`).

use crate::PAGE_SIZE;
use freehold_sync::FaultLock;

/// How a large munmap keeps others from waiting; see `unmap.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Unmap {
    /// Everything under the mmap lock, held for writing (Linux before 4.20).
    Exclusive,
    /// Section by section, each whole, the lock let go in between (step 0).
    Sectioned {
        /// Bytes of a section; an address space rounds them up to a power of two, and to a page.
        bytes: u64,
    },
    /// Detach under the write lock, zap under the downgraded one (step 1, Linux today).
    Downgraded,
    /// Detach under the write lock, then hold no lock at all: the range stays reserved as *closing*.
    #[default]
    Released,
}

/// What a design of munmap is made of.
pub(super) struct UnmapPolicy {
    /// What of the mmap lock is held while the pages go.
    pub(super) held: MmapHold,
    /// Of how many bytes a section is, between which others may come in.
    pub(super) sections: Option<u64>,
    /// Whether special VMAs go as under step 0.
    pub(super) falls_back: bool,
}

/// How the mmap lock is held.
pub(super) enum MmapHold {
    Write,
    Read,
    Nothing,
}

impl Unmap {
    /// What it is made of: the one place that asks which design this is.
    pub(super) fn policy(self) -> UnmapPolicy {
        let exclusive = UnmapPolicy { held: MmapHold::Write, sections: None, falls_back: false };
        match self {
            Unmap::Exclusive => exclusive,
            Unmap::Sectioned { bytes } => UnmapPolicy { sections: Some(bytes), ..exclusive },
            Unmap::Downgraded => UnmapPolicy { held: MmapHold::Read, falls_back: true, ..exclusive },
            Unmap::Released => UnmapPolicy { held: MmapHold::Nothing, ..exclusive },
        }
    }

    /// With sections that begin and end at pages.
    pub(super) fn rounded(self) -> Self {
        match self {
            Unmap::Sectioned { bytes } => {
                let bytes = bytes.max(PAGE_SIZE).checked_next_power_of_two().unwrap_or(1 << 63);
                Unmap::Sectioned { bytes }
            }
            other => other,
        }
    }

    /// The section of step 0 (`docs/designs.md`): what one PUD entry spans.
    pub const SECTIONED: Unmap = Unmap::Sectioned { bytes: 1 << 30 };
}

/// What keeps shared tables of huge pages where a fault has found them; see [`hugetlb`](crate::hugetlb).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HugetlbLock {
    /// The lock over all VMAs of the file, held by each fault for reading (Linux 5.7 to 6.0).
    FileLock,
    /// A lock of each VMA's own (step 3).
    #[default]
    VmaLock,
}

/// How changes of one address space keep apart; see `docs/ranges.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Write {
    /// One at a time (Linux).
    Whole,
    /// Side by side, where they need different VMAs and different holes: from the first change on that finds
    /// another one under way, until one that takes the mmap lock for writing.
    #[default]
    Ranges,
    /// The same from the first change on, whether others are under way or not: for tests and measurements.
    #[doc(hidden)]
    RangesOnly,
}

/// Which design of each step an address space uses; the default is the last of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Locking {
    /// How munmap is done.
    pub unmap: Unmap,
    /// How faults are locked.
    pub fault: FaultLock,
    /// How faults on huge pages are locked besides.
    pub hugetlb: HugetlbLock,
    /// How changes keep apart.
    pub write: Write,
}

impl Locking {
    /// Pairs of the first two, for tests and comparisons. With one change at a time every value of each meets
    /// several of the other; with changes side by side, at the end, it is there at least once.
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
