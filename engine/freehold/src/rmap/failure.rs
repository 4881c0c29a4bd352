//! Memory that fails: pages are taken from all spaces that have them, and their frames from use.
//!
//! ```text
//! every entry      becomes a marker of the frame that failed, and is flushed
//! then             is anything lost?
//!                  a page of a file that its store has, too: no. Markers go, the page is read again where it is wanted
//!                  all else: yes. Markers stay, spaces that map the page are told, accesses are bus errors
//! the frame        is at home nowhere, and is never free again
//! ```
//!
//! | marker, the frame's lock | an access |
//! | --- | --- |
//! | there, held | waits: it is not known yet whether anything is lost |
//! | there, free | SIGBUS with BUS_MCEERR_AR |
//!
//! All of it happens with the frame locked, and of a file with its invalidate lock held for writing. A marker
//! that fork copies meanwhile is found again, as one of a page that moves: a walk comes to the parent first
//! (`migrate.rs`). A call that takes a marker away (munmap, DONTNEED, truncation) is rid of it; it counts as
//! no page.

use super::{
    MigrateError,
    walk::{AnyRmapRoot, Page, find_rmap_root},
};
use crate::{Pfn, VirtAddr, engine::Engine, error::Errno, platform::Platform};
use freehold_pagetable::{Format, Level, MarkerKind, Pte};
use freehold_vmspace::HugePageSize;

/// What a failure of memory cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// Nothing: the frame was free.
    Free,
    /// Nothing: it held a page of a file as the store behind the file has it, which is read again where it is
    /// wanted.
    Dropped,
    /// The contents: a program that maps the page gets SIGBUS there.
    Lost,
}

freehold_sync::error_enum! {
    /// Why a frame is in use still.
    #[non_exhaustive]
    pub enum OfflineError {
        /// The frame is in use and cannot be withdrawn.
        ///
        /// The engine itself, a task that has borrowed it, or memory without an MMU uses it; or it is free,
        /// in a cache of another CPU or of a platform that withdraws none.
        Busy,
        /// The frame is out of use already.
        Failed,
        /// There is no frame to move the page to.
        OutOfMemory,
    }
}

impl OfflineError {
    /// The number that a system call would return for this error.
    pub fn errno(self) -> Errno {
        match self {
            OfflineError::Busy => Errno::EBUSY,
            OfflineError::Failed => Errno::EHWPOISON,
            OfflineError::OutOfMemory => Errno::ENOMEM,
        }
    }
}

/// The marker in place of an entry whose frame failed.
fn poison<F: Format>(pfn: Pfn) -> Pte<F> {
    // 0 is no frame: memory that failed in other ways.
    Pte::marker(MarkerKind::Poison, pfn.get() + 1)
}

/// The frame that failed, from a marker's payload.
pub(crate) fn failed_frame(payload: u64) -> Option<Pfn> {
    payload.checked_sub(1).map(Pfn::new)
}

impl<P: Platform> Engine<P> {
    /// The memory of `pfn`, one of the platform's frames, has failed: the page in it is taken from all spaces
    /// that map it, and the frame is never used again. [`Platform::memory_failed`] tells of each space that
    /// loses contents.
    ///
    /// # Errors
    ///
    /// See [`OfflineError`]; nothing has happened.
    ///
    /// # Locks
    ///
    /// Of a file, the invalidate lock for writing; the frame's lock; the home's lock for reading; tables'
    /// locks one at a time. The caller holds none.
    pub fn memory_failure(&self, pfn: Pfn) -> Result<Damage, OfflineError> {
        self.retire(pfn, |page| page.fail()).map(|damage| damage.unwrap_or(Damage::Free))
    }

    /// The memory of `pfn`, one of the platform's frames, is about to fail: the page in it moves to another
    /// frame, and the frame is never used again.
    ///
    /// # Errors
    ///
    /// See [`OfflineError`]; the page is where it was.
    ///
    /// # Locks
    ///
    /// As [`memory_failure`](Self::memory_failure).
    pub fn soft_offline(&self, pfn: Pfn) -> Result<(), OfflineError> {
        self.retire(pfn, |page| page.offline()).map(|_| ())
    }

    /// Takes a frame out of use: by `how` if it holds a page, whose answer is returned; nothing if it is
    /// free.
    fn retire<R>(
        &self,
        pfn: Pfn,
        how: impl Fn(&Page<'_, P>) -> Result<R, MigrateError>,
    ) -> Result<Option<R>, OfflineError> {
        if !self.platform().has_frame(pfn) {
            return Err(OfflineError::Busy);
        }
        loop {
            if self.platform().frame(pfn).has_failed() {
                return Err(OfflineError::Failed);
            }
            let Some(page) = self.page(pfn) else { return self.retire_free(pfn).map(|()| None) };
            match how(&page) {
                Ok(done) => return Ok(Some(done)),
                Err(MigrateError::NoPage) => {}
                Err(MigrateError::Busy) => return Err(OfflineError::Busy),
                Err(MigrateError::OutOfMemory) => return Err(OfflineError::OutOfMemory),
            }
        }
    }

    /// Takes a free frame out of use, if the platform has it or this CPU's cache.
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

    /// Takes a frame of a free huge page out of use, if its pool can do without the page; the page's other
    /// frames are the platform's.
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

    fn note_failed(&self, pfn: Pfn) {
        self.platform().frame(pfn).set_failed();
        self.memory().count_failed();
    }

    /// The page that a frame holds, of which the caller has a reference; it becomes the page's. Nothing: it
    /// is just changing, or a frame of storage, which does not move and is not the engine's to take out
    /// of use.
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
    /// Its memory has failed.
    pub(crate) fn fail(&self) -> Result<Damage, MigrateError> {
        let AnyRmapRoot::File(home) = &self.home else { return self.fail_anon() };
        let mapping = home.hold_mapping().ok_or(MigrateError::NoPage)?;
        let lost = mapping.lose(self)?;
        Ok(if lost { Damage::Lost } else { Damage::Dropped })
    }

    fn fail_anon(&self) -> Result<Damage, MigrateError> {
        let _identity = self.engine.memory().lock_frame(self.pfn);
        if !self.is_at_home() {
            return Err(MigrateError::NoPage);
        }
        self.poison_entries();
        self.resolve_poison(true);
        self.retire_frame();
        Ok(Damage::Lost)
    }

    /// Moves it, and takes the frame out of use.
    pub(crate) fn offline(&self) -> Result<(), MigrateError> {
        self.migrate()?;
        self.retire_frame();
        Ok(())
    }

    /// Puts a marker in place of every entry; afterwards no processor uses the frame through one.
    pub(crate) fn poison_entries(&self) {
        self.each_place(|place| {
            let address = VirtAddr::new(place.range.start());
            place.vm.take_entry(address, self.level, self.pfn, poison(self.pfn));
        });
    }

    /// Tells all spaces that may map the page, of which no marker tells, that it is lost.
    pub(crate) fn tell_lost(&self) {
        self.each_place(|place| self.engine.platform().memory_failed(place.vm.mmu(), place.range.start()));
    }

    /// Says at every marker whether the page is lost.
    pub(crate) fn resolve_poison(&self, lost: bool) {
        self.each_place(|place| {
            let address = VirtAddr::new(place.range.start());
            if place.vm.resolve_poison(address, self.level, poison(self.pfn), lost) && lost {
                self.engine.platform().memory_failed(place.vm.mmu(), address.get());
            }
        });
    }

    /// Takes the frame, which no entry maps and no cache has, out of use; its last reference will not make it
    /// free.
    pub(crate) fn retire_frame(&self) {
        self.frame().clear_rmap();
        if self.level > Level::Pte {
            self.frame().set_broken();
        }
        self.engine.note_failed(self.asked);
    }
}
