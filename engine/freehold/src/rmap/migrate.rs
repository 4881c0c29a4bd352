//! Moving a page into another frame while programs use it.
//!
//! ```text
//! of a file     hide the page from lookups; remove every entry; if there are no other references, copy the
//!               contents and store the new frame in the cache
//! anonymous     replace every entry by a marker, and flush; copy; replace every marker by an entry of the
//!               new frame
//! ```
//!
//! A fault at a marker waits for the frame's lock. A call that removes a marker (munmap, DONTNEED) removes
//! the page. If fork copies a marker, the walk finds the copy in the child, because the walk visits the
//! parent before the child. mremap excludes walkers if they could miss an entry (C-39, C-40).
//!
//! If there is a reference besides the references of the entries and the cache (a pipe, a transfer in
//! progress), the move is undone, because that reference is valid only for the old frame. The entry of a
//! pinned anonymous page is never replaced by a marker.
//!
//! `Engine::migrate` is for an embedder that compacts memory or empties a node. `failure.rs` calls this file
//! for `soft_offline`. `file/change/exchange.rs` moves pages of files. A failed move must leave the page
//! usable in its old frame. The tests are `rmap::moves` (`engine/freehold/tests`), and `rmap` and
//! `file_moves` (`shuttle_engine`).

use super::walk::{AnyRmapRoot, Page};
use crate::{
    Pfn, VirtAddr,
    engine::Engine,
    error::MigrateError,
    platform::{FramePurpose, PageOwner, Platform},
    shortage::ShortageRounds,
    vma::flags::{VmFlags, pte_flags::vma_pte_flags},
};
use freehold_pagetable::Level;

impl<P: Platform> Engine<P> {
    /// Moves the page in `pfn`, of anonymous memory or of a file, into another frame, however many entries
    /// map the page. Returns the new frame. The old frame is free as soon as its last reference is released.
    ///
    /// # Errors
    ///
    /// See [`MigrateError`]. After an error the page is still in its frame. Without memory for a small page,
    /// asks the platform first ([`Platform::memory_short`]).
    ///
    /// # Locks
    ///
    /// For a file, the invalidate lock for reading, or for writing if its pages are huge; the frame's lock;
    /// the home's lock for reading; page table locks one at a time. The caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.write_memory(at, b"moves", AccessMode::Plain).unwrap();
    /// let old = space.frame_at(at).unwrap();
    /// let new = engine.migrate(old).unwrap();
    /// assert!(new != old && space.frame_at(at) == Some(new));
    /// let mut found = [0; 5];
    /// space.read_memory(at, &mut found, AccessMode::Plain).unwrap();
    /// assert_eq!(&found, b"moves");
    /// ```
    pub fn migrate(&self, pfn: Pfn) -> Result<Pfn, MigrateError> {
        let mut rounds = ShortageRounds::new();
        loop {
            let page = self.page(pfn).ok_or(MigrateError::NoPage)?;
            match page.migrate(None) {
                // A page of a pool needs another page of the pool, which `memory_short` cannot make free.
                Err(MigrateError::OutOfMemory) if page.level == Level::Pte => {}
                done => return done,
            }
            // The owner of the page is unknown, and the page may be gone by now.
            drop(page);
            rounds
                .ask_unkillable(self.platform(), PageOwner::SameAs(pfn), || self.trim_own())
                .map_err(|_| MigrateError::OutOfMemory)?;
        }
    }

    /// Moves the page in `pfn` into a frame of a NUMA node, like [`migrate`](Self::migrate): the step of
    /// move_pages, migrate_pages and mbind with MPOL_MF_MOVE. Also moves a page that is on the node already.
    ///
    /// # Errors
    ///
    /// See [`MigrateError`]. Fails with `OutOfMemory` if the node has no memory, or does not exist. Does not
    /// ask the platform for memory, because a shortage names no node. A page of a pool of huge pages needs a
    /// free page of the pool on that node, or the right of the pool to grow.
    ///
    /// # Locks
    ///
    /// The locks of [`migrate`](Self::migrate).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, platform::Platform, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// let new = engine.migrate_to(space.frame_at(at).unwrap(), 0).unwrap();
    /// assert_eq!(engine.platform().node_of(new), 0);
    /// ```
    pub fn migrate_to(&self, pfn: Pfn, node: usize) -> Result<Pfn, MigrateError> {
        if node >= self.platform().nodes() {
            return Err(MigrateError::OutOfMemory);
        }
        self.page(pfn).ok_or(MigrateError::NoPage)?.migrate(Some(node))
    }
}

impl<P: Platform> Page<'_, P> {
    /// Moves the page; see [`Engine::migrate`] and [`Engine::migrate_to`].
    pub(super) fn migrate(&self, node: Option<usize>) -> Result<Pfn, MigrateError> {
        let engine = self.engine;
        // Secret memory is never copied.
        if self.frame().is_secret() {
            return Err(MigrateError::Busy);
        }
        let purpose = match &self.home {
            AnyRmapRoot::Anon(_) => FramePurpose::Anonymous,
            AnyRmapRoot::File(_) => FramePurpose::File,
        };
        let new = {
            // A failure of the page's memory ends its charge under this lock, and the page then has no owner.
            let _identity = engine.memory().lock_frame(self.pfn);
            if !self.is_at_home() {
                return Err(MigrateError::NoPage);
            }
            engine.memory().alloc_like(self.level, purpose, PageOwner::SameAs(self.pfn), node)
        };
        let new = new.map_err(|_| MigrateError::OutOfMemory)?;
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
        // Also locks the new frame, because a memory failure can find this frame as soon as the first entry
        // maps it. Without the lock, the failure would replace only some of the entries by markers.
        let _new_identity = self.engine.memory().lock_new_frame(new);
        if !self.is_at_home() {
            return Err(MigrateError::NoPage);
        }
        self.each_place(|place| {
            place.vm.set_migration_entry(VirtAddr::new(place.range.start()), self.level, self.pfn)
        });
        // No task can take a new reference except through this task's reference, because the only entry that
        // may be left is that of a pinned page.
        let alone = self.frame().refs() == 1;
        let to = if alone { new } else { self.pfn };
        if alone {
            self.engine.platform().copy_frames(new, self.pfn, self.level.frames());
            self.engine.platform().frame(new).inherit(self.frame());
        }
        self.each_place(|place| {
            let address = VirtAddr::new(place.range.start());
            // Called under the table's lock. A change of rights first stores the new flags in the VMA, and
            // then updates the entries. Such a change has already updated this entry, or updates it after
            // this call.
            let rights = || (vma_pte_flags(place.vma.flags()), place.vma.flags().contains(VmFlags::WRITE));
            place.vm.end_migration_entry(rights, address, self.level, self.pfn, to);
        });
        if !alone {
            return Err(MigrateError::Busy);
        }
        self.frame().clear_rmap();
        // Releases the reference of the allocation. Each entry has a reference of its own.
        self.engine.memory().put_frame(new);
        Ok(())
    }

    fn move_cached(&self, new: Pfn) -> Result<(), MigrateError> {
        let AnyRmapRoot::File(home) = &self.home else { return Err(MigrateError::NoPage) };
        // Fails if the file is no longer mapped or open: this task would then have the last reference, and
        // would have to destroy the file here.
        let Some(mapping) = home.hold_mapping() else { return Err(MigrateError::NoPage) };
        mapping.exchange(mapping.index_of(self.index), self.pfn, new)
    }
}
