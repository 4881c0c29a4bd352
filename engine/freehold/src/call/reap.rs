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
    space::AddressSpace,
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use freehold_sync::Killed;
use freehold_vmspace::UserRange;

/// Bytes whose pages are unmapped in one hold of the lock. A multiple of the size of a huge page, so that no
/// huge page is split at the edge.
const REAP_BYTES: u64 = 1 << 30;

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
            let Some(vma) = guard.next(at) else { return Ok(()) };
            let start = at.max(vma.start());
            let end = vma.end().min((start / REAP_BYTES + 1) * REAP_BYTES);
            if is_reaped(vma) {
                self.vm.discard(UserRange::new(start, end), vma.zap().keep_guards().keep_wp(vma.keeps_wp()));
            }
            at = end;
        }
    }
}

/// Returns true if the pages of the VMA belong to the process alone.
fn is_reaped<P: Platform>(vma: &Vma<P>) -> bool {
    !vma.flags().intersects(VmFlags::SHARED | VmFlags::HUGETLB | VmFlags::SPECIAL)
}
