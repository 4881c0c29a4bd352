//! Memory failure: the failed page is unmapped everywhere, and its frame is taken out of use.
//!
//! ```text
//! every entry      becomes a marker of the failed frame, and is flushed
//! then             is anything lost?
//!                  no, for a page of a file whose backing store has the same contents: markers are removed,
//!                  and the page is read again at the next access
//!                  yes, otherwise: markers stay, spaces that map the page are notified, accesses get SIGBUS
//! the frame        has no home any more, and is never free again
//! ```
//!
//! | lock of the failed frame | an access at a marker |
//! | --- | --- |
//! | held | waits: it is not known yet whether anything is lost |
//! | free | SIGBUS with BUS_MCEERR_AR |
//!
//! The frame is locked during all of these steps. For a file the invalidate lock is also held for writing. If
//! fork copies a marker during these steps, the walk finds the copy, because the walk visits the parent
//! before the child. Moves of pages (`migrate.rs`) rely on the same order. Calls that unmap or discard pages
//! (munmap, DONTNEED, truncation) remove markers. A marker does not count as a page.
//!
//! A failed frame stays in the swap cache. An access at a swap entry reads the page again if the device has
//! it, and fails otherwise (`fault/swap.rs`). `failure_swapped.rs` has the failure of a frame there that no
//! entry maps.
//!
//! `memory_failure` is for the machine-check handler of an embedder, and MADV_HWPOISON
//! (`call/madvise/failure.rs`) injects a failure. `lose.rs` removes a failed page of a file, and `migrate.rs`
//! moves a page for `soft_offline`. The tests `rmap::failure` (`engine/freehold/tests`) check at their end
//! that exactly the failed frames are missing.

use super::{
    MigrateError,
    walk::{AnyRmapRoot, Page, find_rmap_root},
};
use crate::{
    Pfn, VirtAddr,
    engine::Engine,
    error::{Errno, ToErrno},
    platform::Platform,
};
use freehold_pagetable::{Format, Level, MarkerKind, Pte};
use freehold_vmspace::HugePageSize;

/// Loss that a failure of memory caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// None: the frame was free.
    Free,
    /// None: the frame held a page of a file whose backing store has the same contents, or a page in the swap
    /// cache that its swap device has too. The page is read again at the next access.
    Dropped,
    /// The contents of the page. A program that maps the page gets SIGBUS there.
    Lost,
}

freehold_sync::error_enum! {
    /// Errors of taking a frame out of use.
    #[non_exhaustive]
    pub enum OfflineError {
        /// The frame is in use and cannot be withdrawn.
        ///
        /// There are three cases. Either the frame is used by the engine itself, by a task that holds a
        /// reference to the frame, or by memory without an MMU. Or the page shall move
        /// ([`Engine::soft_offline`]), is in the swap cache, and no entry maps it. Or the frame is free, and
        /// either lies in the cache of another CPU or belongs to a platform that cannot withdraw free frames.
        Busy,
        /// The frame is out of use already.
        Failed,
        /// There is no frame to move the page to.
        OutOfMemory,
    }
}

impl OfflineError {
    /// The number that a system call would return for this error.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{error::Errno, rmap::OfflineError};
    /// assert_eq!(OfflineError::Busy.errno(), Errno::EBUSY);
    /// assert_eq!(OfflineError::Failed.errno(), Errno::EHWPOISON);
    /// ```
    pub fn errno(self) -> Errno {
        match self {
            OfflineError::Busy => Errno::EBUSY,
            OfflineError::Failed => Errno::EHWPOISON,
            OfflineError::OutOfMemory => Errno::ENOMEM,
        }
    }
}

impl ToErrno for OfflineError {
    fn to_errno(&self) -> Errno {
        self.errno()
    }
}

/// Returns the marker that replaces an entry whose frame failed.
pub(super) fn poison<F: Format>(pfn: Pfn) -> Pte<F> {
    // A payload of 0 marks memory that failed in another way and whose frame is not known.
    Pte::marker(MarkerKind::Poison, pfn.get() + 1)
}

/// Returns the failed frame, from a marker's payload.
pub(crate) fn failed_frame(payload: u64) -> Option<Pfn> {
    payload.checked_sub(1).map(Pfn::new)
}

impl<P: Platform> Engine<P> {
    /// Handles a failure of the memory of `pfn`, one of the platform's frames. The page in the frame is
    /// unmapped from all spaces, and the frame is never used again. Calls [`Platform::memory_failed`] for
    /// each space that loses contents.
    ///
    /// # Errors
    ///
    /// See [`OfflineError`]. Nothing is changed after an error.
    ///
    /// # Locks
    ///
    /// For a file, the invalidate lock for writing; the frame's lock; the home's lock for reading; page table
    /// locks one at a time. The caller holds none of these locks.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::{Access, FaultError}, rmap::Damage, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// let failed = space.frame_at(at).unwrap();
    /// assert_eq!(engine.memory_failure(failed), Ok(Damage::Lost));
    /// assert_eq!(space.handle_fault(at, Access::READ), Err(FaultError::MemoryFailed { addr: at }));
    /// ```
    pub fn memory_failure(&self, pfn: Pfn) -> Result<Damage, OfflineError> {
        let damage = self.retire(pfn, |page| page.fail(), || self.fail_swapped(pfn));
        damage.map(|damage| damage.unwrap_or(Damage::Free))
    }

    /// Takes `pfn`, one of the platform's frames, out of use before its memory fails. The page in the frame
    /// moves to another frame, and the frame is never used again.
    ///
    /// # Errors
    ///
    /// See [`OfflineError`]. After an error the page is still in its frame.
    ///
    /// # Locks
    ///
    /// The locks of [`memory_failure`](Self::memory_failure).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.write_memory(at, b"kept", AccessMode::Plain).unwrap();
    /// engine.soft_offline(space.frame_at(at).unwrap()).unwrap();
    /// let mut found = [0; 4];
    /// space.read_memory(at, &mut found, AccessMode::Plain).unwrap();
    /// assert_eq!((&found, engine.failed_frames()), (b"kept", 1));
    /// ```
    pub fn soft_offline(&self, pfn: Pfn) -> Result<(), OfflineError> {
        self.retire(pfn, |page| page.offline(), || None).map(|_| ())
    }

    /// Takes a frame out of use. If the frame holds a page, calls `how` and returns its result. If the
    /// reverse map finds no page, calls `unmapped`, which returns `None` if there is no page. Returns `None`
    /// if the frame was free.
    fn retire<R>(
        &self,
        pfn: Pfn,
        how: impl Fn(&Page<'_, P>) -> Result<R, MigrateError>,
        unmapped: impl Fn() -> Option<R>,
    ) -> Result<Option<R>, OfflineError> {
        if !self.platform().has_frame(pfn) {
            return Err(OfflineError::Busy);
        }
        loop {
            if self.platform().frame(pfn).has_failed() {
                return Err(OfflineError::Failed);
            }
            let Some(page) = self.page(pfn) else {
                if let Some(done) = unmapped() {
                    return Ok(Some(done));
                }
                // The page may have returned from the swap cache to its file since.
                if self.page(pfn).is_some() {
                    continue;
                }
                return self.retire_free(pfn).map(|()| None);
            };
            match how(&page) {
                Ok(done) => return Ok(Some(done)),
                Err(MigrateError::NoPage) => {}
                Err(MigrateError::Busy) => return Err(OfflineError::Busy),
                Err(MigrateError::OutOfMemory) => return Err(OfflineError::OutOfMemory),
            }
        }
    }

    /// Takes a free frame out of use, if the platform or this CPU's cache has it.
    fn retire_free(&self, pfn: Pfn) -> Result<(), OfflineError> {
        self.memory().flush_cache();
        if self.retire_pooled(pfn) {
            return Ok(());
        }
        if !self.platform().withdraw_frame(pfn) {
            return Err(OfflineError::Busy);
        }
        self.note_failed(pfn);
        Ok(())
    }

    /// Takes a frame of a free huge page out of use, if the pool does not need that huge page. The other
    /// frames of the huge page are returned to the platform.
    fn retire_pooled(&self, pfn: Pfn) -> bool {
        let found = self.memory().huge_pages_around(pfn).find(|(first, level)| {
            self.huge_pool(HugePageSize::of_level(*level)).remove_free(self.platform(), *first)
        });
        if let Some((first, level)) = found {
            self.note_failed(pfn);
            self.memory().dissolve(first, level);
        }
        found.is_some()
    }

    /// Marks a frame as failed and counts it.
    pub(super) fn note_failed(&self, pfn: Pfn) {
        self.platform().frame(pfn).set_failed();
        self.memory().count_failed();
    }

    /// Returns the page in a frame to which the caller has a reference. The returned page takes over that
    /// reference. Returns `None` if the page is being changed. Also returns `None` for a frame of storage,
    /// which does not move and which the engine cannot take out of use.
    ///
    /// # Locks
    ///
    /// The home's lock for reading.
    pub(crate) fn page_of_kept(&self, pfn: Pfn) -> Option<Page<'_, P>> {
        let (first, level) = self.memory().huge_page_of(pfn).unwrap_or((pfn, Level::Pte));
        match find_rmap_root(self.platform().frame(first)) {
            Some((home, index)) if !home.is_storage() => {
                Some(Page { engine: self, pfn: first, asked: pfn, level, home, index })
            }
            _ => {
                self.memory().put_frame(first);
                None
            }
        }
    }
}

impl<P: Platform> Page<'_, P> {
    /// Handles a failure of the page's memory.
    pub(crate) fn fail(&self) -> Result<Damage, MigrateError> {
        let AnyRmapRoot::File(home) = &self.home else { return self.fail_anon() };
        let mapping = home.hold_mapping().ok_or(MigrateError::NoPage)?;
        let lost = mapping.lose(self)?;
        Ok(if lost { Damage::Lost } else { Damage::Dropped })
    }

    /// Handles a failure of the memory of an anonymous page, whose contents are always lost.
    fn fail_anon(&self) -> Result<Damage, MigrateError> {
        let _identity = self.engine.memory().lock_frame(self.pfn);
        if !self.is_at_home() {
            return Err(MigrateError::NoPage);
        }
        // Before the walk: a fault that takes the page out of the swap cache maps it under the lock of the
        // table, and the walk takes this lock later.
        let is_cached = self.frame().is_in_cache();
        self.poison_entries();
        if is_cached {
            self.poison_late_entries();
        }
        self.resolve_poison(true);
        self.retire_frame();
        Ok(Damage::Lost)
    }

    /// Moves the page, and takes its frame out of use.
    pub(crate) fn offline(&self) -> Result<(), MigrateError> {
        self.migrate(None)?;
        self.retire_frame();
        Ok(())
    }

    /// Replaces every entry by a marker. Afterwards no processor uses the frame through these entries.
    pub(crate) fn poison_entries(&self) {
        self.each_place(|place| {
            let address = VirtAddr::new(place.range.start());
            place.vm.take_entry(address, self.level, self.pfn, poison(self.pfn));
        });
    }

    /// Notifies all spaces that may map the page that the page is lost. Used for huge pages of a pool, whose
    /// entries get no markers.
    pub(crate) fn report_lost(&self) {
        self.each_place(|place| self.engine.platform().memory_failed(place.vm.mmu(), place.range.start()));
    }

    /// Processes every marker of the page. If the page is `lost`, notifies the space and keeps the marker.
    /// Otherwise removes the marker.
    pub(crate) fn resolve_poison(&self, lost: bool) {
        self.each_place(|place| {
            let address = VirtAddr::new(place.range.start());
            if place.vm.resolve_poison(address, self.level, poison(self.pfn), lost) && lost {
                self.engine.platform().memory_failed(place.vm.mmu(), address.get());
            }
        });
    }

    /// Takes the frame out of use, after all entries and cache references are removed, and ends its charge.
    /// Releasing the last reference will not free the frame.
    pub(crate) fn retire_frame(&self) {
        self.frame().clear_rmap();
        if self.level > Level::Pte {
            self.frame().set_broken();
        } else {
            self.engine.platform().uncharge(&[self.pfn]);
        }
        self.engine.note_failed(self.asked);
    }
}
