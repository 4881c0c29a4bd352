//! Removal of the private pages of a process that is ending, by another task. Used for process_mrelease, and
//! when memory is used up.
//!
//! A killed process frees its memory when its last task ends, and a task may for example wait for a disk. The
//! private pages are most of this memory and are not needed any more, so another task frees them. The VMAs
//! stay, and the mmap lock is never held for writing. Shared pages, huge pages of a pool and frames of
//! drivers stay until the process ends, because other processes may still need them, or because a pool or a
//! driver must be told.
//!
//! The caller guarantees that no task depends on the contents any more; see [`AddressSpace::reap`]. The
//! engine cannot check this. `tests/reap.rs` tests which pages stay, and `shuttle_engine/reap.rs` runs it
//! concurrently with faults, fork, munmap and the end of the process.

use crate::{
    platform::Platform,
    space::{AddressSpace, change::vma_ranges::VmaRanges},
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use freehold_sync::Killed;

impl<P: Platform> AddressSpace<P> {
    /// Unmaps the private pages of all VMAs, including locked ones, so that a killed process frees most of
    /// its memory before its last task has ended. Shared pages, huge pages of a pool, and frames of drivers
    /// stay mapped.
    ///
    /// A later access to a private page finds zeroes, or the contents of the file. The caller therefore must
    /// have killed all tasks of the address space: none returns to the program, and a task that reads the
    /// memory on behalf of the program, for example in write(2), checks for the signal after each fault.
    ///
    /// # Errors
    ///
    /// Fails with [`Killed`] if a fatal signal for the caller arrives first. A part of the pages may then be
    /// unmapped.
    ///
    /// # Locks
    ///
    /// The mmap lock for reading, killably, for at most 1 GiB of addresses at a time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// let at = space.mmap(0, PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.write_memory(at, b"old", AccessMode::Plain).unwrap();
    /// space.reap().unwrap();
    /// assert_eq!((space.rss().anon, space.counts().map_count), (0, 1));
    /// ```
    pub fn reap(&self) -> Result<(), Killed> {
        let (mut at, mut rounds) = (0, Rounds::new());
        loop {
            rounds.again::<P>()?;
            let guard = self.read_killable()?;
            let Some((vma, part)) = guard.next_part(at) else { return Ok(()) };
            if is_reaped(vma) {
                self.vm.discard(part, vma.zap().keep_guards().keep_wp(vma.keeps_wp()));
            }
            at = part.end();
        }
    }
}

/// Returns true if the pages of the VMA belong to the process alone.
fn is_reaped<P: Platform>(vma: &Vma<P>) -> bool {
    !vma.flags().intersects(VmFlags::SHARED | VmFlags::HUGETLB | VmFlags::SPECIAL)
}
