//! What an address space counts.
//!
//! Sizes in VMAs and pages are changed by exclusive writers and range writers, and may be read at any time,
//! to be exact when nothing changes; faults are counted per CPU and summed when read, as are [resident
//! pages](freehold_vmspace::VmSpace::rss).

use crate::{error::NoMemory, platform::Platform, vma::flags::VmFlags};
use freehold_sync::{
    PerCpu,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};
use freehold_vmspace::PageCount;

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultEnd {
    /// A fault served under the VMA's own lock.
    VmaLock,
    /// A fault served under the mmap lock.
    MmapLock,
    /// A fault that ended in a signal.
    Failed,
}

const FAULT_ENDS: usize = 3;

/// Faults by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Served under the VMA's own lock.
    pub vma_lock: u64,
    /// Served under the mmap lock.
    pub mmap_lock: u64,
    /// Ended in a signal, or without memory.
    pub failed: u64,
}

/// Sizes of an address space in pages, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// VMAs.
    pub map_count: u64,
    /// Pages mapped.
    pub total_vm: u64,
    /// Pages in VMAs locked into memory.
    pub locked_vm: u64,
    /// Pages of private writable memory that is no stack.
    pub data_vm: u64,
    /// Pages of program text.
    pub exec_vm: u64,
    /// Pages of stacks.
    pub stack_vm: u64,
}

/// What is counted of VMAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// VMAs.
    Vmas,
    /// Pages mapped.
    Total,
    /// Pages locked.
    Locked,
    /// Pages of private writable memory that is no stack.
    Data,
    // From here on those that have no limit.
    /// Pages of program text.
    Exec,
    /// Pages of stacks.
    Stack,
}

const SIZES: usize = 6;

impl Size {
    /// How much more than it needs a CPU takes, and how much it keeps at most of what it does not need.
    fn credit(self) -> (u64, u64) {
        match self {
            Size::Vmas => (16, 64),
            _ => (1 << 12, 1 << 18),
        }
    }

    /// What counts the pages of VMAs with these flags, beside the total.
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
/// # Sizes beside each other
///
/// `taken` is what is mapped, and what CPUs have in *credit*: so it is never less than what is mapped. The
/// exclusive writer changes `taken` alone. A range writer changes its CPU's credit, and `taken` only where
/// that does not do. It has [reserved](Self::reserve_limits) beforehand what it may add to a size that has a
/// limit, which fails if that and all credit would pass the limit. So no limit is ever passed, and none is
/// said to be reached by a range writer: where it could be, the change becomes the exclusive writer, and sums
/// up.
pub(crate) struct Counters<P: Platform> {
    pub(in crate::space) taken: [AtomicU64; SIZES],
    /// Whether there ever was any credit.
    credited: AtomicBool,
    per_cpu: PerCpu<CpuCounters, P>,
}

/// What one CPU counts. Only it writes its cell, inside `with`, so by plain loads and stores (Relaxed).
struct CpuCounters {
    /// Faults by [how they ended](FaultEnd).
    faults: [AtomicU64; FAULT_ENDS],
    credit: [AtomicU64; SIZES],
    /// Changes as a range writer.
    changes: AtomicU64,
    /// Those of all CPUs, when this one last looked.
    seen: AtomicU64,
}

/// What a range writer may add to sizes that have a limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LimitDemand {
    pub vmas: u64,
    /// Pages of any kind.
    pub pages: PageCount,
    /// Pages that are locked.
    pub locked: PageCount,
}

impl LimitDemand {
    /// The two cuts at the ends of a range.
    pub const CUTS: LimitDemand = LimitDemand { vmas: 2, pages: PageCount::ZERO, locked: PageCount::ZERO };

    /// Those, and pages that come to count where they did not.
    pub fn cuts_and_pages(pages: PageCount) -> Self {
        LimitDemand { pages, ..LimitDemand::CUTS }
    }
}

/// What one has reserved, and not used yet.
#[derive(Default)]
pub(crate) struct LimitReservation {
    /// Of all that have limits; of others none.
    left: [core::cell::Cell<u64>; LIMITED],
    /// Whether anything but VMAs was reserved.
    pages: core::cell::Cell<bool>,
    /// Sizes that had no limit then, a bit each: one that comes meanwhile is for others.
    unlimited: core::cell::Cell<u8>,
}

impl LimitReservation {
    /// Whether so much may be added within the limit.
    pub fn covers(&self, size: Size, more: u64) -> bool {
        more <= self.left[size as usize].get() || self.unlimited.get() & 1 << size as usize != 0
    }

    /// Notes that there is no limit of a size.
    fn set_unlimited(&self, size: Size) {
        self.unlimited.set(self.unlimited.get() | 1 << size as usize);
    }

    /// Takes up to `more` of it; returns what is missing.
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

/// A limit may be in the way.
pub(in crate::space) struct NearLimit;

/// The first sizes are those that have a limit.
const LIMITED: usize = 4;

impl<P: Platform> Counters<P> {
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
            })?,
        })
    }

    /// Reserves what a range writer may add, where `limit` says that there is one.
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

    /// Reserves locked pages beside what is reserved, of which none are locked. Returns whether all that are
    /// taken stay within the limit; else nothing was done.
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

    /// What was reserved and is not needed becomes credit.
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

    /// Takes so much out of this CPU's credit, or out of the total. Returns whether all that is taken stays
    /// within the limit; else nothing was done.
    #[inline]
    fn use_credit(&self, size: Size, more: u64, limit: u64) -> bool {
        let taken = &self.taken[size as usize];
        self.per_cpu.with(|cpu| {
            let credit = &cpu.credit[size as usize];
            let has = credit.load(Relaxed);
            // What others take meanwhile stays within it, too; a limit that was lowered counts at once.
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

    /// Takes at least so much out of the total, within the limit.
    #[cold]
    #[inline(never)]
    fn take_from_total(&self, size: Size, least: u64, limit: u64) -> Option<u64> {
        // Relaxed: a number by itself. The mark is set before the first credit is taken; a task that sums up
        // has the space for itself, or is not exact.
        if !self.credited.load(Relaxed) {
            self.credited.store(true, Relaxed);
        }
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

    /// What is not needed any more becomes credit of this CPU; beyond a bound it goes back.
    #[inline]
    pub(in crate::space) fn give_credit(&self, size: Size, less: u64) {
        self.per_cpu.with(|cpu| {
            let credit = &cpu.credit[size as usize];
            let has = credit.load(Relaxed) + less;
            let (more, most) = size.credit();
            if has <= most {
                credit.store(has, Relaxed);
            } else {
                self.taken[size as usize].fetch_sub(has - more, Relaxed);
                credit.store(more, Relaxed);
            }
        });
    }

    /// A size; exact for the exclusive writer.
    pub fn get(&self, size: Size) -> u64 {
        let taken = self.taken[size as usize].load(Relaxed);
        match self.credited.load(Relaxed) {
            false => taken,
            true => {
                let credit: u64 =
                    self.per_cpu.iter().map(|cpu| cpu.credit[size as usize].load(Relaxed)).sum();
                // Others move it from one to the other meanwhile.
                taken.saturating_sub(credit)
            }
        }
    }

    /// Whether a size and so much more stays within the limit; for the exclusive writer.
    pub fn fits(&self, size: Size, more: u64, limit: u64) -> bool {
        let within = |now: u64| now.saturating_add(more) <= limit;
        within(self.taken[size as usize].load(Relaxed)) || within(self.get(size))
    }

    #[inline]
    pub(in crate::space) fn add_as_range_writer(&self, reserved: &LimitReservation, size: Size, more: u64) {
        match reserved.use_up(size, more) {
            0 => {}
            more => {
                self.use_credit(size, more, u64::MAX);
            }
        }
    }

    #[inline(always)]
    pub(in crate::space) fn add_exclusive(&self, size: Size, more: u64) {
        // Relaxed load and store: nobody else changes it.
        let taken = &self.taken[size as usize];
        taken.store(taken.load(Relaxed) + more, Relaxed);
    }

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

    /// Uses up credit of the total, and of a kind of its pages, if this CPU has enough of both.
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

    /// A fault ended.
    pub fn count_fault(&self, end: FaultEnd) {
        self.per_cpu.with(|cpu| {
            let counter = &cpu.faults[end as usize];
            // Relaxed load and store: only this CPU writes its cell, inside `with`.
            counter.store(counter.load(Relaxed) + 1, Relaxed);
        });
    }

    /// Counts a change. Returns how many were counted on this CPU.
    #[inline]
    pub(in crate::space) fn count_write(&self) -> u64 {
        self.per_cpu.with(|cpu| {
            let changes = cpu.changes.load(Relaxed) + 1;
            cpu.changes.store(changes, Relaxed);
            changes
        })
    }

    /// Returns true if nearly all changes counted since this CPU's last look were its own. It looks when
    /// `changes`, its own, come to `every` for each CPU there is; else it does not know.
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

    /// Faults by how they ended.
    pub fn faults(&self) -> Faults {
        let count =
            |end: FaultEnd| self.per_cpu.iter().map(|cpu| cpu.faults[end as usize].load(Relaxed)).sum();
        Faults {
            vma_lock: count(FaultEnd::VmaLock),
            mmap_lock: count(FaultEnd::MmapLock),
            failed: count(FaultEnd::Failed),
        }
    }

    /// Sizes.
    pub fn counts(&self) -> Counts {
        // Relaxed: each by itself; they agree with each other under the mmap lock.
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
