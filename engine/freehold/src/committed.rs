//! Committed memory: the pages that Linux counts as Committed_AS, and the limit on them
//! (vm.overcommit_memory).
//!
//! A page is committed when a program gets the right to memory that it has not touched yet:
//!
//! | memory | committed |
//! | --- | --- |
//! | private, writable, not NORESERVE | the pages of its VMAs with [`VmFlags::ACCOUNT`](crate::vma::flags::VmFlags::ACCOUNT), from mmap, mprotect, brk, fork or growth until munmap or exit |
//! | shared anonymous memory and System V segments, not NORESERVE | the size of the file, from its creation until it is freed |
//! | other shared memory: memfds, tmpfs, NORESERVE | each page in the page cache |
//! | files with a backing store, devices, secret memory, huge pages of pools | nothing |
//!
//! A change first takes a [`Charge`]; this step may fail. The change [keeps](Charge::keep) the charge once
//! the change can no longer fail. Dropping a charge releases its pages.
//!
//! # Two counts
//!
//! Under every policy except [`Overcommit::Never`], the limit applies only to single requests. Each CPU then
//! counts in its own cell, so that no change writes a shared cache line for this count. [`Overcommit::Never`]
//! limits the sum: every charge then updates `total` by compare-and-swap, and the limit is never exceeded.
//! The number of committed pages is the sum of `total` and all cells. A page may be added in one of these
//! counters and removed in another, for example after a change of the policy or on another CPU. All accesses
//! are Relaxed: they order no other memory access.
//!
//! `WriteGuard::charge` (`space/limits.rs`) charges for changes of an address space, and `file/committed.rs`
//! charges for files. Each kept charge needs a later `uncharge` of the same number of pages. If an `uncharge`
//! is missing, the check in the `Drop` of [`CommittedMemory`] fails at the end of the engine. A file chooses
//! its row of the table by `Committed` (`file/mapping.rs`). `tests/mmap/committed.rs` tests the rules of the
//! table, and `loom_tests.rs` tests concurrent charges (`cargo xtask loom`).

#[cfg(all(test, loom))]
mod loom_tests;

use crate::error::NoMemory;
use freehold_sync::{
    Counter, Host,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use freehold_vmspace::PageCount;

/// The policy for committed memory: vm.overcommit_memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overcommit {
    /// Refuses a single request for more than this many pages (vm.overcommit_memory = 0). The embedder passes
    /// the size of memory and swap.
    Heuristic(PageCount),
    /// Refuses nothing (vm.overcommit_memory = 1).
    #[default]
    Always,
    /// Refuses a request that would take committed memory beyond this many pages, the CommitLimit
    /// (vm.overcommit_memory = 2). NORESERVE is ignored, except for huge pages of pools.
    Never(PageCount),
}

impl Overcommit {
    /// Bit 0 of a policy word: set if the sum is limited. The number of pages is in the bits above.
    const NEVER: u64 = 1;
    /// Maximum number of pages that fits in a policy word: more pages than any address space can map.
    const MAX_PAGES: u64 = u64::MAX >> 1;

    /// Returns the policy as a word. The upper bits hold the number of pages, and bit 0 is set if that number
    /// limits the sum.
    fn word(self) -> u64 {
        match self {
            Overcommit::Always => Self::MAX_PAGES << 1,
            Overcommit::Heuristic(pages) => pages.get().min(Self::MAX_PAGES) << 1,
            Overcommit::Never(pages) => pages.get().min(Self::MAX_PAGES) << 1 | Self::NEVER,
        }
    }

    /// Returns the policy that [`word`](Self::word) encoded.
    fn of(word: u64) -> Self {
        match (word & Self::NEVER != 0, word >> 1) {
            (true, pages) => Overcommit::Never(PageCount::new(pages)),
            (false, Self::MAX_PAGES) => Overcommit::Always,
            (false, pages) => Overcommit::Heuristic(PageCount::new(pages)),
        }
    }
}

/// Error of a request that would commit more memory than [`Overcommit`] allows.
#[derive(Debug)]
pub(crate) struct Overcommitted;

impl From<Overcommitted> for NoMemory {
    fn from(_: Overcommitted) -> Self {
        NoMemory
    }
}

/// The count of committed pages, and the check of requests against the limit.
pub(crate) struct CommittedMemory<H: Host> {
    /// The policy, encoded by [`Overcommit::word`].
    policy: AtomicU64,
    /// Number of pages added under [`Overcommit::Never`] minus the number removed under it. Wraps below zero.
    total: AtomicU64,
    /// Number of pages added under the other policies minus the number removed under them, per CPU.
    cells: Counter<H>,
}

/// Pages that are committed for a change that may still fail.
#[must_use = "dropping a charge releases its pages"]
pub(crate) struct Charge<'e, H: Host> {
    /// The count that contains the pages.
    commit: &'e CommittedMemory<H>,
    /// Number of pages that the drop releases. Zero after [`keep`](Self::keep).
    pages: u64,
}

impl<H: Host> Charge<'_, H> {
    /// Leaves the pages committed, because the change has been made.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn keep(mut self) {
        self.pages = 0;
    }
}

impl<H: Host> Drop for Charge<'_, H> {
    #[cfg_attr(feature = "inline", inline(always))]
    fn drop(&mut self) {
        if self.pages != 0 {
            self.commit.uncharge(PageCount::new(self.pages));
        }
    }
}

impl<H: Host> CommittedMemory<H> {
    /// Creates the count with no committed pages. Fails if there is no memory for the cells.
    pub fn try_new(policy: Overcommit) -> Result<Self, NoMemory> {
        let total = AtomicU64::new(0);
        Ok(CommittedMemory { policy: AtomicU64::new(policy.word()), total, cells: Counter::try_new()? })
    }

    /// Returns the current policy.
    pub fn policy(&self) -> Overcommit {
        Overcommit::of(self.policy.load(Relaxed))
    }

    /// Sets the policy. Committed pages stay committed, even beyond a new limit.
    pub fn set_policy(&self, policy: Overcommit) {
        self.policy.store(policy.word(), Relaxed);
    }

    /// Returns true if the number of committed pages is limited.
    pub fn is_strict(&self) -> bool {
        self.policy.load(Relaxed) & Overcommit::NEVER != 0
    }

    /// Returns the number of committed pages. The number is exact if no pages are added or removed
    /// concurrently.
    pub fn pages(&self) -> PageCount {
        let sum = self.total.load(Relaxed).wrapping_add_signed(self.cells.sum());
        // A reader can see a removal on one CPU before the earlier addition on another CPU, so the sum may be
        // negative for a moment.
        PageCount::new(if sum as i64 >= 0 { sum } else { 0 })
    }

    /// Commits `pages`.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn charge(&self, pages: PageCount) -> Result<Charge<'_, H>, Overcommitted> {
        self.charge_replacing(pages, PageCount::ZERO)
    }

    /// Commits `pages`, in a change that will also release `replaced` committed pages. Only the difference is
    /// checked against the limit.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn charge_replacing(
        &self,
        pages: PageCount,
        replaced: PageCount,
    ) -> Result<Charge<'_, H>, Overcommitted> {
        let policy = self.policy.load(Relaxed);
        let more = pages.saturating_sub(replaced).get();
        if policy & Overcommit::NEVER != 0 {
            self.add_within(pages.get(), more, policy >> 1)?;
        } else if more > policy >> 1 {
            return Err(Overcommitted);
        } else {
            self.cells.add(pages.get() as i64);
        }
        Ok(Charge { commit: self, pages: pages.get() })
    }

    /// Returns a charge of no pages, for a change that commits no memory.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn no_charge(&self) -> Charge<'_, H> {
        Charge { commit: self, pages: 0 }
    }

    /// Adds `pages` to the total. Fails if committed memory plus `more` pages would exceed `limit`. `more` is
    /// smaller than `pages` if the change also replaces committed pages.
    #[cold]
    #[inline(never)]
    fn add_within(&self, pages: u64, more: u64, limit: u64) -> Result<(), Overcommitted> {
        let mut total = self.total.load(Relaxed);
        loop {
            // While the policy is `Never`, the cells are changed only by tasks that still see an older
            // policy.
            let committed = total.wrapping_add_signed(self.cells.sum()) as i64;
            if more != 0 && (committed.max(0) as u64).saturating_add(more) > limit {
                return Err(Overcommitted);
            }
            match self.total.compare_exchange_weak(total, total.wrapping_add(pages), Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => total = now,
            }
        }
    }

    /// Releases pages that were committed.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn uncharge(&self, pages: PageCount) {
        if self.is_strict() {
            self.total.fetch_sub(pages.get(), Relaxed);
        } else {
            self.cells.add(-(pages.get() as i64));
        }
    }
}

impl<H: Host> Drop for CommittedMemory<H> {
    fn drop(&mut self) {
        let sum = self.total.load(Relaxed).wrapping_add_signed(self.cells.sum());
        debug_assert_eq!(sum, 0, "pages are still committed at the end of the engine");
    }
}
