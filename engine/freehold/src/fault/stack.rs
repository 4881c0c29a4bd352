//! Stacks: VMAs that grow downwards when somebody touches what lies below them.

use super::{FaultError, SegvCode};
use crate::{
    PAGE_SIZE,
    platform::Platform,
    space::{
        AddressSpace, change::anon::AnonVmaError, claim::RangeClaim, held_lock::HeldLock,
        limits::ReplacedPages, locking::WriteGuard, range_writer::RangeWriterState,
        state::counters::LimitDemand, vma_lock::AddressState,
    },
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use freehold_range::ClaimError;
use freehold_vmspace::{PageCount, UserRange};

/// The signal for an access that nothing grows down to.
fn not_mapped(addr: u64) -> FaultError {
    FaultError::Segv { addr, code: SegvCode::Maperr }
}

impl<P: Platform> AddressSpace<P> {
    /// Grows the stack above `addr`, which is the start of a page that nothing maps, down to it. `Ok` as well
    /// when something maps it by now: look again.
    ///
    /// The set of VMAs changes, so a lock for reading will not do, not even beside a munmap that has
    /// downgraded its own: the stack could grow into tables that are about to be freed (hazard C-3). What
    /// was seen under the lock for reading is looked up again under the one for writing, which is had
    /// only once no munmap of that range is under way. A range writer claims the range: what is being
    /// unmapped is not claimed.
    ///
    /// # Errors
    ///
    /// No stack above, or it may not grow that far: SIGSEGV. A fatal signal.
    ///
    /// # Locks
    ///
    /// The mmap lock, for reading and then for writing, killably; where changes run side by side, the gate,
    /// and a claim of the range and of the gap below it. None on entry.
    pub(crate) fn grow_stack(&self, addr: u64) -> Result<(), FaultError> {
        if self.has_range_writers()
            && self.tries_vma_lock()
            && let Some(grown) = self.grow_stack_beside(addr)
        {
            return grown;
        }
        let mut rounds = Rounds::new();
        loop {
            rounds.again::<P>()?;
            let guard = self.read_killable()?;
            let Some(vma) = guard.next(addr) else { return Err(not_mapped(addr)) };
            let start = vma.start();
            if start <= addr {
                return Ok(());
            }
            if !vma.flags().contains(VmFlags::GROWSDOWN) || !self.may_begin_at(addr, guard.prev(addr)) {
                return Err(not_mapped(addr));
            }
            // Whatever page comes will be anonymous, and choosing its anon_vma needs only this lock.
            if let Err(AnonVmaError::NoMemory) = self.prepare_anon(vma, HeldLock::Mmap(&guard)) {
                return Err(FaultError::OutOfMemory);
            }
            drop(guard);
            let guard = self.write_exclusive_range(UserRange::new(addr, start))?;
            let Some(vma) = guard.next(addr) else { return Err(not_mapped(addr)) };
            if vma.start() <= addr {
                return Ok(());
            }
            // Another VMA, or it was cut meanwhile: what was waited for is not what is to be grown into.
            if vma.start() > start {
                continue;
            }
            return guard.grow_down(vma, addr);
        }
    }

    /// The same as a range writer. `None`: it takes the mmap lock.
    ///
    /// The gap that stays below the stack is claimed with the range that it grows into. What is mapped there
    /// beside it has come before, and the claim is refused; or comes afterwards, and finds the gap kept.
    fn grow_stack_beside(&self, addr: u64) -> Option<Result<(), FaultError>> {
        let start = match self.address_state(addr) {
            AddressState::Mapped => return Some(Ok(())),
            AddressState::Nothing => return Some(Err(not_mapped(addr))),
            AddressState::BelowStack { start } => start,
            AddressState::Unclear => return None,
        };
        let needs = LimitDemand { pages: PageCount::of_bytes(start - addr), ..LimitDemand::default() };
        let state = RangeWriterState::default();
        match self.try_claim(&state, || needs, |guard| guard.claim_below_stack(addr, start)) {
            RangeClaim::Granted(guard, ()) => Some(guard.grow_claimed(addr)),
            // Another task may have grown it.
            RangeClaim::NeedsExclusive => {
                (self.address_state(addr) == AddressState::Mapped).then_some(Ok(()))
            }
            RangeClaim::Killed => Some(Err(FaultError::Killed)),
        }
    }

    /// Whether a stack may begin at `addr` with `below` the next VMA below it. No stack may have the lowest
    /// addresses, whatever privileges the space has (hazard C-67). A gap stays between a stack and what lies
    /// below it, unless that is another stack, or cannot be accessed and so is a gap by itself.
    fn may_begin_at(&self, addr: u64, below: Option<&Vma<P>>) -> bool {
        let config = self.engine.config();
        let clear = below.is_none_or(|below| {
            let flags = below.flags();
            flags.contains(VmFlags::GROWSDOWN)
                || !flags.intersects(VmFlags::ACCESS)
                || addr - below.end() >= config.stack_gap
        });
        addr >= config.mmap_min_addr && clear
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Claims the hole below the stack that starts at `start` down to `addr`, and its gap below that.
    fn claim_below_stack(&self, addr: u64, start: u64) -> Result<(), ClaimError> {
        let gap = self.space.engine.config().stack_gap;
        let from = addr.saturating_sub(gap) & !(PAGE_SIZE - 1);
        // What lies in the gap, and may, is for the exclusive writer to look at.
        self.claim_hole(UserRange::new(from, start), |_| 0)?;
        match self.next(addr).map(Vma::flags).filter(|flags| flags.contains(VmFlags::GROWSDOWN)) {
            Some(flags) => self.reserve_locked_limit(flags, PageCount::of_bytes(start - addr)),
            None => Err(self.release_claims(ClaimError::NeedsExclusive)),
        }
    }

    /// Lets the stack begin at `addr`, if it may, which [was claimed](Self::claim_below_stack).
    fn grow_claimed(&self, addr: u64) -> Result<(), FaultError> {
        let vma = self.next(addr).expect("it was claimed");
        if !self.space.may_begin_at(addr, self.prev(addr)) {
            return Err(not_mapped(addr));
        }
        self.space.prepare_anon_exclusive(self, vma).map_err(|_| FaultError::OutOfMemory)?;
        self.grow_down(vma, addr)
    }

    /// Lets `vma` begin at `addr`, which lies below it with nothing in between.
    fn grow_down(&self, vma: &Vma<P>, addr: u64) -> Result<(), FaultError> {
        let (flags, end) = (vma.flags(), vma.end());
        let grow = PageCount::of_bytes(vma.start() - addr);
        let pgoff = vma.pgoff().checked_sub(grow.get());
        let fits = flags.contains(VmFlags::GROWSDOWN)
            && self.space.may_begin_at(addr, self.prev(addr))
            && self.may_grow(flags, end - addr, grow);
        let Some(pgoff) = pgoff.filter(|_| fits) else { return Err(not_mapped(addr)) };
        let charge = self.charge(flags, grow, ReplacedPages::default()).map_err(|_| not_mapped(addr))?;
        self.reserve(1).map_err(|_| FaultError::OutOfMemory)?;
        charge.keep();
        self.extend(vma, UserRange::new(addr, end), pgoff);
        let counters = &self.space.counters;
        counters.count_mapped(self, flags, grow);
        if flags.contains(VmFlags::LOCKED) {
            counters.count_locked(self, grow);
        }
        Ok(())
    }

    /// The limits: on the stack's size in bytes, and on the address space and locked memory for the pages
    /// that come.
    fn may_grow(&self, flags: VmFlags, size: u64, grow: PageCount) -> bool {
        let space = self.space;
        self.may_expand(flags, grow, ReplacedPages::default())
            && size <= space.limits().get().stack
            && (!flags.contains(VmFlags::LOCKED) || self.may_lock_pages(grow))
    }
}
