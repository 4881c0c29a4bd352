//! Removal of the private pages of a process that is ending, by another task. Used for process_mrelease, and
//! when memory is used up.
//!
//! A killed process frees its memory when its last task ends, and a task may for example wait for a disk. The
//! private pages are most of this memory and are not needed any more, so another task frees them. The VMAs
//! stay, and the mmap lock is never held for writing. Shared pages, huge pages of a pool and frames of
//! drivers stay until the process ends, because other processes may still need them, or because a pool or a
//! driver must be told.
//!
//! An empty entry of such memory may stand for lost contents, so no fault fills it any more, whether the
//! program, the kernel or another process makes the access: a reader must not take zeroes for data (hazard
//! C-66). Two protections enforce this:
//!
//! - `reaped` is set before the first page is removed. Whoever finds an entry empty because of the removal
//!   also finds `reaped` set, and installs nothing ([`may_have_lost_pages`](AddressSpace::may_have_lost_pages)).
//! - fork and MADV_COLLAPSE look at `reaped` under the mmap lock for writing, which excludes the removal.
//!
//! `tests/reap.rs` tests which pages stay, and `shuttle_engine/reap.rs` runs it concurrently with faults, fork,
//! munmap and the end of the process.

use crate::{
    platform::Platform,
    space::{AddressSpace, change::vma_ranges::VmaRanges},
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use freehold_sync::{
    Killed,
    atomic::{
        Ordering::{Relaxed, Release},
        fence,
    },
};

impl<P: Platform> AddressSpace<P> {
    /// Unmaps the private pages of all VMAs, including locked ones, so that a killed process frees most of
    /// its memory before its last task has ended. Shared pages, huge pages of a pool, and frames of drivers
    /// stay mapped.
    ///
    /// A later access to a private page that is not mapped fails like an access beyond the end of a file, and
    /// so does an access by the kernel or by another process. fork fails. The caller therefore must have killed
    /// all tasks of the address space. If other processes share the address space, the caller must have killed
    /// them, too.
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
        // Relaxed: the fence orders this store before each removal. The fence pairs with the acquire load of an
        // entry that was removed.
        self.reaped.store(1, Relaxed);
        fence(Release);
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

impl<P: Platform> AddressSpace<P> {
    /// Returns true once [`reap`](Self::reap) has begun.
    pub(crate) fn is_reaped(&self) -> bool {
        // Relaxed: the caller has found an empty entry by an acquire load, or holds the mmap lock.
        self.reaped.load(Relaxed) != 0
    }

    /// Returns true if an empty entry of the VMA may stand for a page that [`reap`](Self::reap) has removed. The
    /// caller has found the entry empty before, by an acquire load.
    #[inline(always)]
    pub(crate) fn may_have_lost_pages(&self, vma: &Vma<P>) -> bool {
        self.is_reaped() && loses_pages(vma)
    }
}

/// Returns true if the pages of the VMA belong to the process alone.
#[cold]
pub(crate) fn loses_pages<P: Platform>(vma: &Vma<P>) -> bool {
    !vma.flags().intersects(VmFlags::SHARED | VmFlags::HUGETLB | VmFlags::SPECIAL)
}
