//! Seals: what no process may do to a memfd any more, not even one that has it open or mapped.
//!
//! A seal against writing has to be sure that no mapping writes. Each VMA that may write to the file, now or
//! after an mprotect, is counted, and each mmap that is about to make one counts while it lasts (Linux:
//! i_mmap_writable):
//!
//! | word | meaning | becomes |
//! | --- | --- | --- |
//! | n ≥ 0 | so many can write | n + 1, n - 1 |
//! | `DENIED` | nobody can, or ever will | 0, if the seal was not put on after all |
//!
//! A mapping that is about to write counts itself first, and reads the seals then. Sealing denies new ones
//! first, and looks at the pages then, for references by which somebody may write.
//!
//! Only files that can be sealed count. Seals are added under the content lock held for writing, so they do
//! not change while it is held.

use super::{Mapping, mapping::FillError};
use crate::{
    counted::Counted, error::SealError, file::Seals, platform::Platform, vma::flags::VmFlags,
    wait::grace_period,
};
use freehold_sync::atomic::Ordering::{Relaxed, Release};
use freehold_vmspace::PageRange;

/// How often the pages are looked at before another holder of one counts as a writer.
const ROUNDS: usize = 5;

/// An mmap that will be able to write: nobody seals the file meanwhile.
pub(crate) struct Writing<P: Platform>(Counted<Mapping<P>>);

impl<P: Platform> Drop for Writing<P> {
    fn drop(&mut self) {
        self.0.sealing.leave();
    }
}

fn can_write(flags: VmFlags) -> bool {
    flags.contains(VmFlags::SHARED | VmFlags::MAYWRITE)
}

impl<P: Platform> Mapping<P> {
    /// What is sealed; none for a file that cannot be (EINVAL).
    pub fn seals(&self) -> Option<Seals> {
        self.sealing.possible.then(|| self.sealing.seals())
    }

    /// Adds seals.
    ///
    /// # Errors
    ///
    /// See [`SealError`]; nothing was sealed.
    ///
    /// # Locks
    ///
    /// The content lock for writing; to seal it against writing, also the invalidate lock for writing.
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
                // Relaxed: nobody counts while it is denied.
                self.sealing.writers.store(0, Relaxed);
                return Err(SealError::Busy);
            }
        }
        // Release pairs with the acquire in `seals`.
        self.sealing.seals.store((old | seals).bits(), Release);
        Ok(())
    }

    /// Whether somebody besides page tables has a page, and may be about to write to it.
    fn is_pinned(&self) -> bool {
        (0..ROUNDS).all(|_| {
            // References that were just being counted are so by the end of this.
            grace_period::<P>();
            // A page that is moving is not found, though somebody may have it.
            let _nothing_moves = self.invalidate.write();
            let mut pinned = false;
            self.find_each(&P::rcu_read(), PageRange::ALL, |_, found| {
                let frame = self.files().platform().frame(found.pfn());
                pinned |= frame.refs() > frame.maps() + 1;
            });
            pinned
        })
    }

    /// What a new mapping with these flags may do to the file: they lose what seals forbid it to ever become.
    /// Then nobody seals it against writing as long as what is returned lives.
    ///
    /// # Errors
    ///
    /// It would write, which is sealed.
    pub(crate) fn begin_writing(
        this: &Counted<Self>,
        flags: &mut VmFlags,
    ) -> Result<Option<Writing<P>>, SealError> {
        if !this.sealing.possible || !can_write(*flags) {
            return Ok(None);
        }
        let writing = this.sealing.allow().then(|| Writing(this.clone()));
        // After the count: a call that seals it from now on finds us.
        if writing.is_some() && !this.sealing.seals().intersects(Seals::ANY_WRITE) {
            return Ok(writing);
        }
        if flags.contains(VmFlags::WRITE) {
            return Err(SealError::Sealed);
        }
        *flags -= VmFlags::MAYWRITE;
        Ok(None)
    }

    /// A VMA maps it that did not before; another that may write counts already, if this one may.
    pub(super) fn opened(&self, flags: VmFlags) {
        if self.sealing.possible && can_write(flags) {
            let allowed = self.sealing.allow();
            debug_assert!(allowed, "a file was sealed beside a mapping that writes");
        }
    }

    /// A VMA that mapped it is over.
    pub(super) fn closed(&self, flags: VmFlags) {
        if self.sealing.possible && can_write(flags) {
            self.sealing.leave();
        }
    }

    /// Whether the file may become `size` bytes long. Under `content` held for writing.
    pub(crate) fn may_resize(&self, size: u64) -> Result<(), FillError> {
        let (old, seals) = (self.size(), self.sealing.seals());
        let shrinks = size < old && seals.contains(Seals::SHRINK);
        let grows = size > old && seals.contains(Seals::GROW);
        if shrinks || grows { Err(FillError::Sealed) } else { Ok(()) }
    }

    /// Whether the contents may change. Under `content` held for writing.
    pub(super) fn may_change(&self) -> Result<(), FillError> {
        if self.sealing.seals().intersects(Seals::ANY_WRITE) { Err(FillError::Sealed) } else { Ok(()) }
    }
}
