//! The stack move of exec (Linux: shift_arg_pages). exec fills the stack of a new program with arguments
//! before the final address of the stack is known. The stack then moves down as a whole, and the new range
//! may overlap the old one.
//!
//! The call is atomic: the mmap lock and the VMA's lock are held for writing until the end. The VMA keeps its
//! page offsets, so each offset belongs to another address after the move. A walk of the reverse map computes
//! an address from such an offset, so walks could use a wrong address during the move. The anon rmap lock,
//! held for writing, excludes walks until the end of the move. Linux instead marks the VMA and lets walks
//! skip it, because other processes may use the same anon_vma. Here a program being loaded has its own tree
//! of VMAs, and its stack has only a few pages, so the lock is held only briefly.
//!
//! Everything that can fail comes before the first entry moves. `tests/mremap/stack.rs` has the tests;
//! `c40_stack_move_concurrent_with_migration` in `shuttle_engine/stack.rs` tests the exclusion of walks.

use crate::space::{
    AddressSpace,
    locking::{WriteGuard, entry_at},
};
use crate::{
    PAGE_SIZE, error::StackMoveError, platform::Platform, rmap::edit::RmapEdit, vma::flags::VmFlags,
    wait::Rounds,
};
use freehold_vmspace::{MoveGather, TableMoves, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// Moves the stack that starts at `start` down by `shift` bytes, with all its pages. The new range may
    /// overlap the old one.
    ///
    /// # Errors
    ///
    /// See [`StackMoveError`]. Nothing is moved after an error.
    ///
    /// # Locks
    ///
    /// The mmap lock and the VMA's lock for writing, both killably; the anon rmap lock for writing; page
    /// tables' locks, two at a time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let flags = private | MapFlags::GROWSDOWN | MapFlags::FIXED;
    /// let stack = space.mmap(0x1000_0000, 4 * PAGE_SIZE, rw, flags, None, 0).unwrap();
    /// space.write_memory(stack, b"argv", AccessMode::Plain).unwrap();
    /// space.move_stack(stack, 2 * PAGE_SIZE).unwrap();
    /// let mut found = [0; 4];
    /// space.read_memory(stack - 2 * PAGE_SIZE, &mut found, AccessMode::Plain).unwrap();
    /// assert_eq!(&found, b"argv");
    /// ```
    pub fn move_stack(&self, start: u64, shift: u64) -> Result<(), StackMoveError> {
        let target = start.checked_sub(shift).filter(|target| *target >= self.engine.config().mmap_min_addr);
        let (Some(target), true) = (target, shift.is_multiple_of(PAGE_SIZE)) else {
            return Err(StackMoveError::Invalid);
        };
        let between = UserRange::try_new(target, start).ok_or(StackMoveError::Invalid)?;
        let guard = self.write_exclusive_range(between)?;
        guard.move_stack(start, target)
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Moves the stack that starts at `start` to the lower address `target`. Fails if there is another
    /// mapping between `target` and `start`.
    fn move_stack(&self, start: u64, target: u64) -> Result<(), StackMoveError> {
        let space = self.space;
        let stack = |flags: VmFlags| flags.contains(VmFlags::GROWSDOWN) && !flags.contains(VmFlags::SEALED);
        let vma =
            self.find(start).filter(|vma| vma.start() == start && vma.is_anonymous() && stack(vma.flags()));
        let vma = vma.ok_or(StackMoveError::Invalid)?;
        if self.next_slot(target).is_none_or(|slot| slot.range().start() < start) {
            return Err(StackMoveError::Occupied);
        }
        if target == start {
            return Ok(());
        }
        let (from, to) = (vma.range(), vma.range().moved_to(target));
        // The lock keeps faults out. After this point no fault creates a page table that `prepare_entries`
        // has not seen.
        let right = self.lock_vma_killable(vma)?;
        self.reserve(1)?;
        let mut rounds = Rounds::new();
        let again = || rounds.again::<P>().map_err(StackMoveError::from);
        if let Err(error) = space.vm.prepare_entries(from, target, TableMoves::Never, again) {
            space.drop_tables(self, UserRange::new(target, start));
            return Err(error);
        }
        // No step can fail from here on.
        let mut gather: MoveGather<'_, P> = space.vm.gather(from.va());
        let mut walkers_out = RmapEdit::of(vma);
        space.vm.move_entries(from, target, TableMoves::Never, &mut gather, |_| ());
        right.set_bounds_within(&mut walkers_out, to, vma.pgoff());
        self.replace(from.with_start(target), &[entry_at(vma, to)]);
        drop(walkers_out);
        gather.finish();
        space.drop_tables(self, UserRange::new(to.end().max(start), from.end()));
        Ok(())
    }
}
