//! exec's stack move (Linux: shift_arg_pages): a new program's stack is filled with arguments before it is
//! known where it ends up; then it moves down, whole, over a part of itself.
//!
//! The call is atomic: all of it happens in one hold of the mmap lock for writing and of the VMA's. The VMA
//! keeps its offset in its pages' home, so that the same offset means another address afterwards; walkers of
//! the reverse map, which would look at the wrong one half-way, are kept out by the home's lock throughout.
//! Linux marks the VMA instead, and walkers pass over it: its home may be others' too. A program being loaded
//! has a home of its own, and its stack has a few pages.

use crate::space::{
    AddressSpace,
    locking::{WriteGuard, entry_at},
};
use crate::{
    PAGE_SIZE, error::StackMoveError, platform::Platform, rmap::edit::RmapEdit, vma::flags::VmFlags,
};
use freehold_vmspace::{MoveGather, TableMoves, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// Moves the stack that starts at `start` down by `shift` bytes, with all that is in it. The new place
    /// may overlap the old one.
    ///
    /// # Errors
    ///
    /// See [`StackMoveError`]; nothing has moved.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably; the VMA's; the anon rmap lock for writing; tables, two at a time.
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
        // From here on no fault makes a table that its entries could not leave.
        let right = self.lock_vma_killable(vma)?;
        self.reserve(1)?;
        if let Err(error) = space.vm.prepare_entries(from, target, TableMoves::Never) {
            space.drop_tables(self, UserRange::new(target, start));
            return Err(error.into());
        }
        // Nothing can fail from here on.
        let mut gather: MoveGather<'_, P> = space.vm.gather();
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
