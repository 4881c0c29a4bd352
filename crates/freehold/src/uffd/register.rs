//! Registering memory with a context, and taking it back.

use super::{Context, Userfaultfd, decode};
use crate::{
    counted::Counted,
    error::UffdRegisterError,
    object::Object,
    platform::Platform,
    space::{locking::WriteGuard, split_merge::SplitMergeError},
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
const NEVER: VmFlags = VmFlags::SPECIAL.union(VmFlags::HUGETLB).union(VmFlags::DROPPABLE);

/// Whether a VMA may be registered like this: anonymous memory, and what shows shared memory, which alone has
/// minor faults.
fn may_register<P: Platform>(vma: &Vma<P>, flags: VmFlags) -> bool {
    let shmem = vma.object().file().is_some_and(|file| file.mapping().is_shmem());
    let kind = match vma.object() {
        Object::Anonymous | Object::Zeroes(_) => !flags.contains(VmFlags::UFFD_MINOR),
        Object::File(_) => shmem,
        Object::Special(_) => false,
    };
    kind && !vma.flags().intersects(NEVER)
}

impl<P: Platform> Userfaultfd<P> {
    /// UFFDIO_REGISTER: what is mapped in the range is the pager's business from now on, as `mode` says. VMAs
    /// are cut and merged; holes are passed over. What is registered with this context for more stays so;
    /// else it gets the new mode.
    ///
    /// # Errors
    ///
    /// See [`UffdRegisterError`], in Linux's order. If memory runs out, what lies left of that is registered.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably; the write lock of the VMAs concerned; tables' locks.
    pub fn register(&self, start: u64, len: u64, mode: RegisterMode) -> Result<(), UffdRegisterError> {
        if mode.is_empty() || !RegisterMode::all().contains(mode) {
            return Err(UffdRegisterError::Invalid);
        }
        let range = decode::<P>(start, len).ok_or(UffdRegisterError::Invalid)?;
        let space = self.context.space.upgrade().ok_or(UffdRegisterError::SpaceGone)?;
        let guard = space.write_killable()?;
        if self.context.queue.is_closed() {
            return Err(UffdRegisterError::Closed);
        }
        let flags = mode.flags();
        let mut found = false;
        for vma in guard.vmas(range) {
            found = true;
            if !may_register(vma, flags) {
                return Err(UffdRegisterError::Invalid);
            }
            if !vma.flags().contains(VmFlags::MAYWRITE) {
                return Err(UffdRegisterError::NotPermitted);
            }
            if vma.uffd().is_some_and(|other| !Counted::same(other, &self.context)) {
                return Err(UffdRegisterError::Busy);
            }
        }
        if !found {
            return Err(UffdRegisterError::Invalid);
        }
        guard.set_uffd(range, flags, Some(&self.context))
    }

    /// UFFDIO_UNREGISTER: what is mapped in the range is nobody's business any more. Whoever waits for one of
    /// its pages goes on. Memory that is not registered is passed over.
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
        let guard = space.write_killable()?;
        let mut found = false;
        for vma in guard.vmas(range) {
            found = true;
            let other = vma.uffd().is_some_and(|other| !Counted::same(other, &self.context));
            if other || !may_register(vma, VmFlags::empty()) {
                return Err(UffdRegisterError::Invalid);
            }
        }
        if !found {
            return Err(UffdRegisterError::Invalid);
        }
        let done = guard.set_uffd(range, VmFlags::empty(), None);
        drop(guard);
        // Also after a failure: part of it may be free of the context. Who still has to wait queues again.
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
        while let Some(vma) = self.next(at).filter(|vma| at < range.end() && vma.start() < range.end()) {
            let part = vma.range().intersection(range);
            at = part.end();
            let (old, new) = (vma.flags(), (vma.flags() - VmFlags::UFFD) | flags);
            // Registered for that and more, or not at all: there is nothing to do.
            let enough = !flags.is_empty() && old.contains(flags);
            if enough || (flags.is_empty() && !old.intersects(VmFlags::UFFD)) {
                continue;
            }
            let _ = self.modify_uffd(vma, part, new, context)?;
            if (old - new).contains(VmFlags::UFFD_WP) {
                self.space.unprotect(part);
            }
        }
        Ok(())
    }

    /// Takes a context that is about to end from every VMA. Merging what becomes alike needs memory, and is
    /// left out where there is none (hazard C-55).
    pub(crate) fn clear_uffd(&self, context: &Counted<Context<P>>) {
        let mut at = 0;
        while let Some(vma) = self.next(at) {
            let range = vma.range();
            at = range.end();
            if vma.uffd().is_none_or(|other| !Counted::same(other, context)) {
                continue;
            }
            let (old, new) = (vma.flags(), vma.flags() - VmFlags::UFFD);
            let right = self.lock_vma(vma);
            if old.contains(VmFlags::UFFD_WP) {
                self.space.unprotect(range);
            }
            if self.modify_uffd(vma, range, new, None).is_err() {
                right.set_flags(new);
                right.set_uffd(None);
            }
        }
    }
}
