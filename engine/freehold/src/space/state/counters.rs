//! The counters of an address space: its sizes in VMAs and pages, and its faults by how they ended.
//!
//! Exclusive writers and range writers change the sizes, through `space/accounting.rs`. `space/limits.rs`
//! compares the sizes with the limits. A size may be read at any time, and is exact if no writer changes it.
//! Range writers avoid the shared totals by means of *credits*; see `Counters`. Faults are counted per CPU
//! and summed when read, like [resident pages](freehold_vmspace::VmSpace::rss).
//!
//! `AddressSpace::check` compares the sizes with a recount over the VMAs.
//! `range_writers::address_space_and_memlock_limits_are_exact` (`engine/freehold/tests`) fails if a limit is
//! not exact.

use crate::{error::NoMemory, platform::Platform, vma::flags::VmFlags};
use freehold_sync::{
    PerCpu,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};
use freehold_vmspace::PageCount;

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultEnd {
    /// The fault was served under the VMA's own lock, without the mmap lock and without a claim.
    VmaLock,
    /// The fault climbed: it took the mmap lock for reading, or a claim of its VMA.
    MmapLock,
    /// The fault ended in a signal, or for lack of memory.
    Failed,
}

/// Number of values of [`FaultEnd`].
const FAULT_ENDS: usize = 3;

/// Numbers of faults, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Faults served under the VMA's own lock, without the mmap lock and without a claim.
    pub vma_lock: u64,
    /// Faults that took the mmap lock for reading, or a claim of their VMA.
    pub mmap_lock: u64,
    /// Faults that ended in a signal, or for lack of memory.
    pub failed: u64,
}

/// Sizes of an address space in pages, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of VMAs.
    pub map_count: u64,
    /// Mapped pages.
    pub total_vm: u64,
    /// Pages in VMAs that are locked in memory.
    pub locked_vm: u64,
    /// Pages of private writable memory, except stacks.
    pub data_vm: u64,
    /// Pages of program text.
    pub exec_vm: u64,
    /// Pages of stacks.
    pub stack_vm: u64,
}

/// The sizes that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Number of VMAs.
    Vmas,
    /// Mapped pages.
    Total,
    /// Locked pages.
    Locked,
    /// Pages of private writable memory, except stacks.
    Data,
    // The sizes above may have a limit (`LIMITED` counts them). The following sizes have none.
    /// Pages of program text.
    Exec,
    /// Pages of stacks.
    Stack,
}

/// Number of values of [`Size`].
const SIZES: usize = 6;

impl Size {
    /// Returns two amounts of credit, in VMAs or pages: the amount that a CPU takes in addition to what it
    /// needs, and the maximum amount that a CPU keeps unused.
    fn credit(self) -> (u64, u64) {
        match self {
            Size::Vmas => (16, 64),
            _ => (1 << 12, 1 << 18),
        }
    }

    /// Returns the size that counts pages with these flags in addition to the total.
    #[inline]
    pub(in crate::space) fn of(flags: VmFlags) -> Option<Self> {
        if flags.is_exec() {
            Some(Size::Exec)
        } else if flags.is_stack() {
            Some(Size::Stack)
        } else if flags.is_data() {
            Some(Size::Data)
        } else {
            None
        }
    }
}

/// The live counters.
///
/// # Credits
///
/// A *credit* is an amount of pages or VMAs that a CPU has taken from an address space in advance. `taken` is
/// the number of mapped pages (or VMAs) plus the credits of all CPUs, so `taken` is never less than the
/// number of mapped pages (or VMAs). The exclusive writer changes only `taken`. A range writer changes the
/// credit of its CPU, and changes `taken` only if the credit does not suffice or becomes too large.
///
/// A range writer first [reserves](Self::reserve_limits) what it may add to a size that has a limit. The
/// reservation fails if `taken` would exceed the limit. No limit is therefore ever exceeded. A range writer
/// never reports that a limit is reached: the task instead becomes the exclusive writer, for which the size
/// is exact.
pub(crate) struct Counters<P: Platform> {
    pub(in crate::space) taken: [AtomicU64; SIZES],
    /// True if any CPU has ever had credit.
    credited: AtomicBool,
    per_cpu: PerCpu<CpuCounters, P>,
}

/// The counters of one CPU. Only this CPU writes them, inside `with`, with plain loads and stores (Relaxed).
struct CpuCounters {
    /// Numbers of faults by [how they ended](FaultEnd).
    faults: [AtomicU64; FAULT_ENDS],
    credit: [AtomicU64; SIZES],
    /// Number of changes made as a range writer.
    changes: AtomicU64,
    /// Sum of `changes` over all CPUs when this CPU last computed it.
    seen: AtomicU64,
    /// Number of placements that will not try to insert the boundary of the CPU's arena.
    boundary_pause: AtomicU64,
}

/// Amounts by which a change may increase sizes that have a limit. A range writer reserves them before it
/// claims.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LimitDemand {
    /// Number of VMAs.
    pub vmas: u64,
    /// Pages of any kind, for RLIMIT_AS and RLIMIT_DATA.
    pub pages: PageCount,
    /// Locked pages, for RLIMIT_MEMLOCK.
    pub locked: PageCount,
}

impl LimitDemand {
    /// The VMAs for two cuts at the ends of a range.
    pub const CUTS: LimitDemand = LimitDemand { vmas: 2, pages: PageCount::ZERO, locked: PageCount::ZERO };

    /// Returns the demand of a change that cuts VMAs at both ends of its range. `pages` is the number of
    /// pages that may begin to count in more sizes.
    pub fn cuts_and_pages(pages: PageCount) -> Self {
        LimitDemand { pages, ..LimitDemand::CUTS }
    }
}

/// The unused part of a range writer's reservation. Only the task that made the reservation uses it.
#[derive(Default)]
pub(crate) struct LimitReservation {
    /// The reserved amount of each size that has a limit.
    left: [core::cell::Cell<u64>; LIMITED],
    /// True if pages were reserved, and not only VMAs.
    pages: core::cell::Cell<bool>,
    /// One bit for each size that had no limit at the time of the reservation. A limit that is set later does
    /// not apply to this change.
    unlimited: core::cell::Cell<u8>,
}

impl LimitReservation {
    /// Returns true if `more` may be added to `size`.
    pub fn covers(&self, size: Size, more: u64) -> bool {
        more <= self.left[size as usize].get() || self.unlimited.get() & 1 << size as usize != 0
    }

    /// Records that `size` has no limit.
    fn set_unlimited(&self, size: Size) {
        self.unlimited.set(self.unlimited.get() | 1 << size as usize);
    }

    /// Uses up to `more` of the reserved amount. Returns the part of `more` that the reservation does not
    /// cover.
    #[inline]
    fn use_up(&self, size: Size, more: u64) -> u64 {
        if !self.pages.get() && size != Size::Vmas || size as usize >= LIMITED {
            return more;
        }
        let left = &self.left[size as usize];
        let used = left.get().min(more);
        left.set(left.get() - used);
        more - used
    }
}

/// Error of a reservation that could exceed a limit.
pub(in crate::space) struct NearLimit;

/// Number of values of [`Size`] that may have a limit. These values come first in the enum.
const LIMITED: usize = 4;

impl<P: Platform> Counters<P> {
    /// Creates counters that are zero.
    pub fn try_new() -> Result<Self, NoMemory> {
        let zeroes = || core::array::from_fn(|_| AtomicU64::new(0));
        Ok(Counters {
            taken: zeroes(),
            credited: AtomicBool::new(false),
            per_cpu: PerCpu::try_new(|_| CpuCounters {
                faults: core::array::from_fn(|_| AtomicU64::new(0)),
                credit: core::array::from_fn(|_| AtomicU64::new(0)),
                changes: AtomicU64::new(0),
                seen: AtomicU64::new(0),
                boundary_pause: AtomicU64::new(0),
            })?,
        })
    }

    /// Reserves the amounts `needs` that a range writer may add. Sizes for which `limit` returns `None` have
    /// no limit.
    #[inline]
    pub(in crate::space) fn reserve_limits(
        &self,
        reserved: &LimitReservation,
        needs: &LimitDemand,
        limit: impl Fn(Size) -> Option<u64>,
    ) -> Result<(), NearLimit> {
        if needs.vmas > 0 && !self.use_credit(Size::Vmas, needs.vmas, limit(Size::Vmas).unwrap_or(u64::MAX)) {
            return Err(NearLimit);
        }
        reserved.left[Size::Vmas as usize].set(needs.vmas);
        reserved.unlimited.set(0);
        let pages = needs.pages > PageCount::ZERO;
        let limited = pages && (limit(Size::Total).is_some() || limit(Size::Data).is_some());
        if limited || needs.locked > PageCount::ZERO {
            return self.reserve_page_limits(reserved, needs, limit);
        }
        if pages {
            [Size::Total, Size::Data].into_iter().for_each(|size| reserved.set_unlimited(size));
        }
        Ok(())
    }

    /// Performs the part of [`reserve_limits`](Self::reserve_limits) that concerns pages.
    #[cold]
    #[inline(never)]
    fn reserve_page_limits(
        &self,
        reserved: &LimitReservation,
        needs: &LimitDemand,
        limit: impl Fn(Size) -> Option<u64>,
    ) -> Result<(), NearLimit> {
        reserved.pages.set(true);
        for (size, more) in
            [(Size::Total, needs.pages), (Size::Data, needs.pages), (Size::Locked, needs.locked)]
        {
            let Some(limit) = limit(size) else {
                reserved.set_unlimited(size);
                continue;
            };
            if !self.use_credit(size, more.get(), limit) {
                self.release_limits(reserved);
                return Err(NearLimit);
            }
            reserved.left[size as usize].set(more.get());
        }
        Ok(())
    }

    /// Adds locked pages to a reservation that contains no locked pages. Returns false and reserves nothing
    /// if the sum of all taken pages would exceed the limit.
    pub(in crate::space) fn reserve_locked_limit(
        &self,
        reserved: &LimitReservation,
        pages: PageCount,
        limit: Option<u64>,
    ) -> bool {
        let Some(limit) = limit else {
            reserved.set_unlimited(Size::Locked);
            return true;
        };
        let fits = self.use_credit(Size::Locked, pages.get(), limit);
        if fits {
            reserved.pages.set(true);
            reserved.left[Size::Locked as usize].set(pages.get());
        }
        fits
    }

    /// Turns the unused part of a reservation into credit.
    #[inline]
    pub(in crate::space) fn release_limits(&self, reserved: &LimitReservation) {
        let give = |size: Size| match reserved.left[size as usize].replace(0) {
            0 => {}
            left => self.give_credit(size, left),
        };
        give(Size::Vmas);
        if reserved.pages.replace(false) {
            [Size::Total, Size::Data, Size::Locked].into_iter().for_each(give);
        }
    }

    /// Takes `more` out of this CPU's credit, or out of the total. Returns false and takes nothing if the sum
    /// of all taken amounts would exceed the limit.
    #[inline]
    fn use_credit(&self, size: Size, more: u64, limit: u64) -> bool {
        let taken = &self.taken[size as usize];
        self.per_cpu.with(|cpu| {
            let credit = &cpu.credit[size as usize];
            let has = credit.load(Relaxed);
            // Credit of a CPU is part of the total, so using credit cannot exceed the limit. A limit that was
            // lowered applies at once.
            if has >= more && (limit == u64::MAX || taken.load(Relaxed) <= limit) {
                credit.store(has - more, Relaxed);
                return true;
            }
            self.take_from_total(size, more.saturating_sub(has), limit).is_some_and(|took| {
                credit.store(has + took - more, Relaxed);
                true
            })
        })
    }

    /// Takes at least `least` out of the total, within the limit. Returns the amount taken.
    #[cold]
    #[inline(never)]
    fn take_from_total(&self, size: Size, least: u64, limit: u64) -> Option<u64> {
        self.note_credit();
        let taken = &self.taken[size as usize];
        let (more, _) = size.credit();
        let mut now = taken.load(Relaxed);
        loop {
            let fits = |take: u64| now.checked_add(take).filter(|&then| then <= limit);
            let then = fits(least.saturating_add(more)).or_else(|| fits(least))?;
            match taken.compare_exchange_weak(now, then, Relaxed, Relaxed) {
                Ok(_) => return Some(then - now),
                Err(found) => now = found,
            }
        }
    }

    /// Records that CPUs have credit, before a CPU gets the first credit.
    #[inline]
    fn note_credit(&self) {
        // Relaxed: `taken` orders no other data. A reader of the sum either is the exclusive writer, or does
        // not need an exact value.
        if !self.credited.load(Relaxed) {
            self.credited.store(true, Relaxed);
        }
    }

    /// Adds `less` to the credit of this CPU. If the credit then exceeds its bound, returns the surplus to
    /// the total.
    #[inline]
    pub(in crate::space) fn give_credit(&self, size: Size, less: u64) {
        self.note_credit();
        self.per_cpu.with(|cpu| self.add_credit(cpu, size, less));
    }

    /// Adds removed VMAs with `pages` pages to three credits of this CPU: the credits of VMAs, of the total
    /// and of `kind`.
    #[inline]
    pub(in crate::space) fn give_vma_credits(&self, vmas: u64, kind: Option<Size>, pages: u64) {
        self.note_credit();
        self.per_cpu.with(|cpu| {
            self.add_credit(cpu, Size::Vmas, vmas);
            self.add_credit(cpu, Size::Total, pages);
            if let Some(kind) = kind {
                self.add_credit(cpu, kind, pages);
            }
        });
    }

    /// Performs [`give_credit`](Self::give_credit) on the cell of this CPU.
    #[inline]
    fn add_credit(&self, cpu: &CpuCounters, size: Size, less: u64) {
        let credit = &cpu.credit[size as usize];
        let has = credit.load(Relaxed) + less;
        let (more, most) = size.credit();
        if has <= most {
            credit.store(has, Relaxed);
        } else {
            self.taken[size as usize].fetch_sub(has - more, Relaxed);
            credit.store(more, Relaxed);
        }
    }

    /// Returns a size. Exact for the exclusive writer.
    pub fn get(&self, size: Size) -> u64 {
        let taken = self.taken[size as usize].load(Relaxed);
        match self.credited.load(Relaxed) {
            false => taken,
            true => {
                let credit: u64 =
                    self.per_cpu.iter().map(|cpu| cpu.credit[size as usize].load(Relaxed)).sum();
                // Other CPUs may concurrently move an amount between `taken` and their credits.
                taken.saturating_sub(credit)
            }
        }
    }

    /// Returns true if the size and `more` stay within the limit. Called by the exclusive writer.
    pub fn fits(&self, size: Size, more: u64, limit: u64) -> bool {
        let within = |now: u64| now.saturating_add(more) <= limit;
        within(self.taken[size as usize].load(Relaxed)) || within(self.get(size))
    }

    /// Adds `more` to a size as a range writer: first from the reservation, then from the credit of this CPU.
    #[inline]
    pub(in crate::space) fn add_as_range_writer(&self, reserved: &LimitReservation, size: Size, more: u64) {
        match reserved.use_up(size, more) {
            0 => {}
            more => {
                self.use_credit(size, more, u64::MAX);
            }
        }
    }

    /// Adds `more` to a size as the exclusive writer.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(in crate::space) fn add_exclusive(&self, size: Size, more: u64) {
        // Relaxed load and store: the exclusive writer is the only task that changes the value.
        let taken = &self.taken[size as usize];
        taken.store(taken.load(Relaxed) + more, Relaxed);
    }

    /// Counts `more` mapped pages as a range writer, in the total and in `kind`.
    #[inline(never)]
    pub(in crate::space) fn count_mapped_as_range_writer(
        &self,
        reserved: &LimitReservation,
        kind: Option<Size>,
        more: u64,
    ) {
        if reserved.pages.get() || !self.use_page_credits(kind, more) {
            self.add_as_range_writer(reserved, Size::Total, more);
            if let Some(kind) = kind {
                self.add_as_range_writer(reserved, kind, more);
            }
        }
    }

    /// Takes `more` out of the credit of the total and of `kind`, if this CPU has enough of both.
    #[inline]
    fn use_page_credits(&self, kind: Option<Size>, more: u64) -> bool {
        self.per_cpu.with(|cpu| {
            let total = &cpu.credit[Size::Total as usize];
            let kind = kind.map(|kind| &cpu.credit[kind as usize]);
            let enough = total.load(Relaxed) >= more && kind.is_none_or(|kind| kind.load(Relaxed) >= more);
            if enough {
                total.store(total.load(Relaxed) - more, Relaxed);
                kind.into_iter().for_each(|kind| kind.store(kind.load(Relaxed) - more, Relaxed));
            }
            enough
        })
    }

    /// Counts the end of a fault.
    #[inline(always)]
    pub fn count_fault(&self, end: FaultEnd) {
        self.per_cpu.with(|cpu| {
            let counter = &cpu.faults[end as usize];
            // Relaxed load and store: only this CPU writes its cell, inside `with`.
            counter.store(counter.load(Relaxed) + 1, Relaxed);
        });
    }

    /// Counts a change. Returns the number of changes counted on this CPU.
    #[inline]
    pub(in crate::space) fn count_write(&self) -> u64 {
        self.per_cpu.with(|cpu| {
            let changes = cpu.changes.load(Relaxed) + 1;
            cpu.changes.store(changes, Relaxed);
            changes
        })
    }

    /// Returns true if nearly all changes since the last check of this CPU were made on this CPU. `changes`
    /// is the number of changes on this CPU. If `changes` is not a multiple of `every` times the number of
    /// CPUs, there is no check, and the result is false.
    #[cold]
    #[inline(never)]
    pub(in crate::space) fn only_this_cpu_changed(&self, changes: u64, every: u64) -> bool {
        let own = every * self.per_cpu.iter().len() as u64;
        if !changes.is_multiple_of(own) {
            return false;
        }
        let all: u64 = self.per_cpu.iter().map(|cpu| cpu.changes.load(Relaxed)).sum();
        let seen = self.per_cpu.with(|cpu| {
            let seen = cpu.seen.load(Relaxed);
            cpu.seen.store(all, Relaxed);
            seen
        });
        all.wrapping_sub(seen) <= own + own / 16
    }

    /// Returns true if this CPU should try to insert the boundary of its arena. If the CPU should not try,
    /// counts the placement.
    pub(in crate::space) fn tries_boundary(&self) -> bool {
        self.per_cpu.with(|cpu| {
            let left = cpu.boundary_pause.load(Relaxed);
            cpu.boundary_pause.store(left.saturating_sub(1), Relaxed);
            left == 0
        })
    }

    /// Makes [`tries_boundary`](Self::tries_boundary) return false for the next `placements` placements on
    /// this CPU.
    #[cold]
    pub(in crate::space) fn pause_boundary(&self, placements: u64) {
        self.per_cpu.with(|cpu| cpu.boundary_pause.store(placements, Relaxed));
    }

    /// Returns the numbers of faults, by how they ended.
    pub fn faults(&self) -> Faults {
        let count =
            |end: FaultEnd| self.per_cpu.iter().map(|cpu| cpu.faults[end as usize].load(Relaxed)).sum();
        Faults {
            vma_lock: count(FaultEnd::VmaLock),
            mmap_lock: count(FaultEnd::MmapLock),
            failed: count(FaultEnd::Failed),
        }
    }

    /// Returns the sizes.
    pub fn counts(&self) -> Counts {
        // Relaxed: the sizes are independent words, which are consistent with each other only under the mmap
        // lock.
        Counts {
            map_count: self.get(Size::Vmas),
            total_vm: self.get(Size::Total),
            locked_vm: self.get(Size::Locked),
            data_vm: self.get(Size::Data),
            exec_vm: self.get(Size::Exec),
            stack_vm: self.get(Size::Stack),
        }
    }
}
