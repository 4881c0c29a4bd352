//! System V shared memory, as far as address spaces go: memory, and how often it is attached.
//!
//! Keys, permissions, identifiers and times are the embedder's. What is here decides when the memory goes:
//! once the segment is marked as removed *and* nobody has it attached. Attached means: each VMA that maps it
//! counts, so a fork and a split count up and an unmapped fragment counts down, and each attempt at attaching
//! counts while it lasts (hazard C-71).
//!
//! | state | meaning | becomes |
//! | --- | --- | --- |
//! | n attached | in use, or waiting to be | by attaching, opening, closing VMAs: another n; by `remove`: marked, or destroyed if n is 0 |
//! | n attached, marked | as before; it may still be attached by its identifier | another n; destroyed, by the task that counts down to 0; ending, by a mapping of it in the place of all n |
//! | n attached, marked, ending | the n VMAs are being taken away by one call; nothing attaches it any more | n - 1; destroyed, by the task that counts down to 0 |
//! | 0 attached, marked (ending or not) | destroyed; nothing attaches it any more | |

use crate::{
    counted::{Counted, Shared},
    error::NoMemory,
    file::{File, FileAccess, FillError, HasFiles, Mapping},
    platform::Platform,
};
use freehold_sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};
use freehold_vmspace::HugePageSize;

/// Marked as removed.
const MARKED: u64 = 1;
/// All that have it attached are about to go, in one step for other callers.
const ENDING: u64 = 2;
/// One attach; the count lies above the marks.
const ATTACH: u64 = 4;

/// A segment of System V shared memory.
pub struct Segment<P: Platform> {
    key: u32,
    memory: Counted<Mapping<P>>,
    /// See the module's table.
    state: AtomicU64,
}

impl<P: Platform> Shared for Segment<P> {}

/// An attempt to attach a segment: it counts as attached as long as this lives.
pub(crate) struct Attaching<'s, P: Platform>(&'s Segment<P>);

impl<P: Platform> Drop for Attaching<'_, P> {
    fn drop(&mut self) {
        self.0.closed();
    }
}

impl<P: Platform> Segment<P> {
    /// Makes a segment of `bytes` bytes, zeroes at first, that reports name by `key`. All of it counts as
    /// committed memory until the segment's end.
    ///
    /// # Errors
    ///
    /// No memory, or more would be committed than [allowed](crate::engine::Engine::set_overcommit).
    pub fn new(files: &impl HasFiles<P>, key: u32, bytes: u64) -> Result<Counted<Self>, NoMemory> {
        Self::over(key, Mapping::nameless(files, bytes, true)?)
    }

    /// Makes a segment like [`new`](Self::new), of which only the pages that were touched count as committed
    /// memory (SHM_NORESERVE). If [promises are limited](crate::engine::Overcommit::Never), it is the same as
    /// `new`.
    ///
    /// # Errors
    ///
    /// Fails like `new`.
    pub fn noreserve(files: &impl HasFiles<P>, key: u32, bytes: u64) -> Result<Counted<Self>, NoMemory> {
        Self::over(key, Mapping::nameless(files, bytes, files.files().committed.is_strict())?)
    }

    /// Makes a segment like [`new`](Self::new), of huge pages of this size (SHM_HUGETLB), which come from the
    /// [pool](crate::engine::Engine::huge_pool) as they are touched. With `reserved` all of them are reserved
    /// from now until the segment's end; without (SHM_NORESERVE) none is.
    ///
    /// # Errors
    ///
    /// `bytes` is not a multiple of the page's; the pool has not so many pages; or no memory.
    pub fn of_huge_pages(
        files: &impl HasFiles<P>,
        key: u32,
        page: HugePageSize,
        bytes: u64,
        reserved: bool,
    ) -> Result<Counted<Self>, FillError> {
        let memory = Mapping::of_huge_pages(files, page, bytes, false)?;
        // Of memory that is not to be, the reservation goes with it.
        if let Some(right) = memory.reserving()? {
            right.reserve(0..memory.size(), reserved, false)?;
        }
        Ok(Self::over(key, memory)?)
    }

    fn over(key: u32, memory: Counted<Mapping<P>>) -> Result<Counted<Self>, NoMemory> {
        Ok(Counted::try_new(Segment { key, memory, state: AtomicU64::new(0) })?)
    }

    /// Its pages.
    pub fn mapping(&self) -> &Counted<Mapping<P>> {
        &self.memory
    }

    /// The key, by which reports name it.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// How many VMAs map it (shm_nattch), attempts at attaching included.
    pub fn attached(&self) -> u64 {
        // Relaxed, here and below: an answer about one word, which may be old at once.
        self.state.load(Relaxed) / ATTACH
    }

    /// Whether it was marked as removed.
    pub fn is_removed(&self) -> bool {
        self.state.load(Relaxed) & MARKED != 0
    }

    /// Whether it is gone: removed, and attached nowhere. The embedder may forget it.
    pub fn is_destroyed(&self) -> bool {
        self.state.load(Relaxed) & !ENDING == MARKED
    }

    /// Marks it as removed (IPC_RMID): its memory goes as soon as nobody has it attached, which may be now.
    ///
    /// # Locks
    ///
    /// If it goes now, the content and invalidate locks of its memory for writing.
    pub fn remove(&self) {
        // AcqRel: the task that ends it comes after all that used it.
        if self.state.fetch_or(MARKED, AcqRel) == 0 {
            self.destroy();
        }
    }

    /// Whether it ends with `vmas` VMAs that the caller takes away: it was marked as removed, and they are
    /// all that has it attached. If so, nobody attaches it from now on, though its memory goes only with
    /// the last of them. They are in one address space, whose mmap lock the caller has for writing: no
    /// fork or split counts them up.
    pub(crate) fn ends_with(&self, vmas: u64) -> bool {
        let all = (vmas * ATTACH) | MARKED;
        // Relaxed: the task that counts down to 0 orders the end.
        vmas != 0 && self.state.compare_exchange(all, all | ENDING, Relaxed, Relaxed).is_ok()
    }

    /// Counts an attempt at attaching; none if it is destroyed, or about to be.
    pub(crate) fn attaching(&self) -> Option<Attaching<'_, P>> {
        let mut state = self.state.load(Relaxed);
        while state != MARKED && state & ENDING == 0 {
            // Relaxed: counting up orders nothing.
            match self.state.compare_exchange_weak(state, state + ATTACH, Relaxed, Relaxed) {
                Ok(_) => return Some(Attaching(self)),
                Err(now) => state = now,
            }
        }
        None
    }

    /// What one attach maps: an open file of its own, so that two attaches never become one VMA.
    ///
    /// # Errors
    ///
    /// No memory.
    pub(crate) fn open(this: &Counted<Self>, access: FileAccess) -> Result<Counted<File<P>>, NoMemory> {
        File::of_segment(this, access, &name(this.key))
    }

    /// A VMA maps it that did not before. Another attach, which stays meanwhile, counts already.
    pub(in crate::file) fn opened(&self) {
        self.state.fetch_add(ATTACH, Relaxed);
    }

    /// A VMA, or an attempt, is over. The last one holds no lock: all that ends a VMA under a lock leaves
    /// another of the same attach behind.
    pub(in crate::file) fn closed(&self) {
        // AcqRel: as in `remove`.
        if self.state.fetch_sub(ATTACH, AcqRel) & !ENDING == ATTACH | MARKED {
            self.destroy();
        }
    }

    /// Gives the memory back, although others may still know of the segment. Comes once: the state stays as
    /// it is from here on.
    fn destroy(&self) {
        let emptied = self.memory.clear();
        debug_assert!(emptied.is_ok(), "memory without a last page to keep could not be cut off");
    }
}

/// The name of what has this key, in reports.
fn name(key: u32) -> arrayvec::ArrayString<13> {
    use core::fmt::Write;
    let mut name = arrayvec::ArrayString::new();
    let written = write!(name, "/SYSV{key:08x}");
    debug_assert!(written.is_ok(), "the name is 13 letters long");
    name
}
