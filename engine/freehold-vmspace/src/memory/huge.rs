//! Huge pages of pools: their sizes, and how they return to their pool.
//!
//! `pool.rs` has the pools and their lock. This file implements the references to a huge page, which the
//! record of its first frame counts. Dropping the last reference returns the page to its pool. A cleared
//! entry, a fault and the reverse map all use these functions, so that no path treats a huge page as small
//! frames. `tests/hugetlb/pages_in_use.rs` of `freehold` tests that each page returns.

use super::{Memory, TakeError};
use crate::{
    Pfn,
    platform::{NodeChoice, PageOwner, Platform},
};
use freehold_pagetable::{Level, UnmappedFrame};

/// Sizes of huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HugePageSize {
    /// 2 MiB: an entry of a PMD table.
    Mib2,
    /// 1 GiB: an entry of a PUD table.
    Gib1,
}

impl HugePageSize {
    /// Every size.
    pub const ALL: [HugePageSize; 2] = [HugePageSize::Mib2, HugePageSize::Gib1];

    /// Returns the number of bytes of a page.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.level().span()
    }

    /// Returns the size that has `bytes` bytes, or `None` if there is none.
    #[inline]
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|size| size.bytes() == bytes)
    }

    /// Returns the level of the entries that map a page.
    #[inline]
    pub const fn level(self) -> Level {
        match self {
            HugePageSize::Mib2 => Level::Pmd,
            HugePageSize::Gib1 => Level::Pud,
        }
    }

    /// Returns the size that an entry of `level` maps: 1 GiB for a PUD entry, 2 MiB for any other.
    #[inline]
    pub fn of_level(level: Level) -> Self {
        if level == Level::Pud { HugePageSize::Gib1 } else { HugePageSize::Mib2 }
    }
}

/// References to huge pages, for the crate `freehold`, which keeps the counts of references correct.
#[doc(hidden)]
impl<P: Platform> Memory<P> {
    /// Takes a page of the pool on one of these nodes, and charges it to `owner`. With `reserved`, uses up a
    /// reservation.
    ///
    /// # Errors
    ///
    /// See [`TakeError`].
    pub fn take_huge_page(
        &self,
        size: HugePageSize,
        reserved: bool,
        owner: PageOwner<'_, P::Mmu>,
        nodes: NodeChoice,
    ) -> Result<Pfn, TakeError> {
        let (pool, platform) = (self.huge_pool(size), self.platform());
        let first = pool.take(platform, reserved, nodes)?;
        if platform.charge_huge_page(owner, first, size.level().frames()) {
            return Ok(first);
        }
        pool.put(platform, first, reserved);
        Err(TakeError::Refused)
    }

    /// Returns a page from [`take_huge_page`](Self::take_huge_page) that was never used. `restore` says that
    /// the reservation that the page was taken for exists again.
    pub fn return_huge_page(&self, size: HugePageSize, first: Pfn, restore: bool) {
        self.platform().uncharge_huge_page(first, size.level().frames());
        self.huge_pool(size).put(self.platform(), first, restore);
    }

    /// Drops a reference to a huge page, named by its first frame.
    pub fn put_huge_page(&self, first: Pfn) {
        self.put_huge_page_by(first, 1);
    }

    /// Drops `count` references to a huge page, named by its first frame.
    #[cold]
    pub fn put_huge_page_by(&self, first: Pfn, count: u32) {
        let Some(free) = self.platform().frame(first).put_hugetlb(count) else { return };
        // Before the page is in the pool, where another task can take it.
        self.platform().uncharge_huge_page(first, free.level.frames());
        let pool = self.huge_pool(HugePageSize::of_level(free.level));
        match free.broken {
            false if free.restore => pool.put_returning(self.platform(), first),
            false => pool.put(self.platform(), first, false),
            true => {
                pool.remove_failed(self.platform(), first, free.restore);
                self.dissolve(first, free.level);
            }
        }
    }

    /// Makes a huge page return with the reservation that it was taken for. The caller or another task has a
    /// reference to the page.
    pub fn restore_reservation(&self, first: Pfn, size: HugePageSize) {
        self.huge_pool(size).will_return();
        self.platform().frame(first).restore_reservation();
    }

    /// Frees the frames of a huge page that no longer belongs to a pool, except those that failed.
    pub fn dissolve(&self, first: Pfn, level: Level) {
        for frame in (0..level.frames()).map(|n| first.add(n)) {
            if !self.platform().frame(frame).has_failed() {
                self.free_frame(frame);
            }
        }
    }

    /// Drops the reference that a cleared entry above the lowest level held, if the entry mapped a huge page
    /// of a pool. Returns true if the entry mapped such a page.
    pub fn release_huge_page(&self, leaf: UnmappedFrame) -> bool {
        let frame = self.platform().frame(leaf.pfn());
        let is_huge_page = frame.hugetlb().is_some();
        if is_huge_page {
            self.put_huge_page(leaf.pfn());
        }
        is_huge_page
    }

    /// Returns the first frame of the huge page in use that contains `pfn`, if there is one.
    pub fn huge_page_of(&self, pfn: Pfn) -> Option<(Pfn, Level)> {
        self.huge_pages_around(pfn)
            .find(|(first, level)| self.platform().frame(*first).hugetlb() == Some(*level))
    }

    /// Returns the frame whose record counts for `pfn`, which is in use.
    pub fn record_of(&self, pfn: Pfn) -> Pfn {
        self.huge_page_of(pfn).map_or(pfn, |(first, _)| first)
    }

    /// Returns the first frames of the huge pages, one of each size, that could contain `pfn`.
    pub fn huge_pages_around(&self, pfn: Pfn) -> impl Iterator<Item = (Pfn, Level)> {
        HugePageSize::ALL.into_iter().map(HugePageSize::level).filter_map(move |level| {
            let first = pfn.align_down(level);
            self.platform().has_frame(first).then_some((first, level))
        })
    }
}
