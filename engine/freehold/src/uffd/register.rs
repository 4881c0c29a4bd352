//! Registering memory with a context, and taking it back.

use super::{Context, Userfaultfd, decode};
use crate::{
    counted::Counted,
    error::UffdRegisterError,
    file::Object,
    platform::Platform,
    space::{
        change::split_merge::{SplitMergeError, VmaChange},
        locking::WriteGuard,
        range_writer::RangeWriterState,
        state::counters::LimitDemand,
    },
    vma::{Vma, flags::VmFlags},
};
use bitflags::bitflags;
use freehold_vmspace::UserRange;

bitflags! {
    /// Of what the pager wants to hear, with Linux's numbers; at least one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RegisterMode: u64 {
        /// UFFDIO_REGISTER_MODE_MISSING: accesses where no page is.
        const MISSING = 1;
        /// UFFDIO_REGISTER_MODE_WP: stores to pages that it write-protects.
        const WP = 2;
        /// UFFDIO_REGISTER_MODE_MINOR: accesses to pages of shared memory that are in the cache and not
        /// mapped.
        const MINOR = 4;
    }
}

bitflags! {
    /// What a pager can do to registered memory, with Linux's numbers: what UFFDIO_REGISTER answers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RangeIoctls: u64 {
        /// [`Userfaultfd::wake`].
        const WAKE = 1 << 2;
        /// [`Userfaultfd::copy`].
        const COPY = 1 << 3;
        /// [`Userfaultfd::zeropage`]: not to huge pages of a pool.
        const ZEROPAGE = 1 << 4;
        /// [`Userfaultfd::move_pages`]: no huge pages of a pool.
        const MOVE = 1 << 5;
        /// [`Userfaultfd::write_protect`], of what is registered for it.
        const WRITEPROTECT = 1 << 6;
        /// [`Userfaultfd::continue_with`], of what is registered for minor faults.
        const CONTINUE = 1 << 7;
        /// [`Userfaultfd::poison`].
        const POISON = 1 << 8;
    }
}

impl RangeIoctls {
    fn of(mode: RegisterMode, huge: bool) -> Self {
        let mut ioctls = Self::all();
        if huge {
            ioctls -= Self::ZEROPAGE | Self::MOVE;
        }
        ioctls.set(Self::WRITEPROTECT, mode.contains(RegisterMode::WP));
        ioctls.set(Self::CONTINUE, mode.contains(RegisterMode::MINOR));
        ioctls
    }
}

impl RegisterMode {
    fn flags(self) -> VmFlags {
        let mut flags = VmFlags::empty();
        flags.set(VmFlags::UFFD_MISSING, self.contains(Self::MISSING));
        flags.set(VmFlags::UFFD_WP, self.contains(Self::WP));
        flags.set(VmFlags::UFFD_MINOR, self.contains(Self::MINOR));
        flags
    }
}

impl From<SplitMergeError> for UffdRegisterError {
    fn from(error: SplitMergeError) -> Self {
        match error {
            SplitMergeError::TooManyVmas => UffdRegisterError::TooManyVmas,
            SplitMergeError::NoMemory => UffdRegisterError::OutOfMemory,
            SplitMergeError::NotSplittable => UffdRegisterError::Invalid,
        }
    }
}

/// Memory that is never registered, whatever is asked (hazard C-51).
const NEVER: VmFlags = VmFlags::SPECIAL.union(VmFlags::DROPPABLE);

/// Whether a VMA may be registered like this: anonymous memory, and what shows shared memory or has huge
/// pages of a pool, which alone have minor faults.
fn may_register<P: Platform>(vma: &Vma<P>, flags: VmFlags) -> bool {
    if vma.huge_page_size().is_some() {
        return true;
    }
    let shmem = vma.object().file().is_some_and(|file| file.mapping().is_shmem());
    let kind = match vma.object() {
        Object::Anonymous | Object::Zeroes(_) => !flags.contains(VmFlags::UFFD_MINOR),
        Object::File(_) => shmem,
        Object::Special(_) => false,
    };
    kind && !vma.flags().intersects(NEVER)
}

/// Whether `at` lies inside no huge page of `vma`.
fn is_border<P: Platform>(vma: &Vma<P>, at: u64) -> bool {
    vma.huge_page_size().is_none_or(|size| at.is_multiple_of(size.bytes()))
}

/// Whether `range` does not start inside a huge page: the first VMA in it decides, also if there is a hole
/// before that.
fn starts_at_border<'v, P: Platform>(mut vmas: impl Iterator<Item = &'v Vma<P>>, range: UserRange) -> bool {
    vmas.next().is_none_or(|first| is_border(first, range.start()))
}

/// Whether `range` does not end inside a huge page of `vma`.
fn ends_at_border<P: Platform>(vma: &Vma<P>, range: UserRange) -> bool {
    vma.end() < range.end() || is_border(vma, range.end())
}

impl<P: Platform> Userfaultfd<P> {
    /// UFFDIO_REGISTER: what is mapped in the range is the pager's business from now on, as `mode` says. VMAs
    /// are cut and merged; holes are passed over. What is registered with this context for more stays so;
    /// else it gets the new mode. Returns what the pager can do to all of it. Huge pages of a pool are
    /// registered whole, and share no page tables then.
    ///
    /// # Errors
    ///
    /// See [`UffdRegisterError`], in Linux's order. If memory runs out, what lies left of that is registered.
    ///
    /// # Locks
    ///
    /// Those of a [range writer](crate::space::locking#writers), killably; of huge pages of a pool the
    /// hugetlb VMA lock and i_mmap, for writing; tables' locks.
    pub fn register(
        &self,
        start: u64,
        len: u64,
        mode: RegisterMode,
    ) -> Result<RangeIoctls, UffdRegisterError> {
        if mode.is_empty() || !RegisterMode::all().contains(mode) {
            return Err(UffdRegisterError::Invalid);
        }
        let range = decode::<P>(start, len).ok_or(UffdRegisterError::Invalid)?;
        let space = self.context.space.upgrade().ok_or(UffdRegisterError::SpaceGone)?;
        let state = RangeWriterState::default();
        let guard = space.write_range(&state, range, LimitDemand::CUTS)?;
        if self.context.queue.is_closed() {
            return Err(UffdRegisterError::Closed);
        }
        let flags = mode.flags();
        // Before everything else about VMAs, as on Linux.
        if !starts_at_border(guard.vmas(range), range) {
            return Err(UffdRegisterError::Invalid);
        }
        let (mut found, mut huge) = (false, false);
        for vma in guard.vmas(range) {
            if !may_register(vma, flags) {
                return Err(UffdRegisterError::Invalid);
            }
            if !vma.flags().contains(VmFlags::MAYWRITE) {
                return Err(UffdRegisterError::NotPermitted);
            }
            if !ends_at_border(vma, range) {
                return Err(UffdRegisterError::Invalid);
            }
            (found, huge) = (true, huge || vma.flags().contains(VmFlags::HUGETLB));
            if vma.uffd().is_some_and(|other| !Counted::ptr_eq(other, &self.context)) {
                return Err(UffdRegisterError::Busy);
            }
        }
        if !found {
            return Err(UffdRegisterError::Invalid);
        }
        guard.set_uffd(range, flags, Some(&self.context))?;
        Ok(RangeIoctls::of(mode, huge))
    }

    /// UFFDIO_UNREGISTER: what is mapped in the range is nobody's business any more. Faults that wait for one
    /// of its pages go on. Memory that is not registered is passed over.
    ///
    /// # Errors
    ///
    /// See [`UffdRegisterError`]; also if some of it could not be registered, or belongs to another context.
    ///
    /// # Locks
    ///
    /// As [`register`](Self::register).
    pub fn unregister(&self, start: u64, len: u64) -> Result<(), UffdRegisterError> {
        let range = decode::<P>(start, len).ok_or(UffdRegisterError::Invalid)?;
        let space = self.context.space.upgrade().ok_or(UffdRegisterError::SpaceGone)?;
        let state = RangeWriterState::default();
        let guard = space.write_range(&state, range, LimitDemand::CUTS)?;
        if !starts_at_border(guard.vmas(range), range) {
            return Err(UffdRegisterError::Invalid);
        }
        let mut found = false;
        for vma in guard.vmas(range) {
            let other = vma.uffd().is_some_and(|other| !Counted::ptr_eq(other, &self.context));
            if other || !may_register(vma, VmFlags::empty()) || !ends_at_border(vma, range) {
                return Err(UffdRegisterError::Invalid);
            }
            found = true;
        }
        if !found {
            return Err(UffdRegisterError::Invalid);
        }
        let done = guard.set_uffd(range, VmFlags::empty(), None);
        drop(guard);
        // Also after a failure: part of it may be free of the context. A fault that still has to wait queues
        // again.
        self.context.wake(range);
        done
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Registers everything in `range` with `context`, or with none; VMA by VMA, cut and merged as needed.
    fn set_uffd(
        &self,
        range: UserRange,
        flags: VmFlags,
        context: Option<&Counted<Context<P>>>,
    ) -> Result<(), UffdRegisterError> {
        let mut at = range.start();
        while let Some(vma) = self.first_in(at..range.end()) {
            let part = vma.range().intersection(range);
            at = part.end();
            let (old, new) = (vma.flags(), (vma.flags() - VmFlags::UFFD) | flags);
            // Registered for that and more, or not at all: there is nothing to do.
            let enough = !flags.is_empty() && old.contains(flags);
            if enough || (flags.is_empty() && !old.intersects(VmFlags::UFFD)) {
                continue;
            }
            if vma.flags().contains(VmFlags::HUGETLB) {
                self.set_uffd_of_huge(vma, part, new, context)?;
                continue;
            }
            let vma = self.modify_uffd(vma, part, new, context)?;
            if (old - new).contains(VmFlags::UFFD_WP) {
                self.space.unprotect(vma, part);
            }
        }
        Ok(())
    }

    /// As for other memory; VMAs of huge pages never merge. A registered one shares no tables: it leaves them
    /// before its flags say so. What is not registered may share its own again: marks are gone before.
    fn set_uffd_of_huge(
        &self,
        vma: &Vma<P>,
        part: UserRange,
        new: VmFlags,
        context: Option<&Counted<Context<P>>>,
    ) -> Result<(), UffdRegisterError> {
        let (old, policy) = (vma.flags(), vma.policy());
        let vma = self.modify(vma, part, VmaChange { flags: old, policy })?;
        let right = self.lock_vma(vma);
        if (old - new).contains(VmFlags::UFFD_WP) {
            self.space.unprotect(vma, part);
        }
        let _alone = vma.unshare_tables(&self.space.vm, part);
        right.set_flags(new);
        right.set_uffd(context.cloned());
        Ok(())
    }

    /// Takes a context that is about to end from every VMA. Merging what becomes alike needs memory, and is
    /// left out where there is none (hazard C-55).
    pub(crate) fn clear_uffd(&self, context: &Counted<Context<P>>) {
        let mut at = 0;
        while let Some(vma) = self.next(at) {
            let range = vma.range();
            at = range.end();
            if vma.uffd().is_none_or(|other| !Counted::ptr_eq(other, context)) {
                continue;
            }
            let (old, new) = (vma.flags(), vma.flags() - VmFlags::UFFD);
            let right = self.lock_vma(vma);
            if old.contains(VmFlags::UFFD_WP) {
                self.space.unprotect(vma, range);
            }
            if self.modify_uffd(vma, range, new, None).is_err() {
                right.set_flags(new);
                right.set_uffd(None);
            }
        }
    }
}
