//! Stacks: VMAs that grow downwards on an access below them.
//!
//! Growth changes the bounds of a VMA, so it needs the third rung of a fault (`fault/mod.rs`): the mmap lock
//! for writing, or a claim of the hole below the stack. The stack gap below a stack must stay free.
//! `space/placement.rs` keeps new mappings out of this gap.
//!
//! `mod.rs` calls [`grow_stack`](AddressSpace::grow_stack) for a fault at an address that no VMA contains.
//! The gap is checked again under the lock or claim that excludes other mappings; a check under a read lock
//! alone is not sufficient (hazard C-3). `tests/mmap/places.rs` and `tests/range_writers.rs` test growth, gap
//! and limits; `shuttle_engine/stack.rs` grows stacks concurrently with munmap and mmap.

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

/// Returns the error of an access to an unmapped address to which no stack may grow.
fn not_mapped(addr: u64) -> FaultError {
    FaultError::Segv { addr, code: SegvCode::Maperr }
}

impl<P: Platform> AddressSpace<P> {
    /// Grows the stack above `addr` down to `addr`, the start of an unmapped page. Also returns `Ok` if the
    /// address is mapped by now; the caller then looks it up again.
    ///
    /// Growth changes the bounds of a VMA, so a read lock is not sufficient. A munmap that has downgraded its
    /// lock also holds a read lock. The stack could then grow into page tables that this munmap is about to
    /// free (hazard C-3). The state is therefore checked again under the write lock, which is granted only
    /// after every munmap of the range has ended. A range writer claims the range instead; a range that is
    /// being unmapped cannot be claimed.
    ///
    /// # Errors
    ///
    /// Fails with SIGSEGV if there is no stack above, or if that stack may not grow that far. Also fails if a
    /// fatal signal arrives, or if there is no memory.
    ///
    /// # Locks
    ///
    /// The mmap lock for reading and then for writing, killably. A range writer instead takes the gate, and
    /// claims the range and the gap below it. The caller holds none of these locks.
    pub(crate) fn grow_stack(&self, addr: u64) -> Result<(), FaultError> {
        if self.has_range_writers()
            && self.tries_vma_lock()
            && let Some(grown) = self.grow_stack_as_range_writer(addr)
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
            // The fault will map an anonymous page, which needs an anon_vma. Choosing an anon_vma needs only
            // the read lock.
            if let Err(AnonVmaError::NoMemory) = self.prepare_anon(vma, HeldLock::Mmap(&guard)) {
                return Err(FaultError::OutOfMemory);
            }
            drop(guard);
            let guard = self.write_exclusive_range(UserRange::new(addr, start))?;
            let Some(vma) = guard.next(addr) else { return Err(not_mapped(addr)) };
            if vma.start() <= addr {
                return Ok(());
            }
            // The next VMA now starts higher than before. The stack would grow into a larger range than the
            // range for which `write_exclusive_range` has waited.
            if vma.start() > start {
                continue;
            }
            return guard.grow_down(vma, addr);
        }
    }

    /// Grows the stack as a range writer. Returns `None` if the call needs the mmap lock.
    ///
    /// The gap that remains below the stack is claimed together with the range that the stack grows into. A
    /// concurrent mmap in the gap takes effect before the claim or after the growth. In the first case the
    /// claim fails; in the second case mmap respects the gap.
    fn grow_stack_as_range_writer(&self, addr: u64) -> Option<Result<(), FaultError>> {
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
            // Another task may have grown the stack.
            RangeClaim::NeedsExclusive => {
                (self.address_state(addr) == AddressState::Mapped).then_some(Ok(()))
            }
            RangeClaim::Killed => Some(Err(FaultError::Killed)),
        }
    }

    /// Returns true if a stack may begin at `addr`. `below` is the next VMA below. A stack may never use the
    /// lowest addresses, whatever the privileges of the process (hazard C-67). A gap must remain between a
    /// stack and the VMA below. No gap is needed if that VMA is another stack, or permits no access and
    /// therefore acts as a gap.
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
    /// Claims the hole from `addr` up to the stack that starts at `start`, and the stack gap below `addr`.
    fn claim_below_stack(&self, addr: u64, start: u64) -> Result<(), ClaimError> {
        let gap = self.space.engine.config().stack_gap;
        let from = addr.saturating_sub(gap) & !(PAGE_SIZE - 1);
        // The claim fails if a VMA lies in the gap. The exclusive writer decides whether that VMA permits the
        // growth.
        self.claim_hole(UserRange::new(from, start), |_| 0)?;
        match self.next(addr).map(Vma::flags).filter(|flags| flags.contains(VmFlags::GROWSDOWN)) {
            Some(flags) => self.reserve_locked_limit(flags, PageCount::of_bytes(start - addr)),
            None => Err(self.release_claims(ClaimError::NeedsExclusive)),
        }
    }

    /// Grows the stack to `addr`, if permitted. The range [was claimed](Self::claim_below_stack).
    fn grow_claimed(&self, addr: u64) -> Result<(), FaultError> {
        let vma = self.next(addr).expect("the stack above was claimed");
        if !self.space.may_begin_at(addr, self.prev(addr)) {
            return Err(not_mapped(addr));
        }
        self.space.prepare_anon_exclusive(self, vma).map_err(|_| FaultError::OutOfMemory)?;
        self.grow_down(vma, addr)
    }

    /// Extends `vma` down to `addr`. There is no VMA in between.
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

    /// Checks the limits: the stack's size in bytes, and the address space and locked memory for the new
    /// pages.
    fn may_grow(&self, flags: VmFlags, size: u64, grow: PageCount) -> bool {
        let space = self.space;
        self.may_expand(flags, grow, ReplacedPages::default())
            && size <= space.limits().get().stack
            && (!flags.contains(VmFlags::LOCKED) || self.may_lock_pages(grow))
    }
}
