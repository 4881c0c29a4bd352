//! brk: the heap, one growing area behind the program's data.
//!
//! # The break
//!
//! The break, and where the heap starts, are written by the exclusive writer; the break is written by one
//! range writer, too. That one has said so in `heap_locked`:
//!
//! | `heap_locked` | meaning | goes to |
//! | --- | --- | --- |
//! | false | no range writer looks at the break | true: a range writer, within the gate |
//! | true | one does, and may move it | false: the same task, when its write set is published, before it leaves the gate |
//!
//! A task that finds it true becomes the exclusive writer. So it is false for the exclusive writer, and what
//! the break says agrees with what is mapped for everybody that may look.

use crate::{
    PAGE_SIZE,
    error::{HeapError, NoMemory},
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
use core::cell::Cell;
use freehold_range::ClaimError;
use freehold_sync::{Killed, atomic::Ordering::Relaxed};
use freehold_vmspace::{PageCount, PageIndex, UserRange};

/// What the heap is, besides what mlockall adds.
const HEAP: VmFlags = VmFlags::READ
    .union(VmFlags::WRITE)
    .union(VmFlags::MAYREAD)
    .union(VmFlags::MAYWRITE)
    .union(VmFlags::MAYEXEC)
    .union(VmFlags::ACCOUNT)
    .union(VmFlags::SOFTDIRTY);

/// The end of the last page that a break at `brk` needs; `None` beyond the last address.
fn page_end(brk: u64) -> Option<u64> {
    brk.checked_next_multiple_of(PAGE_SIZE)
}

/// The heap may not grow; nobody is told why.
struct GrowthDenied;

impl From<NoMemory> for GrowthDenied {
    fn from(_: NoMemory) -> Self {
        GrowthDenied
    }
}

/// The break as it is, and the step that brings it to where it is wanted.
#[derive(Clone, Copy)]
struct BreakPlan {
    from: u64,
    step: BreakStep,
}

/// What it takes to bring the break to where it is wanted.
#[derive(Clone, Copy)]
enum BreakStep {
    /// It cannot be there.
    Denied,
    /// Nothing: it stays in its page.
    InPage,
    /// These pages, at the end of the heap.
    Grow(UserRange),
    /// That these pages go.
    Shrink(UserRange),
}

impl BreakStep {
    /// Returns what the step may add to sizes that have limits, if new mappings get `default_flags`.
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
    /// Asks for the break, the end of the heap, to be at `to`. Returns where it is: at `to`, or, when that
    /// cannot be, where it was. It never lies below where it started.
    ///
    /// # Errors
    ///
    /// Only a fatal signal.
    ///
    /// # Locks
    ///
    /// Those of a [range writer](crate::space::locking#writers), killably; to shrink, as
    /// [`munmap`](Self::munmap). Then, where the heap is locked, those of faults.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let heap = space.brk(0).unwrap();
    /// assert_eq!(space.brk(heap + PAGE_SIZE), Ok(heap + PAGE_SIZE));
    /// assert_eq!(space.brk(u64::MAX), Ok(heap + PAGE_SIZE), "as it was");
    /// ```
    pub fn brk(&self, to: u64) -> Result<u64, Killed> {
        let state = RangeWriterState::default();
        let (guard, BreakPlan { from, step }) = self.write_heap(&state, to)?;
        match step {
            BreakStep::Denied => Ok(from),
            BreakStep::InPage => {
                self.brk.store(to, Relaxed);
                Ok(to)
            }
            BreakStep::Shrink(gone) => Ok(self.shrink_heap(guard, from, to, gone)),
            BreakStep::Grow(range) => {
                if guard.grow_heap(range).is_err() {
                    return Ok(from);
                }
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

    /// The right to bring the break to `to`: as a writer of the pages that come or go, who alone moves the
    /// break; or as the exclusive writer, at a moment when none of them is still closing. With it, where
    /// the break is and what it takes: decided once, for limits may change at any time.
    fn write_heap<'s>(
        &'s self,
        state: &'s RangeWriterState,
        to: u64,
    ) -> Result<(WriteGuard<'s, P>, BreakPlan), Killed> {
        let plan = || {
            // Relaxed: a guess, until it is known that nobody moves it.
            let from = self.brk.load(Relaxed);
            BreakPlan { from, step: self.step_to(from, to) }
        };
        // What the reservation is for, which comes before the claim.
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

    /// What it takes to bring the break from `now` to `to`.
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

    /// What mlockall(MCL_FUTURE) and `set_memory_merge` add to new mappings.
    fn default_flags(&self) -> VmFlags {
        // Relaxed: by exclusive writers or range writers, like every access.
        VmFlags::from_bits_retain(self.default_flags.load(Relaxed))
    }

    /// Puts the heap, which is empty, at `start`: prctl(PR_SET_MM) with PR_SET_MM_START_BRK and
    /// PR_SET_MM_BRK, by which a restored program gets the heap it had. What is mapped does not change.
    ///
    /// # Errors
    ///
    /// See [`HeapError`].
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably.
    pub fn set_heap(&self, start: u64) -> Result<(), HeapError> {
        if start > Self::TASK_SIZE {
            return Err(HeapError::Invalid);
        }
        let guard = self.write_killable()?;
        // Relaxed: under the mmap lock, like every access that must agree with another.
        self.start_brk.store(start, Relaxed);
        self.brk.store(start, Relaxed);
        drop(guard);
        Ok(())
    }

    /// RLIMIT_DATA, which counts the program's data with the heap.
    fn may_have_data(&self, brk: u64) -> bool {
        let data = self.data.end - self.data.start;
        (brk - self.start_brk.load(Relaxed)).saturating_add(data) <= self.limits.get().data
    }

    /// Unmaps `gone`, the pages between the new break and the old one. Returns the break.
    fn shrink_heap(&self, guard: WriteGuard<'_, P>, from: u64, to: u64, gone: UserRange) -> u64 {
        if guard.vmas(gone).next().is_none() {
            return from;
        }
        // Set first: on success the lock is gone.
        self.brk.store(to, Relaxed);
        match guard.unmap_unlocking(&UnmapRange::trusted::<P>(gone)) {
            Ok(()) => to,
            Err((guard, _)) => {
                self.brk.store(from, Relaxed);
                drop(guard);
                from
            }
        }
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Becomes the one range writer that moves the break, and claims what the plan takes, if the break is
    /// still where it was planned from.
    fn claim_heap(&mut self, plan: BreakPlan) -> Result<BreakPlan, ClaimError> {
        let space = self.space;
        if !self.range_writer_mut().is_some_and(RangeWriter::lock_heap) {
            return Err(ClaimError::NeedsExclusive);
        }
        if space.brk.load(Relaxed) != plan.from {
            // What was reserved is not what is needed.
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

    /// Maps `range`, which starts at the end of the heap.
    fn grow_heap(&self, range: UserRange) -> Result<(), GrowthDenied> {
        let space = self.space;
        let flags = HEAP | space.default_flags();
        let pages = range.pages();
        if range.end() > AddressSpace::<P>::TASK_SIZE
            || (flags.contains(VmFlags::LOCKED) && !self.may_lock_pages(pages))
            || !self.is_clear_for_heap(range)
            || !self.may_expand(flags, pages, ReplacedPages::default())
            || !self.may_have_vmas(0)
        {
            return Err(GrowthDenied);
        }
        let charge = self.charge(flags, pages, ReplacedPages::default()).map_err(|_| GrowthDenied)?;
        let pgoff = PageIndex::of_byte(range.start());
        let attrs = Attrs::new(flags, &Object::Anonymous, pgoff);
        // The first page of the heap never joins what lies before it, even if that looks alike.
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

    /// Whether `range` is free, and a page more, and then the gap that what comes next keeps below itself. A
    /// range writer has claimed it as such.
    fn is_clear_for_heap(&self, range: UserRange) -> bool {
        self.range_writer().is_some()
            || self.next_occupied(range.start()).is_none_or(|(_, kept)| range.end() + PAGE_SIZE <= kept)
    }
}
