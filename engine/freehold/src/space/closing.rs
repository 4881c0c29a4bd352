//! Waiting for ranges whose munmap is not over.
//!
//! A closing reservation enters the tree when its VMAs leave it, and leaves it under the mmap lock held for
//! writing, or by a range writer, once no translation and no page table of the range is left. A task that
//! needs just that range sleeps here, holding nothing.
//!
//! | word | meaning |
//! | --- | --- |
//! | `counted` | reservations in the tree that were put there under the mmap lock held for writing |
//! | `uncounted` | 1: range writers have put reservations, or [boundaries](super::cpu_arena), there; it stays |
//! | `generation` | how many have ever ended, and claims that somebody waited for; sleepers wait for it to move |
//! | `has_sleepers` | 1: tasks may sleep until the next one ends, which have to be woken |
//!
//! All of them are changed by exclusive writers and by range writers.

#![expect(unsafe_code, reason = "unlinks page tables")]

use super::{
    AddressSpace,
    locking::{TreeEntry, WriteGuard},
};
use crate::{UserRange, platform::Platform, space::state::closings::Closings};
use freehold_pagetable::VaRange;
use freehold_range::HAS_WAITERS;
use freehold_sync::{Killed, atomic::Ordering::Relaxed};
use freehold_vmspace::VmGather;

impl Closings {
    /// A reservation was put into the tree.
    pub fn begin<P: Platform>(&self, _: &WriteGuard<'_, P>) {
        self.counted.store(self.counted.load(Relaxed) + 1, Relaxed);
    }

    /// A reservation was taken out of the tree, for which others wait, if it was `wanted`. Sleepers wake as
    /// soon as the lock is free to take.
    pub fn end<P: Platform>(&self, guard: WriteGuard<'_, P>, wanted: bool) {
        self.counted.store(self.counted.load(Relaxed) - 1, Relaxed);
        // Relaxed: a sleeper read the old number under the mmap lock, so it either sleeps and is woken below,
        // or sees the new number and does not sleep; what it does next it does under the mmap lock
        // again. It said that it would sleep under that lock, too, so nearly every munmap is spared
        // the wake-up.
        self.generation.store(self.generation.load(Relaxed).wrapping_add(1), Relaxed);
        let has_sleepers = wanted || self.has_sleepers.load(Relaxed) != 0;
        self.has_sleepers.store(0, Relaxed);
        drop(guard);
        if has_sleepers {
            P::wake_all(&self.generation);
        }
    }

    /// Lets go of the lock and sleeps until some reservation that exists now has ended.
    pub fn wait_after<P: Platform>(&self, guard: WriteGuard<'_, P>) -> Result<(), Killed> {
        let seen = self.announce_sleep(&guard);
        drop(guard);
        P::wait_killable(&self.generation, seen)
    }

    /// As [`wait_after`](Self::wait_after), whatever signals arrive.
    pub fn wait_after_unkillable<P: Platform>(&self, guard: WriteGuard<'_, P>) {
        let seen = self.announce_sleep(&guard);
        drop(guard);
        P::wait(&self.generation, seen);
    }

    /// Says that the caller is about to sleep, and for which number to change.
    fn announce_sleep<P: Platform>(&self, _: &WriteGuard<'_, P>) -> u32 {
        self.has_sleepers.store(1, Relaxed);
        self.generation.load(Relaxed)
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Ends a closing reservation: under a short write hold, unlinks the tables at its edges that nobody else
    /// needs by now and takes it out of the tree; flushes and frees those tables after the lock.
    ///
    /// `counted`: it was put there by an exclusive writer. Where there are range writers, a range writer ends
    /// it.
    pub(super) fn end_closing(&self, span: UserRange, counted: bool) {
        if !counted || self.has_range_writers() {
            return self.end_closing_as_range_writer(span, counted);
        }
        let mut gather: VmGather<'_, _, 1> = self.vm.gather();
        let guard = self.write();
        // By a range writer, while there were some.
        let wanted = guard.right.find(span.start()).is_some_and(|it| it.value.get() & HAS_WAITERS != 0);
        let free = guard.free_span(span);
        // SAFETY: the range was zapped; the write lock keeps everything in `free` as empty as the tree says.
        unsafe { self.vm.unlink_tables(span.va(), free, &mut gather) };
        guard.replace(span, &[]);
        self.closings.end(guard, wanted);
        gather.finish();
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Takes [boundaries](super::cpu_arena) out of `range`. Returns whether nothing in it is still closing.
    #[inline(always)]
    pub(crate) fn clear_for_write(&self, range: UserRange) -> bool {
        // What is closing, or a boundary, is not claimed. And nearly always there is neither, and nothing
        // needs to be looked up.
        self.range_writer().is_some() || !self.space.closings.any() || self.clear_for_write_slow(range)
    }

    #[cold]
    fn clear_for_write_slow(&self, range: UserRange) -> bool {
        let mut at = range.start();
        while let Some(slot) = self.next_slot(at).filter(|slot| slot.range().start() < range.end()) {
            let taken = slot.range();
            match slot {
                TreeEntry::Vma(_) => {}
                TreeEntry::Boundary(_) => self.replace(taken, &[]),
                TreeEntry::Closing(_) => return false,
            }
            at = taken.end();
        }
        true
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Addresses around `range` that nothing else takes: tables that lie inside them may go. A range
    /// writer knows of the range alone; what else may go with it is seen when its claim ends.
    pub(crate) fn free_span(&self, range: UserRange) -> VaRange {
        if self.range_writer().is_some() {
            return range.va();
        }
        let (before, behind) = self.occupied_around(range);
        VaRange::of(before.map_or(0, |before| before.end()), behind.map_or(u64::MAX, |behind| behind.start()))
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Takes the right to change `range`: the mmap lock for writing, at a moment when nothing in `range` is
    /// still closing.
    ///
    /// # Errors
    ///
    /// A fatal signal arrived first; nothing is held.
    #[inline]
    pub fn write_exclusive_range(&self, range: UserRange) -> Result<WriteGuard<'_, P>, Killed> {
        loop {
            let guard = self.write_killable()?;
            if guard.clear_for_write(range) {
                return Ok(guard);
            }
            self.closings.wait_after(guard)?;
        }
    }

    /// As [`write_exclusive_range`](Self::write_exclusive_range), whatever signals arrive.
    pub(crate) fn write_exclusive_range_unkillable(&self, range: UserRange) -> WriteGuard<'_, P> {
        loop {
            let guard = self.write();
            if guard.clear_for_write(range) {
                return guard;
            }
            self.closings.wait_after_unkillable(guard);
        }
    }
}
