//! Moving a page into another frame while programs use it.
//!
//! ```text
//! of a file     hide it from lookups; take every entry away; count who else has it: nobody? copy; the cache has the new frame
//! anonymous     every entry becomes a marker, flushed; copy; every marker becomes an entry of the new frame
//! ```
//!
//! A fault that meets a marker waits for the frame's lock. A call that takes a marker away (munmap, DONTNEED)
//! takes the page away; a marker that fork copies is found in the child, since a walk comes to the parent
//! first: what the parent's table gave away as a marker had not been visited yet. mremap keeps walkers out
//! where they could miss one (C-39, C-40).
//!
//! If anybody but the entries and the cache has a reference (a pipe, a transfer under way), nothing has
//! happened in the end: that reference is good for the old frame alone. An anonymous page that is pinned
//! keeps its entry from the start.

use super::walk::{AnyRmapRoot, Page};
use crate::{
    Pfn, VirtAddr,
    engine::Engine,
    error::MigrateError,
    platform::{FramePurpose, Platform},
    vma::flags::{VmFlags, pte_flags::vma_pte_flags},
};

impl<P: Platform> Engine<P> {
    /// Moves the page that `pfn` holds into another frame, of anonymous memory or of a file, however many map
    /// it. Returns the frame it is in now; the old one is free as soon as nobody refers to it.
    ///
    /// # Errors
    ///
    /// See [`MigrateError`]; the page is where it was.
    ///
    /// # Locks
    ///
    /// Of a file, the invalidate lock for reading, or for writing if its pages are huge; the frame's lock;
    /// the home's lock for reading; tables' locks one at a time. The caller holds none.
    pub fn migrate(&self, pfn: Pfn) -> Result<Pfn, MigrateError> {
        self.page(pfn).ok_or(MigrateError::NoPage)?.migrate()
    }
}

impl<P: Platform> Page<'_, P> {
    /// Moves it; see [`Engine::migrate`].
    pub(super) fn migrate(&self) -> Result<Pfn, MigrateError> {
        let engine = self.engine;
        // Secret memory is copied by nobody.
        if self.frame().is_secret() {
            return Err(MigrateError::Busy);
        }
        let purpose = match &self.home {
            AnyRmapRoot::Anon(_) => FramePurpose::Anonymous,
            AnyRmapRoot::File(_) => FramePurpose::File,
        };
        let new = engine.memory().alloc_like(self.level, purpose).map_err(|_| MigrateError::OutOfMemory)?;
        let moved = match &self.home {
            AnyRmapRoot::Anon(_) => self.move_anon(new),
            AnyRmapRoot::File(_) => self.move_cached(new),
        };
        if moved.is_err() {
            engine.memory().free_unused(new, self.level);
        }
        moved.map(|()| new)
    }

    fn move_anon(&self, new: Pfn) -> Result<(), MigrateError> {
        let _identity = self.engine.memory().lock_frame(self.pfn);
        // And that of the new frame, to be found at its first entry already: it would be taken away in part
        // only.
        let _new_identity = self.engine.memory().lock_new_frame(new);
        if !self.is_at_home() {
            return Err(MigrateError::NoPage);
        }
        self.each_place(|place| {
            place.vm.set_migration_entry(VirtAddr::new(place.range.start()), self.level, self.pfn)
        });
        // Nobody can come to have a reference any more but by ours: no entry is left, or one of a page that
        // is pinned.
        let alone = self.frame().refs() == 1;
        let to = if alone { new } else { self.pfn };
        if alone {
            self.engine.platform().copy_frames(new, self.pfn, self.level.frames());
            self.engine.platform().frame(new).inherit(self.frame());
        }
        self.each_place(|place| {
            let address = VirtAddr::new(place.range.start());
            // Under the table's lock: a change of rights that stored new flags either did so before, or has
            // yet to come here.
            let rights = || (vma_pte_flags(place.vma.flags()), place.vma.flags().contains(VmFlags::WRITE));
            place.vm.end_migration_entry(rights, address, self.level, self.pfn, to);
        });
        if !alone {
            return Err(MigrateError::Busy);
        }
        self.frame().clear_rmap();
        // The maker's reference; each entry has one of its own.
        self.engine.memory().put_frame(new);
        Ok(())
    }

    fn move_cached(&self, new: Pfn) -> Result<(), MigrateError> {
        let AnyRmapRoot::File(home) = &self.home else { return Err(MigrateError::NoPage) };
        // The file stays as long as somebody maps it or has it open; a last reference of ours would have to
        // end it here.
        let Some(mapping) = home.hold_mapping() else { return Err(MigrateError::NoPage) };
        mapping.exchange(mapping.index_of(self.index), self.pfn, new)
    }
}
