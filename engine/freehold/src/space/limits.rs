//! Checks of the resource limits and privileges of an address space, and the charge of pages that count as
//! committed. A change calls these functions in its prepare step, while it can still fail.
//!
//! An exclusive writer compares a limit with the exact size. A range writer compares with its reservation
//! (`LimitReservation`), because other range writers change the sizes concurrently. `accounting.rs` then
//! counts the change, `state/limits.rs` has the values, and `state/counters.rs` has the sizes and
//! reservations. A limit must be exact for both kinds of writer;
//! `range_writers::address_space_and_memlock_limits_are_exact` (`engine/freehold/tests`) tests this.

pub use super::state::limits::{Limits, LiveLimits, UNLIMITED};
use super::{AddressSpace, locking::WriteGuard, state::limits::pages};
use crate::{
    PAGE_SHIFT,
    committed::{Charge, Overcommitted},
    platform::Platform,
    space::state::counters::Size,
    vma::flags::VmFlags,
};
use freehold_sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold_vmspace::PageCount;

impl<P: Platform> AddressSpace<P> {
    /// Returns true if the address space may lock any memory.
    #[inline]
    pub(crate) fn may_mlock(&self) -> bool {
        self.limits.may_lock.load(Relaxed) || self.limits.memlock.load(Relaxed) != 0
    }

    /// Returns the limit of a size in the unit of that size (VMAs or pages), or `None` if the size has no
    /// limit. A range writer must not exceed this limit.
    #[inline]
    pub(super) fn limit_of(&self, size: Size) -> Option<u64> {
        let limited = |bytes: &AtomicU64| match bytes.load(Relaxed) {
            UNLIMITED => None,
            bytes => Some(bytes >> PAGE_SHIFT),
        };
        match size {
            Size::Vmas => Some(self.engine.max_map_count()),
            Size::Total => limited(&self.limits.address_space),
            Size::Data => limited(&self.limits.data),
            Size::Locked if self.limits.may_lock.load(Relaxed) => None,
            Size::Locked => Some(self.limits.memlock.load(Relaxed) >> PAGE_SHIFT),
            Size::Exec | Size::Stack => None,
        }
    }

    /// Returns true if `total` locked pages are within RLIMIT_MEMLOCK.
    pub(crate) fn may_lock_total(&self, total: PageCount) -> bool {
        self.limits.may_lock.load(Relaxed) || total <= pages(&self.limits.memlock)
    }

    /// Returns true if the address space has the privilege to inject memory failures.
    pub(crate) fn may_inject_failure(&self) -> bool {
        self.limits.may_inject_failure.load(Relaxed)
    }

    /// Returns true if the address space may map at `addr`: the address is not below `mmap_min_addr`, or the
    /// space has the privilege.
    pub(crate) fn may_map_at(&self, addr: u64) -> bool {
        addr >= self.engine.config().mmap_min_addr || self.limits.may_map_low.load(Relaxed)
    }
}

/// Pages that an operation unmaps before it maps new ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplacedPages {
    /// All pages.
    pub total: PageCount,
    /// The part of `total` that counts as committed.
    pub committed: PageCount,
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Charges `grow` more committed pages that replace `shrink`, if pages with these flags count as
    /// committed. Dropping the result before it is [kept](Charge::keep) releases the charge.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn charge(
        &self,
        flags: VmFlags,
        grow: PageCount,
        shrink: ReplacedPages,
    ) -> Result<Charge<'s, P>, Overcommitted> {
        let commit = &self.space.engine.committed();
        match flags.contains(VmFlags::ACCOUNT) {
            true => commit.charge_replacing(grow, shrink.committed),
            false => Ok(commit.no_charge()),
        }
    }

    /// Returns true if RLIMIT_AS and RLIMIT_DATA allow `grow` more pages with these flags after `shrink`
    /// pages are unmapped.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn may_expand(&self, flags: VmFlags, grow: PageCount, shrink: ReplacedPages) -> bool {
        let limits = &self.space.limits;
        let limited = |limit: &AtomicU64| limit.load(Relaxed) != UNLIMITED;
        let asked = limited(&limits.address_space) || (limited(&limits.data) && flags.is_data());
        !asked || self.limits_allow(flags, grow, shrink)
    }

    /// Performs the check of [`may_expand`](Self::may_expand) if there are limits.
    #[inline(never)]
    fn limits_allow(&self, flags: VmFlags, grow: PageCount, shrink: ReplacedPages) -> bool {
        let (space, limits) = (self.space, &self.space.limits);
        let fits = |size, limit: PageCount| {
            let more = grow.saturating_sub(shrink.total).get();
            match self.limit_reservation() {
                Some(reserved) => space.limit_of(size).is_none() || reserved.covers(size, more),
                // As on Linux, replaced pages of any kind make room for data.
                None => space.counters.fits(size, grow.get(), limit.saturating_add(shrink.total).get()),
            }
        };
        if limits.address_space.load(Relaxed) != UNLIMITED && !fits(Size::Total, pages(&limits.address_space))
        {
            return false;
        }
        let soft = limits.data.load(Relaxed);
        if soft == UNLIMITED || !flags.is_data() {
            return true;
        }
        // Old programs set a soft limit of zero to mean "no heap". The hard limit then applies.
        fits(Size::Data, PageCount::new(soft >> PAGE_SHIFT))
            || (soft == 0 && fits(Size::Data, pages(&limits.data_hard)))
    }

    /// Returns true if RLIMIT_MEMLOCK allows `grow` more locked pages.
    pub(crate) fn may_lock_pages(&self, grow: PageCount) -> bool {
        let limits = &self.space.limits;
        limits.may_lock.load(Relaxed)
            || match self.limit_reservation() {
                Some(reserved) => reserved.covers(Size::Locked, grow.get()),
                None => self.space.counters.fits(Size::Locked, grow.get(), pages(&limits.memlock).get()),
            }
    }

    /// Returns true if the limit allows `more` VMAs.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn may_have_vmas(&self, more: u64) -> bool {
        match self.limit_reservation() {
            Some(reserved) => reserved.covers(Size::Vmas, more),
            None => self.space.counters.fits(Size::Vmas, more, self.space.engine.max_map_count()),
        }
    }
}
