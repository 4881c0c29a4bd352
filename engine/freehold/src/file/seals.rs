//! Seals: operations on a memfd that are forbidden for every process, including those that have the file open
//! or mapped.
//!
//! A seal against writing requires that no mapping can write. The file therefore counts each VMA that may
//! write to the file, now or after an mprotect. An mmap call that is about to create such a VMA is also
//! counted while it runs (Linux: i_mmap_writable):
//!
//! | word | meaning | becomes |
//! | --- | --- | --- |
//! | n ≥ 0 | n VMAs and mmap calls can write | n + 1, n - 1; `DENIED` from 0 |
//! | `DENIED` | no VMA and no mmap call can write, now or later | 0, if adding the seal failed |
//!
//! An mmap call that creates a writable mapping first counts the mapping and then reads the seals. A call
//! that seals the file first denies new writers and then checks the pages for references through which a task
//! may still write.
//!
//! Only files that can be sealed count their writers. Seals are added under the content lock held for
//! writing, so they do not change while that lock is held.
//!
//! mmap calls [`begin_writing`](Mapping::begin_writing) (`call/mmap/mod.rs`), VMAs are counted through
//! `object.rs`, and calls that change contents or size call [`may_change`](Mapping::may_change) or
//! [`may_resize`](Mapping::may_resize). A new call of that kind must check too. `tests/files/seals.rs` has
//! the tests.

use super::{Mapping, mapping::FillError};
use crate::{
    counted::Counted, error::SealError, file::Seals, platform::Platform, vma::flags::VmFlags,
    wait::grace_period,
};
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::PageRange;

/// Number of checks of all pages before an extra reference to a page counts as a writer. A task that needs a
/// page only briefly drops its reference between two checks.
const ROUNDS: usize = 5;

/// An mmap call whose mapping will be able to write. The file cannot be sealed against writing while this
/// value lives.
pub(crate) struct Writing<P: Platform>(Counted<Mapping<P>>);

impl<P: Platform> Drop for Writing<P> {
    fn drop(&mut self) {
        self.0.sealing.leave();
    }
}

/// Returns true if a mapping with these flags may write to its file, now or after an mprotect.
fn can_write(flags: VmFlags) -> bool {
    flags.contains(VmFlags::SHARED | VmFlags::MAYWRITE)
}

impl<P: Platform> Mapping<P> {
    /// Returns the seals. Returns `None` for a file that cannot be sealed (EINVAL).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{Mapping, Seals, Zeroes}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let memory = Mapping::memfd(&engine, PAGE_SIZE).unwrap();
    /// memory.add_seals(Seals::SHRINK).unwrap();
    /// memory.add_seals(Seals::GROW).unwrap();
    /// assert_eq!(memory.seals(), Some(Seals::SHRINK | Seals::GROW));
    /// assert_eq!(Mapping::new(&engine, Zeroes, PAGE_SIZE, false).unwrap().seals(), None);
    /// ```
    pub fn seals(&self) -> Option<Seals> {
        self.sealing.possible.then(|| self.sealing.seals())
    }

    /// Adds seals.
    ///
    /// # Errors
    ///
    /// Fails with a [`SealError`]; no seal is then added.
    ///
    /// # Locks
    ///
    /// The content lock for writing. To add `WRITE`, also the invalidate lock for writing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::{FillError, SealError}, file::{File, FileAccess, Mapping, Seals}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let memory = Mapping::memfd(&engine, PAGE_SIZE).unwrap();
    /// let file = File::new(&memory, FileAccess::READ_WRITE, "/memfd:it").unwrap();
    /// let at = space.mmap(0, PAGE_SIZE, Prot::WRITE, MapFlags::SHARED, Some(&file), 0).unwrap();
    /// assert_eq!(memory.add_seals(Seals::WRITE), Err(SealError::Busy));
    /// space.munmap(at, PAGE_SIZE).unwrap();
    /// memory.add_seals(Seals::WRITE).unwrap();
    /// assert_eq!(memory.write_at(0, b"late"), Err(FillError::Sealed));
    /// ```
    pub fn add_seals(&self, seals: Seals) -> Result<(), SealError> {
        if !Seals::all().contains(seals) || !self.sealing.possible {
            return Err(SealError::Invalid);
        }
        let _content = self.content.write();
        let old = self.sealing.seals();
        if old.contains(Seals::SEAL) {
            return Err(SealError::Sealed);
        }
        if seals.contains(Seals::WRITE) && !old.contains(Seals::WRITE) {
            if !self.sealing.deny() {
                return Err(SealError::Busy);
            }
            if self.is_pinned() {
                // Relaxed: the count cannot change while writers are denied.
                self.sealing.writers.store(0, Relaxed);
                return Err(SealError::Busy);
            }
        }
        self.sealing.seals.publish((old | seals).bits().into());
        Ok(())
    }

    /// Returns true if a page has a reference besides those of the cache and of page tables. The holder may
    /// be about to write to the page.
    fn is_pinned(&self) -> bool {
        (0..ROUNDS).all(|_| {
            // References that other tasks were adding to a count before this call are visible after the grace
            // period.
            grace_period::<P>();
            // `find_each` does not find a page that is moving, although a task may hold a reference to it.
            let _nothing_moves = self.invalidate.write();
            let mut pinned = false;
            self.find_each(&P::rcu_read(), PageRange::ALL, |_, found| {
                let frame = self.files().platform().frame(found.pfn());
                pinned |= frame.refs() > frame.maps() + 1;
            });
            pinned
        })
    }

    /// Reduces the flags of a new mapping to what the seals permit. Also removes the flags that would let
    /// mprotect grant forbidden rights later. The file cannot be sealed against writing while the returned
    /// value lives.
    ///
    /// # Errors
    ///
    /// Fails with `Sealed` if the mapping could write and a seal forbids writing.
    pub(crate) fn begin_writing(
        this: &Counted<Self>,
        flags: &mut VmFlags,
    ) -> Result<Option<Writing<P>>, SealError> {
        if !this.sealing.possible || !can_write(*flags) {
            return Ok(None);
        }
        let writing = this.sealing.allow().then(|| Writing(this.clone()));
        // The seals are read after the count: a later call that adds a seal sees the count.
        if writing.is_some() && !this.sealing.seals().intersects(Seals::ANY_WRITE) {
            return Ok(writing);
        }
        if flags.contains(VmFlags::WRITE) {
            return Err(SealError::Sealed);
        }
        *flags -= VmFlags::MAYWRITE;
        Ok(None)
    }

    /// Counts a new VMA that maps the file. If this VMA may write, another VMA or mmap call that may write is
    /// already counted.
    pub(super) fn opened(&self, flags: VmFlags) {
        if self.sealing.possible && can_write(flags) {
            let allowed = self.sealing.allow();
            debug_assert!(allowed, "a file was sealed while a mapping can write");
        }
    }

    /// Uncounts a VMA that mapped the file.
    pub(super) fn closed(&self, flags: VmFlags) {
        if self.sealing.possible && can_write(flags) {
            self.sealing.leave();
        }
    }

    /// Checks that the seals allow a size of `size` bytes. The caller holds `content` for writing.
    pub(crate) fn may_resize(&self, size: u64) -> Result<(), FillError> {
        let (old, seals) = (self.size(), self.sealing.seals());
        let shrinks = size < old && seals.contains(Seals::SHRINK);
        let grows = size > old && seals.contains(Seals::GROW);
        if shrinks || grows { Err(FillError::Sealed) } else { Ok(()) }
    }

    /// Checks that the seals allow changes of the contents. The caller holds `content` for writing.
    pub(super) fn may_change(&self) -> Result<(), FillError> {
        if self.sealing.seals().intersects(Seals::ANY_WRITE) { Err(FillError::Sealed) } else { Ok(()) }
    }
}
