//! UFFDIO_MOVE: pages move from one place of an address space to another without being copied.
//!
//! Both VMAs are read-locked. The move takes the second lock only if that lock is free. Otherwise the move
//! takes both locks under the mmap lock, and then releases the mmap lock (hazard C-50). For each pair of
//! tables, the move takes both locks in address order. Under these locks, the move does the following for
//! each page:
//!
//! 1. lock the page's frame, if its lock is free;
//! 2. take the entry;
//! 3. check that there is no other reference to the page (hazard C-48);
//! 4. give the page its new home and its new entry.
//!
//! Old translations are flushed before the locks of the tables are released. A task that is working on the
//! page (a migration, a memory failure) holds the lock of the frame; the move waits for that task without any
//! lock.
//!
//! Forks, moves and unmaps of either VMA wait for its lock. Such an operation therefore finds every page at
//! exactly one place.
//!
//! The tests are `uffd::moving` (`engine/freehold/tests`) and `uffd` (`shuttle_engine`).

use super::{Context, Userfaultfd, decode, fill};
use crate::{
    PAGE_SIZE, Pfn, VirtAddr,
    counted::Counted,
    error::UffdError,
    fault::{Access, FaultError},
    platform::Platform,
    space::{AddressSpace, locking::VmaRead, shortage::ShortageRounds},
    vma::{
        Vma,
        flags::{
            VmFlags,
            pte_flags::{vma_pte_flags, written},
        },
    },
    wait::Rounds,
};
use bitflags::bitflags;
use freehold_pagetable::{Kind, Level, MarkerKind, Pte, PteFlags, PteGuard, VaRange};
use freehold_sync::Sleepers;
use freehold_vmspace::{AnonPage, MigrationEntry, UserRange, VmGather};

/// Number of pages moved in one hold of the locks.
const BATCH: u64 = 64;

bitflags! {
    /// Options for moving pages, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MoveMode: u64 {
        /// UFFDIO_MOVE_MODE_DONTWAKE: waiting faults are not woken.
        const DONTWAKE = 1;
        /// UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES: a hole in the source counts as moved.
        const ALLOW_SRC_HOLES = 2;
    }
}

/// Flags of VMAs whose pages cannot be moved.
const NEVER: VmFlags = VmFlags::SHARED
    .union(VmFlags::PFNMAP)
    .union(VmFlags::IO)
    .union(VmFlags::HUGETLB)
    .union(VmFlags::MIXEDMAP);

impl<P: Platform> Userfaultfd<P> {
    /// Moves the pages of `len` bytes at `from` to the empty range at `to` (UFFDIO_MOVE). Returns the number
    /// of bytes moved, like [`copy`](Self::copy).
    ///
    /// # Errors
    ///
    /// Fails with a [`UffdError`] if nothing was moved. Fails with [`UffdError::Busy`] if a page has another
    /// user: a forked process, or a task that holds a reference, even briefly. Such a page can be copied.
    ///
    /// # Locks
    ///
    /// The locks of the two VMAs for reading, taken without the mmap lock where possible; the locks of two
    /// page tables; locks of frames, taken without waiting.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// # let uffd = Userfaultfd::new(&space, UffdConfig::default()).unwrap();
    /// # uffd.register(at + 2 * PAGE_SIZE, 2 * PAGE_SIZE, RegisterMode::MISSING).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// let frame = space.frame_at(at);
    /// let to = at + 3 * PAGE_SIZE;
    /// assert_eq!(uffd.move_pages(to, at, PAGE_SIZE, MoveMode::empty()), Ok(PAGE_SIZE));
    /// assert_eq!((space.frame_at(to), space.frame_at(at)), (frame, None));
    /// ```
    pub fn move_pages(&self, to: u64, from: u64, len: u64, mode: MoveMode) -> Result<u64, UffdError> {
        if self.context.is_changing() {
            return Err(UffdError::Changing);
        }
        let target = decode::<P>(to, len).ok_or(UffdError::Invalid)?;
        let source = decode::<P>(from, len).ok_or(UffdError::Invalid)?;
        if !MoveMode::all().contains(mode) {
            return Err(UffdError::Invalid);
        }
        let space = self.space()?;
        let holes = mode.contains(MoveMode::ALLOW_SRC_HOLES);
        let mover = Mover { context: &self.context, space: &space, source, target, holes };
        let (mut moved, mut rounds) = (0, Rounds::new());
        let (mut failed, mut shortage) = (Ok(()), ShortageRounds::new());
        while moved < len && failed.is_ok() {
            let before = moved;
            // A round may move no page: it may wait for a frame.
            failed = rounds.again::<P>().map_err(UffdError::from).and_then(|()| mover.batch(&mut moved));
            if moved > before {
                shortage.progressed();
            }
            failed = failed.or_else(|error| shortage.again(&space, error));
        }
        if moved > 0 && !mode.contains(MoveMode::DONTWAKE) {
            self.context.wake(UserRange::at(to, moved));
        }
        failed.map(|()| len).or_else(|error| if moved > 0 { Ok(moved) } else { Err(error) })
    }
}

/// A running move operation.
struct Mover<'m, P: Platform> {
    context: &'m Counted<Context<P>>,
    space: &'m AddressSpace<P>,
    source: UserRange,
    target: UserRange,
    /// True if holes of the source are allowed.
    holes: bool,
}

/// Both VMAs, locked. `target` is `None` if they are the same VMA.
struct Both<'s, P: Platform> {
    source: VmaRead<'s, P>,
    target: Option<VmaRead<'s, P>>,
}

impl<P: Platform> Both<'_, P> {
    fn target(&self) -> &Vma<P> {
        self.target.as_ref().unwrap_or(&self.source)
    }
}

/// Reason for which a page was not moved.
enum Obstacle {
    /// Another task is working on the page in this frame.
    Wait(Pfn),
    /// The page at this address was swapped out.
    SwappedOut(u64),
    Error(UffdError),
}

impl From<UffdError> for Obstacle {
    fn from(error: UffdError) -> Self {
        Obstacle::Error(error)
    }
}

impl<'m, P: Platform> Mover<'m, P> {
    /// Moves a batch of pages after the first `moved` bytes, and advances `moved`.
    fn batch(&self, moved: &mut u64) -> Result<(), UffdError> {
        let both = self.lock_both(self.source.start() + *moved, self.target.start() + *moved)?;
        if self.context.is_changing() {
            return Err(UffdError::Changing);
        }
        let obstacle = self.part(&both, moved);
        drop(both);
        match obstacle {
            Ok(()) => Ok(()),
            Err(Obstacle::Error(error)) => Err(error),
            Err(Obstacle::Wait(pfn)) => {
                self.space.vm.memory().wait_for_frame(pfn)?;
                Ok(())
            }
            // The page gets an entry again, without a lock held, and the batch continues there.
            Err(Obstacle::SwappedOut(from)) => self.bring_back(from),
        }
    }

    /// Brings a page back that was swapped out.
    fn bring_back(&self, from: u64) -> Result<(), UffdError> {
        let access = Access { user: false, ..Access::READ };
        match self.space.handle_fault(from, access) {
            Ok(_) => Ok(()),
            Err(FaultError::OutOfMemory) => Err(UffdError::OutOfMemory),
            Err(FaultError::Killed) => Err(UffdError::Killed),
            Err(_) => Err(UffdError::BadAddress),
        }
    }

    /// Locks the two VMAs. Never waits for the second lock while the first lock is held.
    fn lock_both(&self, from: u64, to: u64) -> Result<Both<'_, P>, UffdError> {
        let space = self.space;
        let mut rounds = Rounds::new();
        loop {
            rounds.again::<P>()?;
            if let Ok(source) = space.lock_vma(from) {
                let one = source.range().contains(to);
                let target = if one { None } else { space.lock_vma(to).ok() };
                if one || target.is_some() {
                    let both = Both { source, target };
                    if both.target().anon().is_some() {
                        return self.fits(&both.source, both.target()).map(|()| both);
                    }
                }
            }
            let guard = space.read_killable()?;
            let (source, target) = (guard.find(from), guard.find(to));
            let source = source.ok_or(UffdError::NotRegistered)?;
            let target = target.ok_or(UffdError::NotRegistered)?;
            self.fits(source, target)?;
            fill::prepare(space, &guard, target)?;
            if let Ok(locked) = guard.lock_vma(source) {
                let one = core::ptr::eq(source, target);
                let second = if one { None } else { guard.lock_vma(target).ok() };
                if one || second.is_some() {
                    return Ok(Both { source: locked, target: second });
                }
            }
            // The reader count of one of the VMAs is temporarily at its maximum.
            drop(guard);
            P::relax();
        }
    }

    /// Checks that pages may move between these two VMAs.
    fn fits(&self, source: &Vma<P>, target: &Vma<P>) -> Result<(), UffdError> {
        let (a, b) = (source.flags(), target.flags());
        let alike = VmFlags::ACCESS | VmFlags::LOCKED;
        let fits = self.source.end() <= source.end()
            && self.target.end() <= target.end()
            && !(a | b).intersects(NEVER)
            && a & alike == b & alike
            && a.contains(VmFlags::WRITE)
            && target.uffd().is_some_and(|context| Counted::ptr_eq(context, self.context))
            && source.is_anonymous()
            && target.is_anonymous();
        if fits { Ok(()) } else { Err(UffdError::Invalid) }
    }

    /// Moves pages of one source table to one target table.
    fn part(&self, both: &Both<'_, P>, moved: &mut u64) -> Result<(), Obstacle> {
        let space = self.space;
        let from = VirtAddr::new(self.source.start() + *moved);
        let to = VirtAddr::new(self.target.start() + *moved);
        let target = space.vm.pte_table_alloc(to).map_err(UffdError::from)?;
        let span = |address: VirtAddr| VaRange::entry(address, Level::Pmd).end().get() - address.get();
        let left = self.source.end() - from.get();
        let len = left.min(span(from)).min(span(to)).min(BATCH * PAGE_SIZE);
        let Some(source) = space.vm.pte_table(from) else {
            let (pte, level) = space.vm.peek(from);
            if level > Level::Pte && pte.is_leaf(level) {
                return space.vm.split_huge_around(from.get()).map_err(|_| UffdError::OutOfMemory.into());
            }
            return self.pass_hole(moved, len).map_err(Obstacle::Error);
        };
        let mut gather: VmGather<'_, _, 1> = space.vm.gather(VaRange::of(from.get(), from.get() + len));
        // Checks in the same read section as the moves, so that a change that waits for a grace period finds
        // the pages at their new place.
        let rcu = P::rcu_read();
        if self.context.is_changing() {
            return Err(UffdError::Changing.into());
        }
        let (source, target) = source.lock_two(target);
        if !source.is_linked() || target.as_ref().is_some_and(|target| !target.is_linked()) {
            // A discard has reclaimed a table: look again.
            return Ok(());
        }
        let mut tables = Tables { source, target, sleepers: None };
        let end = *moved + len;
        let mut done = Ok(());
        while *moved < end && done.is_ok() && tables.sleepers.is_none() {
            done = self.one(both, &mut tables, *moved, &mut gather);
            *moved += if done.is_ok() { PAGE_SIZE } else { 0 };
        }
        // Flushes with both locks held: after their release, other tasks may find the page at its new place
        // and unmap it.
        gather.flush();
        drop(tables);
        drop(rcu);
        gather.finish();
        done
    }

    /// Skips `len` bytes of the source in which nothing is mapped.
    fn pass_hole(&self, moved: &mut u64, len: u64) -> Result<(), UffdError> {
        if !self.holes {
            return Err(UffdError::SourceHole);
        }
        let end = *moved + len;
        while *moved < end {
            let address = VirtAddr::new(self.target.start() + *moved);
            if !self.space.vm.read_entry(address).0.is_none() {
                return Err(UffdError::Present);
            }
            *moved += PAGE_SIZE;
        }
        Ok(())
    }

    /// Moves the page after the first `moved` bytes.
    fn one(
        &self,
        both: &Both<'_, P>,
        tables: &mut Tables<'m, P>,
        moved: u64,
        gather: &mut VmGather<'_, P, 1>,
    ) -> Result<(), Obstacle> {
        let from = VirtAddr::new(self.source.start() + moved);
        let to = VirtAddr::new(self.target.start() + moved);
        if !tables.target().get(to).is_none() {
            return Err(UffdError::Present.into());
        }
        let rights = vma_pte_flags(both.target().flags());
        let new = match tables.source.get(from).kind(Level::Pte) {
            Kind::None if self.holes => return Ok(()),
            Kind::None => return Err(UffdError::SourceHole.into()),
            Kind::Leaf { pfn, flags } if flags.contains(PteFlags::SPECIAL) => {
                tables.source.take(from, gather);
                Pte::page(pfn, rights | PteFlags::SPECIAL)
            }
            Kind::Leaf { pfn, .. } => {
                self.take(tables, from, pfn, both.target().anon_page(to.get()), gather)?;
                let rights = rights | written(both.target().flags());
                Pte::page(pfn, rights)
            }
            Kind::Marker { kind: MarkerKind::Migration, payload } => {
                return Err(Obstacle::Wait(MigrationEntry::of(payload).pfn));
            }
            Kind::Marker { kind: MarkerKind::Swap, .. } => return Err(Obstacle::SwappedOut(from.get())),
            Kind::Marker { .. } | Kind::Table { .. } => return Err(UffdError::BadAddress.into()),
        };
        tables.target().set(to, new);
        Ok(())
    }

    /// Takes the entry of the page in `pfn`. Only this address space uses the page, and there is no other
    /// reference to it. Sets the home and the index of the page to those in `page`.
    fn take(
        &self,
        tables: &mut Tables<'m, P>,
        from: VirtAddr,
        pfn: Pfn,
        page: AnonPage,
        gather: &mut VmGather<'_, P, 1>,
    ) -> Result<(), Obstacle> {
        let frame = self.space.platform().frame(pfn);
        if !frame.is_anon() || !frame.is_exclusive() {
            return Err(UffdError::Busy.into());
        }
        // If another task is working on the page, this task waits for the other task. Without this wait, the
        // walk of the other task, which starts from the page's old home, could miss the entry at the new
        // place (`rmap/walk.rs`).
        let Some(identity) = self.space.vm.memory().try_lock_frame(pfn) else {
            return Err(Obstacle::Wait(pfn));
        };
        let old = tables.source.take(from, gather);
        // A task that takes a reference to an exclusive page holds the lock of this table or of the frame.
        // This task holds both. A lookup in a swap cache takes no lock, but a cache has a reference, too.
        let alone = frame.refs() == 1;
        if alone {
            frame.set_rmap(page);
        } else {
            tables.source.set(from, old);
        }
        // No task is woken under the locks of the tables.
        tables.sleepers = identity.release_quietly();
        if alone { Ok(()) } else { Err(UffdError::Busy.into()) }
    }
}

/// Both tables, locked. `target` is `None` if they are the same table.
struct Tables<'t, P: Platform> {
    source: PteGuard<'t, P::Format, P>,
    target: Option<PteGuard<'t, P::Format, P>>,
    /// The sleepers on the frame of the last page. Fields are dropped in this order, so the sleepers are
    /// woken after the locks are released.
    sleepers: Option<Sleepers<'t, P>>,
}

impl<'t, P: Platform> Tables<'t, P> {
    fn target(&mut self) -> &mut PteGuard<'t, P::Format, P> {
        self.target.as_mut().unwrap_or(&mut self.source)
    }
}
