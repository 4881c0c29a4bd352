//! Removal of the private pages of a process that is ending, by another task. Used for process_mrelease, and
//! when memory is used up.
//!
//! A killed process frees its memory when its last task ends, and a task may for example wait for a disk. The
//! private pages are most of this memory and are not needed any more, so another task frees them. The VMAs
//! stay, and the mmap lock is never held for writing. Shared pages, huge pages of a pool and frames of
//! drivers stay until the process ends, because other processes may still need them, or because a pool or a
//! driver must be told.
//!
//! `space/reaped.rs` keeps later accesses from taking zeroes for the contents of removed pages.
//!
//! `tests/reap.rs` tests which pages stay, and `shuttle_engine/reap.rs` runs it concurrently with faults,
//! fork, munmap and the end of the process.

use crate::{
    platform::Platform,
    space::{AddressSpace, change::vma_ranges::VmaRanges, reaped::loses_pages},
    wait::Rounds,
};
use freehold_sync::Killed;

impl<P: Platform> AddressSpace<P> {
    /// Unmaps the private pages of all VMAs, including locked ones, so that a killed process frees most of
    /// its memory before its last task has ended. Shared pages, huge pages of a pool, and frames of drivers
    /// stay mapped.
    ///
    /// A later access to a private page that is not mapped fails like an access beyond the end of a file, and
    /// so does an access by the kernel or by another process. fork fails. The caller therefore must have
    /// killed all tasks of the address space, also those of other processes that share it.
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
    /// assert!(space.read_memory(at, &mut [0; 3], AccessMode::Plain).is_err());
    /// assert!(space.fork().is_err());
    /// ```
    pub fn reap(&self) -> Result<(), Killed> {
        self.begin_reaping();
        let (mut at, mut rounds) = (0, Rounds::new());
        loop {
            rounds.again::<P>()?;
            let guard = self.read_killable()?;
            let Some((vma, part)) = guard.next_part(at) else { return Ok(()) };
            if loses_pages(vma) {
                self.vm.discard(part, vma.zap().keep_guards().keep_wp(vma.keeps_wp()));
            }
            at = part.end();
        }
    }
}
