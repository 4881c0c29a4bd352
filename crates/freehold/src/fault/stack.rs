//! Stacks: VMAs that grow downwards when somebody touches what lies below them.

use super::{FaultError, SegvCode};
use crate::{
    platform::Platform,
    rounds::Rounds,
    space::{AddressSpace, anon::NotPrepared, held::Held, limits::Replaced, locking::WriteGuard},
    vma::{Vma, flags::VmFlags},
};
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
    /// only once no munmap of that range is under way.
    ///
    /// # Errors
    ///
    /// No stack above, or it may not grow that far: SIGSEGV. A fatal signal.
    ///
    /// # Locks
    ///
    /// The mmap lock, for reading and then for writing, killably; none on entry.
    pub(crate) fn grow_stack(&self, addr: u64) -> Result<(), FaultError> {
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
            if let Err(NotPrepared::NoMemory) = self.prepare_anon(vma, Held::Mmap(&guard)) {
                return Err(FaultError::OutOfMemory);
            }
            drop(guard);
            let guard = self.write_range(UserRange::new(addr, start))?;
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
    /// Lets `vma` begin at `addr`, which lies below it with nothing in between.
    fn grow_down(&self, vma: &Vma<P>, addr: u64) -> Result<(), FaultError> {
        let (flags, end) = (vma.flags(), vma.end());
        let grow = PageCount::of_bytes(vma.start() - addr);
        let pgoff = vma.pgoff().checked_sub(grow.get());
        let fits = flags.contains(VmFlags::GROWSDOWN)
            && self.space.may_begin_at(addr, self.prev(addr))
            && self.may_grow(flags, end - addr, grow);
        let Some(pgoff) = pgoff.filter(|_| fits) else { return Err(not_mapped(addr)) };
        self.reserve(1).map_err(|_| FaultError::OutOfMemory)?;
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
        self.may_expand(flags, grow, Replaced::default())
            && size <= space.limits().get().stack
            && (!flags.contains(VmFlags::LOCKED) || self.may_lock_pages(grow))
            && grow <= space.engine.config().commit_pages
    }
}
