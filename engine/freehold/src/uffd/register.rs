//! Registering memory with a context, and unregistering it.
//!
//! A VMA stores its registration: flags, and a reference to the context. Registering and unregistering
//! therefore change VMAs as writers, and split and merge VMAs as mprotect does. Unregistering also removes
//! write protection from the entries, because an entry may have `UFFD_WP` only in a VMA with the flag of that
//! name. Unregistering then wakes the faults that wait.
//!
//! `uffd/mod.rs` describes the protocol. `fault.rs` reads the registration. `may_register` and `NEVER` decide
//! which memory can be registered.
//!
//! The checks and their order are Linux's. The tests are `uffd::register` (`engine/freehold/tests`), and
//! `uffd::pools` for huge pages.

use super::{Context, Features, Userfaultfd, decode};
use crate::{
    counted::Counted,
    error::UffdRegisterError,
    file::Object,
    platform::{Format, Platform, PteFlags},
    space::{
        AddressSpace,
        change::split_merge::{SplitMergeError, VmaChange},
        locking::WriteGuard,
        range_writer::RangeWriterState,
        state::counters::LimitDemand,
    },
    vma::{Vma, flags::VmFlags},
};
use bitflags::bitflags;
use core::cell::Cell;
use freehold_vmspace::UserRange;

bitflags! {
    /// Kinds of faults that the pager serves, with Linux's numbers. At least one is required.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RegisterMode: u64 {
        /// UFFDIO_REGISTER_MODE_MISSING: accesses to absent pages.
        const MISSING = 1;
        /// UFFDIO_REGISTER_MODE_WP: stores to pages that the pager has write-protected.
        const WP = 2;
        /// UFFDIO_REGISTER_MODE_MINOR: accesses to pages that are in their file's cache but not mapped. For
        /// shared memory and huge pages of a pool.
        const MINOR = 4;
    }
}

bitflags! {
    /// Operations that a pager can apply to registered memory, with Linux's numbers: the result of
    /// UFFDIO_REGISTER.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RangeIoctls: u64 {
        /// [`Userfaultfd::wake`].
        const WAKE = 1 << 2;
        /// [`Userfaultfd::copy`].
        const COPY = 1 << 3;
        /// [`Userfaultfd::zeropage`]; not for huge pages of a pool.
        const ZEROPAGE = 1 << 4;
        /// [`Userfaultfd::move_pages`]; not for huge pages of a pool.
        const MOVE = 1 << 5;
        /// [`Userfaultfd::write_protect`]; for memory that is registered for write protection.
        const WRITEPROTECT = 1 << 6;
        /// [`Userfaultfd::continue_with`]; for memory that is registered for minor faults.
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
    /// Returns the modes of address spaces of this platform. [`WP`](Self::WP) needs a bit of each entry,
    /// which not every [format](Format::FLAGS) of page tables has.
    pub fn supported<P: Platform>() -> Self {
        let has_wp = P::Format::FLAGS.contains(PteFlags::UFFD_WP);
        if has_wp { Self::all() } else { Self::all() - Self::WP }
    }

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

/// Flags of memory that can never be registered (hazard C-51).
const NEVER: VmFlags = VmFlags::SPECIAL.union(VmFlags::DROPPABLE);

/// Returns true if a VMA may be registered with these flags: anonymous memory, mappings of shared memory, and
/// huge pages of a pool. Anonymous memory has no minor faults. A context with `WP_ASYNC` can register
/// mappings of all files for write protection only, because such faults need no pager.
fn may_register<P: Platform>(context: &Context<P>, vma: &Vma<P>, flags: VmFlags) -> bool {
    if vma.huge_page_size().is_some() {
        return true;
    }
    let shmem = vma.object().file().is_some_and(|file| file.mapping().is_shmem());
    let kind = match vma.object() {
        Object::Anonymous | Object::Zeroes(_) => !flags.contains(VmFlags::UFFD_MINOR),
        Object::File(_) => shmem || flags == VmFlags::UFFD_WP && context.wants(Features::WP_ASYNC),
        Object::Special(_) => false,
    };
    kind && !vma.flags().intersects(NEVER)
}

/// Returns true if `at` is not inside a huge page of `vma`.
fn is_border<P: Platform>(vma: &Vma<P>, at: u64) -> bool {
    vma.huge_page_size().is_none_or(|size| at.is_multiple_of(size.bytes()))
}

/// Returns true if `range` does not start inside a huge page. The first VMA in the range decides, even after
/// a hole.
fn starts_at_border<'v, P: Platform>(mut vmas: impl Iterator<Item = &'v Vma<P>>, range: UserRange) -> bool {
    vmas.next().is_none_or(|first| is_border(first, range.start()))
}

/// Returns true if `range` does not end inside a huge page of `vma`.
fn ends_at_border<P: Platform>(vma: &Vma<P>, range: UserRange) -> bool {
    vma.end() < range.end() || is_border(vma, range.end())
}

impl<P: Platform> Userfaultfd<P> {
    /// Registers the memory mapped in the range, so that the pager serves the faults that `mode` selects
    /// (UFFDIO_REGISTER). Splits and merges VMAs; skips holes. Memory that this context already has
    /// registered for at least `mode` keeps its registration; other memory gets the new mode. Returns the
    /// operations that the pager can apply to the whole range. Huge pages of a pool are registered as a
    /// whole, and then share no page tables.
    ///
    /// # Errors
    ///
    /// Fails with a [`UffdRegisterError`]. The checks have Linux's order. If memory runs out, the part of the
    /// range that was already processed stays registered.
    ///
    /// # Locks
    ///
    /// The locks of a [range writer](crate::space::locking#writers), killably. For huge pages of a pool, also
    /// the hugetlb VMA lock and i_mmap, for writing. Locks of page tables.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::{Access, FaultError}, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// // With this feature, a fault fails instead of waiting for the pager.
    /// let config = UffdConfig::new().features(Features::SIGBUS);
    /// let uffd = Userfaultfd::new(&space, config).unwrap();
    /// let ioctls = uffd.register(at, 2 * PAGE_SIZE, RegisterMode::MISSING).unwrap();
    /// assert!(ioctls.contains(RangeIoctls::COPY) && !ioctls.contains(RangeIoctls::WRITEPROTECT));
    /// assert_eq!(space.handle_fault(at, Access::READ), Err(FaultError::Bus { addr: at }));
    /// assert!(space.handle_fault(at + 2 * PAGE_SIZE, Access::READ).is_ok());
    /// ```
    pub fn register(
        &self,
        start: u64,
        len: u64,
        mode: RegisterMode,
    ) -> Result<RangeIoctls, UffdRegisterError> {
        let known = RegisterMode::supported::<P>();
        if mode.is_empty() || !known.contains(mode) {
            return Err(UffdRegisterError::Invalid);
        }
        let range = decode::<P>(start, len).ok_or(UffdRegisterError::Invalid)?;
        let space = self.context.space.upgrade().ok_or(UffdRegisterError::SpaceGone)?;
        // The part that is not registered yet.
        let rest = Cell::new(range);
        let mut huge = false;
        space.retry_when_short(|| {
            let first = rest.get() == range;
            huge |= self.try_register(&space, &rest, mode.flags(), first)?;
            Ok::<(), UffdRegisterError>(())
        })?;
        Ok(RangeIoctls::of(mode, huge))
    }

    /// Makes one attempt of [`register`](Self::register). `rest` becomes the part that is not registered yet.
    /// `first` says that nothing is registered yet. Returns true if the rest had huge pages.
    fn try_register(
        &self,
        space: &AddressSpace<P>,
        rest: &Cell<UserRange>,
        flags: VmFlags,
        first: bool,
    ) -> Result<bool, UffdRegisterError> {
        let (state, range) = (RangeWriterState::default(), rest.get());
        let guard = space.write_range(&state, range, LimitDemand::CUTS)?;
        if self.context.queue.is_closed() {
            return Err(UffdRegisterError::Closed);
        }
        // This check comes before all other checks of VMAs, as on Linux.
        if !starts_at_border(guard.vmas(range), range) {
            return Err(UffdRegisterError::Invalid);
        }
        let (mut found, mut huge) = (false, false);
        for vma in guard.vmas(range) {
            if !may_register(&self.context, vma, flags) {
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
        if !found && first {
            return Err(UffdRegisterError::Invalid);
        }
        guard.set_uffd(rest, flags, Some(&self.context)).map(|()| huge)
    }

    /// Unregisters the memory mapped in the range (UFFDIO_UNREGISTER), and wakes the faults that wait for its
    /// pages. Skips memory that is not registered.
    ///
    /// # Errors
    ///
    /// Fails with a [`UffdRegisterError`]. Fails also if the range contains memory that cannot be registered,
    /// or memory that is registered with another context.
    ///
    /// # Locks
    ///
    /// The locks of [`register`](Self::register).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// # let uffd = Userfaultfd::new(&space, UffdConfig::new().features(Features::SIGBUS)).unwrap();
    /// uffd.register(at, 4 * PAGE_SIZE, RegisterMode::MISSING).unwrap();
    /// uffd.unregister(at, PAGE_SIZE).unwrap();
    /// assert!(space.handle_fault(at, Access::READ).is_ok());
    /// assert!(space.handle_fault(at + PAGE_SIZE, Access::READ).is_err());
    /// ```
    pub fn unregister(&self, start: u64, len: u64) -> Result<(), UffdRegisterError> {
        let range = decode::<P>(start, len).ok_or(UffdRegisterError::Invalid)?;
        let space = self.context.space.upgrade().ok_or(UffdRegisterError::SpaceGone)?;
        // The part that is not unregistered yet.
        let rest = Cell::new(range);
        space.retry_when_short(|| self.try_unregister(&space, &rest, rest.get() == range))
    }

    /// Makes one attempt of [`unregister`](Self::unregister). `rest` becomes the part that is not
    /// unregistered yet. `first` says that nothing is unregistered yet.
    fn try_unregister(
        &self,
        space: &AddressSpace<P>,
        rest: &Cell<UserRange>,
        first: bool,
    ) -> Result<(), UffdRegisterError> {
        let (state, range) = (RangeWriterState::default(), rest.get());
        let guard = space.write_range(&state, range, LimitDemand::CUTS)?;
        if !starts_at_border(guard.vmas(range), range) {
            return Err(UffdRegisterError::Invalid);
        }
        let mut found = false;
        for vma in guard.vmas(range) {
            let other = vma.uffd().is_some_and(|other| !Counted::ptr_eq(other, &self.context));
            let flags = vma.flags() & VmFlags::UFFD;
            if other || !may_register(&self.context, vma, flags) || !ends_at_border(vma, range) {
                return Err(UffdRegisterError::Invalid);
            }
            found = true;
        }
        if !found && first {
            return Err(UffdRegisterError::Invalid);
        }
        let done = guard.set_uffd(rest, VmFlags::empty(), None);
        drop(guard);
        // Wakes faults also after a failure, because a part of the range may be unregistered already. A woken
        // fault that still has to wait queues again.
        self.context.wake(range);
        done
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Registers all memory in `rest` with `context`, or unregisters it. Splits and merges VMAs as needed.
    /// `rest` becomes the part that is not done.
    fn set_uffd(
        &self,
        rest: &Cell<UserRange>,
        flags: VmFlags,
        context: Option<&Counted<Context<P>>>,
    ) -> Result<(), UffdRegisterError> {
        let range = rest.get();
        let mut at = range.start();
        while let Some(vma) = self.first_in(at..range.end()) {
            // The VMAs below are done.
            rest.set(range.rest(at));
            let part = vma.range().intersection(range);
            at = part.end();
            let (old, new) = (vma.flags(), (vma.flags() - VmFlags::UFFD) | flags);
            // The VMA is registered for these flags already, or is not registered and is not to be
            // registered: there is nothing to do.
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

    /// Registers or unregisters huge pages. VMAs of huge pages never merge. A registered VMA shares no
    /// tables, so the tables are unshared before the flags are set. An unregistered VMA may share its tables
    /// again, so the write protection of its entries is removed first.
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

    /// Removes from every VMA a context that is about to close. Merging VMAs that become alike needs memory.
    /// If there is no memory, the merge is skipped (hazard C-55).
    pub(crate) fn clear_uffd(&self, context: &Counted<Context<P>>) {
        let mut at = 0;
        while let Some(vma) = self.next(at) {
            let range = vma.range();
            at = range.end();
            P::cond_resched();
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
