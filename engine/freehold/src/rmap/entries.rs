//! Operations on all entries of one page, for the memory reclaim of an embedder. These operations are
//! functions of `Engine` with Linux's names. In this repository only tests call these functions; write-back
//! (`file/change/write_back.rs`) processes ranges of a file instead.
//!
//! | operation | pages | effect on each entry |
//! | --- | --- | --- |
//! | [`try_to_unmap`](Engine::try_to_unmap) | of files | removes the entry, unless its memory is locked |
//! | [`mkclean`](Engine::mkclean) | of files | in shared mappings: the next store faults |
//! | [`referenced`](Engine::referenced) | all | clears the accessed bit, without a flush |
//!
//! Each operation gets the number of a frame, without a lock or a reference. If the frame holds another page
//! or none by the time the operation examines it, the operation changes nothing, except that `referenced` may
//! clear accessed bits of the other page. `walk.rs` finds the page, its home and its places (the terms are
//! explained in `mod.rs`). The entry at a place may change during the walk. A new operation therefore changes
//! an entry only by a function of `VmSpace` that compares the frame under the lock of the page table, such as
//! the functions in `entry.rs` of `freehold-vmspace`.
//!
//! `rmap::page_entries` (`engine/freehold/tests`) tests this file.

use super::{
    tree::{Mapper, RmapKind, RmapNode, VmaTree},
    walk::{AnyRmapRoot, find_rmap_root},
};
use crate::{
    Pfn, VirtAddr,
    engine::Engine,
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Level, Pte};
use freehold_vmspace::{PAGE_SIZE, PageIndex, PageRange, UserRange, VmSpace};

freehold_sync::error_enum! {
    /// Errors of operations on the entries of a page.
    #[non_exhaustive]
    pub enum PageError {
        /// The frame holds no page of a program or file, or the page is changing.
        NoPage,
        /// The page is anonymous, and its contents are nowhere else.
        Anonymous,
        /// Another task has locked the reverse map of the page.
        Contended,
    }
}

impl<P: Platform> Engine<P> {
    /// Removes the page of a file in `pfn` from all page tables except those of locked memory. Returns the
    /// number of removed entries. The frame is marked dirty if the page was written through a removed entry.
    /// The page stays in its file's cache, and faults may map it again at once.
    ///
    /// # Errors
    ///
    /// Fails with [`PageError::NoPage`] if the frame holds no page, and with [`PageError::Anonymous`] for an
    /// anonymous page, whose contents would be lost.
    ///
    /// # Locks
    ///
    /// The frame's lock; the i_mmap lock for reading; page table locks one at a time. The caller holds no
    /// lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let file = File::new(&Mapping::memfd(&engine, 4 * PAGE_SIZE).unwrap(), FileAccess::READ_WRITE, "/memfd:it").unwrap();
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, Prot::READ | Prot::WRITE, MapFlags::SHARED, Some(&file), 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// assert_eq!(engine.try_to_unmap(space.frame_at(at).unwrap()), Ok(1));
    /// assert_eq!((space.frame_at(at), file.mapping().present_pages()), (None, 1));
    /// ```
    pub fn try_to_unmap(&self, pfn: Pfn) -> Result<u64, PageError> {
        self.count_file_places(pfn, |place, address| {
            !place.vma.flags().contains(VmFlags::LOCKED)
                && place.vm.take_entry(address, Level::Pte, pfn, Pte::NONE)
        })
    }

    /// Write-protects the entries of the page of a file in `pfn` in all shared mappings. The next store
    /// faults, and the fault is reported to the file. Returns the number of entries that were writable or
    /// dirty. If any entry was dirty, the file's page is marked dirty.
    /// [`write_back`](crate::file::Mapping::write_back) protects entries in the same way before it writes
    /// pages.
    ///
    /// # Errors
    ///
    /// Fails with [`PageError::NoPage`] if the frame holds no page, and with [`PageError::Anonymous`] for an
    /// anonymous page, which has no other copy.
    ///
    /// # Locks
    ///
    /// The locks of [`try_to_unmap`](Self::try_to_unmap).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let file = File::new(&Mapping::memfd(&engine, 4 * PAGE_SIZE).unwrap(), FileAccess::READ_WRITE, "/memfd:it").unwrap();
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, Prot::READ | Prot::WRITE, MapFlags::SHARED, Some(&file), 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// let frame = space.frame_at(at).unwrap();
    /// assert_eq!(engine.mkclean(frame), Ok(1));
    /// assert_eq!(engine.mkclean(frame), Ok(0), "clean until the next store");
    /// ```
    pub fn mkclean(&self, pfn: Pfn) -> Result<u64, PageError> {
        self.count_file_places(pfn, |place, address| {
            place.vma.flags().contains(VmFlags::SHARED) && place.vm.clean_entry(address, pfn)
        })
    }

    /// Returns the number of entries that map the page in `pfn` and were used since the last call. The entry
    /// of a huge page counts as one.
    ///
    /// Nothing is flushed. A processor with a cached translation continues to use it without setting the
    /// accessed bit again, so a page in use may count as unused once. A flush would cost more than this
    /// inaccuracy.
    ///
    /// # Errors
    ///
    /// Fails with [`PageError::NoPage`] if the frame holds no page. Fails with [`PageError::Contended`] if
    /// the rmap lock is taken; memory reclaim then continues with another page.
    ///
    /// # Locks
    ///
    /// The home's lock for reading, if that requires no waiting; page table locks one at a time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// let frame = space.frame_at(at).unwrap();
    /// assert_eq!([engine.referenced(frame), engine.referenced(frame)], [Ok(1), Ok(0)]);
    /// ```
    pub fn referenced(&self, pfn: Pfn) -> Result<u64, PageError> {
        self.referenced_around(pfn, |_, _| {})
    }

    /// Returns the same number as [`referenced`](Self::referenced). Calls `around` for each entry that was
    /// used, with the addresses of its neighbours: those of up to 64 entries of the same table and VMA. The
    /// table stays linked during the call.
    pub(crate) fn referenced_around(
        &self,
        pfn: Pfn,
        around: impl FnMut(&VmSpace<P>, UserRange),
    ) -> Result<u64, PageError> {
        // Takes no reference to the frame, which may therefore hold another page by now. `take_accessed`
        // compares the frame under the lock of the table, so it clears only bits of entries that map the
        // frame at that time.
        if !self.platform().has_frame(pfn) {
            return Err(PageError::NoPage);
        }
        let (home, index) = find_rmap_root::<P>(self.platform().frame(pfn)).ok_or(PageError::NoPage)?;
        let count = match &home {
            AnyRmapRoot::Anon(home) => count_accessed(home, index, pfn, around),
            AnyRmapRoot::File(home) => count_accessed(home, index, pfn, around),
        };
        count.ok_or(PageError::Contended)
    }

    /// Calls `f` for every place of the page of a file in `pfn`. Returns the number of calls that returned
    /// true. The frame is locked during the calls.
    fn count_file_places(
        &self,
        pfn: Pfn,
        f: impl Fn(&Mapper<'_, P, Vma<P>>, VirtAddr) -> bool,
    ) -> Result<u64, PageError> {
        let page = self.page(pfn).ok_or(PageError::NoPage)?;
        let AnyRmapRoot::File(_) = page.home else { return Err(PageError::Anonymous) };
        if page.level != Level::Pte {
            // Huge pages of pools stay mapped, because they are not reclaimed.
            return Ok(0);
        }
        let _identity = self.memory().lock_frame(pfn);
        if !page.is_at_home() {
            return Err(PageError::NoPage);
        }
        let mut count = 0;
        page.each_place(|place| count += u64::from(f(place, VirtAddr::new(place.range.start()))));
        Ok(count)
    }
}

/// Number of bytes that the neighbours of an entry cover, and to which their first address is aligned.
const NEIGHBOURS: u64 = 64 * PAGE_SIZE;

/// Clears the accessed bits of the entries of a page. Returns the number of bits that were set, or `None` if
/// the lock is not available without waiting.
fn count_accessed<P: Platform, W: RmapKind>(
    home: &VmaTree<P, W>,
    index: PageIndex,
    pfn: Pfn,
    mut around: impl FnMut(&VmSpace<P>, UserRange),
) -> Option<u64> {
    let lookups = home.try_read()?;
    let mut used = 0;
    for place in lookups.mappers(PageRange::one(index)) {
        let address = place.range.start();
        if place.vm.take_accessed(VirtAddr::new(address), pfn) {
            used += 1;
            let (start, end) = (place.vma.start(), place.vma.start() + place.vma.pages().bytes());
            let first = address - address % NEIGHBOURS;
            around(place.vm, UserRange::new(start.max(first), end.min(first + NEIGHBOURS)));
        }
    }
    Some(used)
}
