//! brk: resizes the heap, one area above the program's data. To grow the heap, brk maps the pages between the
//! old and the new break. To shrink the heap, brk unmaps them (`space/change/unmap.rs`). A call that fails
//! changes neither the break nor a mapped page, and returns the old break instead of an error.
//!
//! # The break
//!
//! The exclusive writer may change the break and the start of the heap. In addition, one range writer at a
//! time may change the break: the range writer that has set `heap_locked`.
//!
//! | `heap_locked` | meaning | next value |
//! | --- | --- | --- |
//! | false | no range writer uses the break | true: set by a range writer within the gate |
//! | true | one range writer uses the break and may change it | false: set by the same task after it publishes its write set and before it leaves the gate |
//!
//! A task that finds `heap_locked` set becomes the exclusive writer. The flag is therefore false for the
//! exclusive writer, and every task that may read the break finds a break that agrees with the mapped pages.
//!
//! `lock_heap` in `space/range_writer.rs` sets the flag. Two concurrent calls are tested by
//! `brk_waits_for_another_brk` in `tests/range_writers.rs`. The rules of a single call are in the model's
//! `brk.rs` and in `lab/freehold-model/cases/brk.txt`.

use crate::{
    PAGE_SIZE,
    error::{BrkError, HeapError, LacksMemory, NoMemory},
    file::Object,
    platform::Platform,
    space::{
        AddressSpace,
        change::{split_merge::NewMapping, unmap::UnmapRange},
        limits::ReplacedPages,
        locking::WriteGuard,
        range_writer::{RangeWriter, RangeWriterState},
        state::counters::LimitDemand,
    },
    vma::{flags::VmFlags, merge::Attrs},
};
use core::{cell::Cell, ops::Range};
use freehold_range::ClaimError;
use freehold_sync::{Killed, atomic::Ordering::Relaxed};
use freehold_vmspace::{PageCount, PageIndex, UserRange};

/// Flags of the heap, without those that mlockall adds.
const HEAP: VmFlags = VmFlags::READ
    .union(VmFlags::WRITE)
    .union(VmFlags::MAYREAD)
    .union(VmFlags::MAYWRITE)
    .union(VmFlags::MAYEXEC)
    .union(VmFlags::ACCOUNT)
    .union(VmFlags::SOFTDIRTY);

/// Returns the end of the last page of a heap whose break is `brk`. Returns `None` if the end lies beyond the
/// last address.
fn page_end(brk: u64) -> Option<u64> {
    brk.checked_next_multiple_of(PAGE_SIZE)
}

/// Reason why the heap did not grow or shrink. brk reports only `Killed`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BreakStays {
    /// The heap must not have the new size, at which the break was to end. The break stays at this address.
    Denied(u64),
    /// Memory was short. The break stays at this address.
    NoMemory(u64),
    Killed,
}

impl From<Killed> for BreakStays {
    fn from(_: Killed) -> Self {
        BreakStays::Killed
    }
}

impl LacksMemory for BreakStays {
    fn lacks_memory(&self) -> bool {
        matches!(self, BreakStays::NoMemory(_))
    }
}

/// Reason why the heap did not grow.
enum GrowthError {
    /// The heap must not have this size.
    Denied,
    NoMemory,
}

impl From<NoMemory> for GrowthError {
    fn from(_: NoMemory) -> Self {
        GrowthError::NoMemory
    }
}

/// A plan to move the break.
#[derive(Clone, Copy)]
struct BreakPlan {
    /// The current break.
    from: u64,
    /// The step that moves the break to the requested address.
    step: BreakStep,
}

/// The change that moves the break to the requested address.
#[derive(Clone, Copy)]
enum BreakStep {
    /// The break cannot be at the requested address.
    Denied,
    /// The break stays in its page, so no page is mapped or unmapped.
    InPage,
    /// Maps these pages at the end of the heap.
    Grow(UserRange),
    /// Unmaps these pages.
    Shrink(UserRange),
}

impl BreakStep {
    /// Returns how much the step may add to each size that has a limit, if new mappings get `default_flags`.
    fn limit_demand(self, default_flags: VmFlags) -> LimitDemand {
        match self {
            BreakStep::Denied | BreakStep::InPage => LimitDemand::default(),
            BreakStep::Shrink(_) => LimitDemand::CUTS,
            BreakStep::Grow(range) => {
                let pages = range.pages();
                let locked = default_flags.contains(VmFlags::LOCKED);
                LimitDemand { vmas: 1, pages, locked: if locked { pages } else { PageCount::ZERO } }
            }
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Moves the break, which is the end of the heap, to `to`. Returns the break, which is unchanged if `to`
    /// is not possible. The break never lies below the start of the heap.
    ///
    /// # Errors
    ///
    /// See [`BrkError`].
    ///
    /// # Locks
    ///
    /// The locks of a [range writer](crate::space::locking#writers), killably; if the heap shrinks, the locks
    /// of [`munmap`](Self::munmap). If the heap is locked in memory, afterwards also the locks of faults.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let heap = space.brk(0).unwrap();
    /// assert_eq!(space.brk(heap + PAGE_SIZE), Ok(heap + PAGE_SIZE));
    /// assert_eq!(space.brk(u64::MAX), Ok(heap + PAGE_SIZE), "unchanged");
    /// ```
    pub fn brk(&self, to: u64) -> Result<u64, BrkError> {
        match self.retry_when_short(|| self.try_brk(to)) {
            Ok(to) => Ok(to),
            Err(BreakStays::Denied(from) | BreakStays::NoMemory(from)) => Ok(from),
            Err(BreakStays::Killed) => Err(BrkError::Killed),
        }
    }

    /// Makes one attempt of [`brk`](Self::brk).
    fn try_brk(&self, to: u64) -> Result<u64, BreakStays> {
        let state = RangeWriterState::default();
        let (guard, BreakPlan { from, step }) = self.write_heap(&state, to)?;
        match step {
            BreakStep::Denied => Err(BreakStays::Denied(from)),
            BreakStep::InPage => {
                self.brk.store(to, Relaxed);
                Ok(to)
            }
            BreakStep::Shrink(gone) => self.shrink_heap(guard, from, to, gone),
            BreakStep::Grow(range) => {
                guard.grow_heap(range).map_err(|error| match error {
                    GrowthError::Denied => BreakStays::Denied(from),
                    GrowthError::NoMemory => BreakStays::NoMemory(from),
                })?;
                self.brk.store(to, Relaxed);
                let locked = self.default_flags().contains(VmFlags::LOCKED);
                drop(guard);
                if locked {
                    self.populate_leniently(range);
                }
                Ok(to)
            }
        }
    }

    /// Acquires the right to move the break to `to`. A range writer claims the pages to be mapped or
    /// unmapped, and is the only task that moves the break. The exclusive writer waits until no munmap is
    /// closing one of these pages. Also returns the plan. The plan is computed only once, because limits may
    /// change at any time.
    fn write_heap<'s>(
        &'s self,
        state: &'s RangeWriterState,
        to: u64,
    ) -> Result<(WriteGuard<'s, P>, BreakPlan), Killed> {
        let plan = || {
            // Relaxed: the break may change until this task has the right to move it. `claim_heap` checks the
            // value again.
            let from = self.brk.load(Relaxed);
            BreakPlan { from, step: self.step_to(from, to) }
        };
        // Holds the plan for which the limits are reserved. The limits are reserved before the range is
        // claimed.
        let reserved = Cell::new(BreakPlan { from: 0, step: BreakStep::Denied });
        let needs = || {
            reserved.set(plan());
            reserved.get().step.limit_demand(self.default_flags())
        };
        let claim = |guard: &mut WriteGuard<'s, P>| guard.claim_heap(reserved.get());
        let ready = |guard: &WriteGuard<'s, P>| {
            let plan = plan();
            let clear = match plan.step {
                BreakStep::Denied | BreakStep::InPage => true,
                BreakStep::Shrink(gone) => guard.clear_for_write(gone),
                BreakStep::Grow(range) => {
                    let above = range.end().saturating_add(PAGE_SIZE) & !(PAGE_SIZE - 1);
                    guard.clear_for_write(range.with_end(above))
                }
            };
            clear.then_some(plan)
        };
        self.claim_or_exclusive_when(state, needs, claim, ready)
    }

    /// Returns the step that moves the break from `now` to `to`.
    fn step_to(&self, now: u64, to: u64) -> BreakStep {
        let (Some(old_end), Some(new_end)) = (page_end(now), page_end(to)) else { return BreakStep::Denied };
        if to < self.start_brk.load(Relaxed) || !self.may_have_data(to) {
            BreakStep::Denied
        } else if new_end == old_end {
            BreakStep::InPage
        } else if to <= now {
            BreakStep::Shrink(UserRange::new(new_end, old_end))
        } else {
            BreakStep::Grow(UserRange::new(old_end, new_end))
        }
    }

    /// Returns the flags that mlockall(MCL_FUTURE) and `set_memory_merge` add to new mappings.
    fn default_flags(&self) -> VmFlags {
        // Relaxed: the caller is a writer, and only exclusive writers change the word.
        VmFlags::from_bits_retain(self.default_flags.load(Relaxed))
    }

    /// Sets the start of the heap and the break, like prctl(PR_SET_MM) with PR_SET_MM_START_BRK and
    /// PR_SET_MM_BRK. A restored program gets its old heap in this way. Mappings do not change.
    ///
    /// # Errors
    ///
    /// See [`HeapError`].
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let start = space.brk(0).unwrap() + (1 << 20);
    /// space.set_heap(start..start).unwrap();
    /// assert_eq!(space.brk(0), Ok(start));
    /// assert_eq!(space.brk(start + PAGE_SIZE), Ok(start + PAGE_SIZE));
    /// ```
    pub fn set_heap(&self, heap: Range<u64>) -> Result<(), HeapError> {
        if heap.start > heap.end || heap.end > Self::TASK_SIZE {
            return Err(HeapError::Invalid);
        }
        let guard = self.write_killable()?;
        // Relaxed: the mmap lock orders all accesses that must agree with each other.
        self.start_brk.store(heap.start, Relaxed);
        self.brk.store(heap.end, Relaxed);
        drop(guard);
        Ok(())
    }

    /// Returns the start of the heap and the break. A concurrent call may change both between the two reads.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let start = space.brk(0).unwrap();
    /// space.brk(start + 1).unwrap();
    /// assert_eq!(space.heap(), start..start + 1);
    /// ```
    pub fn heap(&self) -> Range<u64> {
        // Relaxed: the values are independent.
        self.start_brk.load(Relaxed)..self.brk.load(Relaxed)
    }

    /// Returns true if a break at `brk` respects RLIMIT_DATA, which limits the program's data and the heap
    /// together.
    fn may_have_data(&self, brk: u64) -> bool {
        let data = self.data.end - self.data.start;
        (brk - self.start_brk.load(Relaxed)).saturating_add(data) <= self.limits.get().data
    }

    /// Unmaps `gone`, the pages between the new and the old break. Returns the new break.
    fn shrink_heap(
        &self,
        guard: WriteGuard<'_, P>,
        from: u64,
        to: u64,
        gone: UserRange,
    ) -> Result<u64, BreakStays> {
        if guard.vmas(gone).next().is_none() {
            return Err(BreakStays::Denied(from));
        }
        // Stored before the unmap, because the lock is released if the unmap succeeds.
        self.brk.store(to, Relaxed);
        match guard.unmap_unlocking(&UnmapRange::trusted::<P>(gone)) {
            Ok(()) => Ok(to),
            Err((guard, error)) => {
                self.brk.store(from, Relaxed);
                drop(guard);
                let short = error.lacks_memory();
                Err(if short { BreakStays::NoMemory(from) } else { BreakStays::Denied(from) })
            }
        }
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Becomes the only range writer that moves the break, and claims the range of the plan. Fails if the
    /// break has changed since the plan was made.
    fn claim_heap(&mut self, plan: BreakPlan) -> Result<BreakPlan, ClaimError> {
        let space = self.space;
        if !self.range_writer_mut().is_some_and(RangeWriter::lock_heap) {
            return Err(ClaimError::NeedsExclusive);
        }
        if space.brk.load(Relaxed) != plan.from {
            // The limits were reserved for a different change.
            return Err(ClaimError::NotAHole);
        }
        match plan.step {
            BreakStep::Denied | BreakStep::InPage => {}
            BreakStep::Shrink(_) if !space.range_writers_unmap() => return Err(ClaimError::NeedsExclusive),
            BreakStep::Shrink(gone) => self.claim_range(gone)?,
            BreakStep::Grow(range) if range.end() > AddressSpace::<P>::TASK_SIZE => {}
            BreakStep::Grow(range) => self.claim_hole(range, |above| self.guard_bytes(above) + PAGE_SIZE)?,
        }
        Ok(plan)
    }

    /// Maps `range`, which begins at the end of the heap.
    fn grow_heap(&self, range: UserRange) -> Result<(), GrowthError> {
        let space = self.space;
        let flags = HEAP | space.default_flags();
        let pages = range.pages();
        if range.end() > AddressSpace::<P>::TASK_SIZE
            || (flags.contains(VmFlags::LOCKED) && !self.may_lock_pages(pages))
            || !self.is_clear_for_heap(range)
            || !self.may_expand(flags, pages, ReplacedPages::default())
            || !self.may_have_vmas(0)
        {
            return Err(GrowthError::Denied);
        }
        let charge = self.charge(flags, pages, ReplacedPages::default()).map_err(|_| GrowthError::Denied)?;
        let pgoff = PageIndex::of_byte(range.start());
        let attrs = Attrs::new(flags, &Object::Anonymous, pgoff);
        // The first page of the heap never merges with the VMA below it, even if the attributes are equal.
        let new = match range.start() > space.start_brk.load(Relaxed) {
            true => self.prepare_new(range, &attrs)?,
            false => {
                self.reserve(1)?;
                NewMapping::Fresh(self.alloc(range, &attrs)?)
            }
        };
        let _ = self.insert(range, new, &attrs);
        charge.keep();
        space.counters.count_mapped(self, flags, pages);
        if flags.contains(VmFlags::LOCKED) {
            space.counters.count_locked(self, pages);
        }
        Ok(())
    }

    /// Returns true if `range` and one more page are free, and the guard gap below the next VMA also stays
    /// free. A range writer has already claimed the range as a free hole.
    fn is_clear_for_heap(&self, range: UserRange) -> bool {
        self.range_writer().is_some()
            || self.next_occupied(range.start()).is_none_or(|(_, kept)| range.end() + PAGE_SIZE <= kept)
    }
}
