//! What is done to all entries of one page, wherever they are: taken away, write-protected, asked whether
//! they were used.
//!
//! The names are Linux's. Each is found by the number of a frame, which may hold another page, or none, by
//! the time it is looked at; then there is nothing to be done.

use super::{
    tree::{Mapper, RmapKind, VmaTree},
    walk::{AnyRmapRoot, find_rmap_root},
};
use crate::{
    Pfn, VirtAddr,
    engine::Engine,
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Level, Pte};
use freehold_vmspace::{PageIndex, PageRange};

freehold_sync::error_enum! {
    /// Why nothing was done to a page.
    #[non_exhaustive]
    pub enum PageError {
        /// The frame holds no page of a program or file, or the page is changing.
        NoPage,
        /// The page is anonymous, and its contents are nowhere else.
        Anonymous,
        /// Another task is changing the reverse map of the page.
        Contended,
    }
}

impl<P: Platform> Engine<P> {
    /// Takes the page of a file that `pfn` holds out of all page tables but those of locked memory; returns
    /// how many entries went. The frame is dirty afterwards if the page was written by one of them. The page
    /// stays in its file's cache, and faults may bring entries back at once.
    ///
    /// # Errors
    ///
    /// No page, or an anonymous one, which would be lost.
    ///
    /// # Locks
    ///
    /// The frame's lock; the i_mmap lock for reading; tables' locks one at a time. The caller holds none.
    pub fn try_to_unmap(&self, pfn: Pfn) -> Result<u64, PageError> {
        self.count_file_places(pfn, |place, address| {
            !place.vma.flags().contains(VmFlags::LOCKED)
                && place.vm.take_entry(address, Level::Pte, pfn, Pte::NONE)
        })
    }

    /// Takes the right to write from every entry by which stores reach the page of a file that `pfn` holds:
    /// the next store faults, and says so. Returns how many entries could be, or had been, written
    /// through; if any was written, the file knows that the page is dirty. What
    /// [`write_back`](crate::file::Mapping::write_back) does before it writes a page.
    ///
    /// # Errors
    ///
    /// No page, or an anonymous one, of which nobody keeps another copy.
    ///
    /// # Locks
    ///
    /// As [`try_to_unmap`](Self::try_to_unmap).
    pub fn mkclean(&self, pfn: Pfn) -> Result<u64, PageError> {
        self.count_file_places(pfn, |place, address| {
            place.vma.flags().contains(VmFlags::SHARED) && place.vm.clean_entry(address, pfn)
        })
    }

    /// How many of the entries that map the page in `pfn` were used since this was last asked. A huge page is
    /// asked as one.
    ///
    /// Nothing is flushed: a processor that remembers a translation goes on using it without setting the bit
    /// again, so a page in use may count as unused once, which costs a guess and nothing else. A flush would
    /// cost more than the guess is worth.
    ///
    /// # Errors
    ///
    /// No page; or the reverse map is contended: a search for memory to take back goes on to another page.
    ///
    /// # Locks
    ///
    /// The home's lock for reading, which is tried for and not waited for; tables' locks one at a time.
    pub fn referenced(&self, pfn: Pfn) -> Result<u64, PageError> {
        // No reference is taken: an entry that maps the frame, under its table's lock, maps this page if it
        // lies where the page may be mapped, and if it is another page by now, that was used.
        if !self.platform().has_frame(pfn) {
            return Err(PageError::NoPage);
        }
        let (home, index) = find_rmap_root::<P>(self.platform().frame(pfn)).ok_or(PageError::NoPage)?;
        let count = match &home {
            AnyRmapRoot::Anon(home) => count_accessed(home, index, pfn),
            AnyRmapRoot::File(home) => count_accessed(home, index, pfn),
        };
        count.ok_or(PageError::Contended)
    }

    /// For how many of the places where the page of a file in `pfn` may be mapped `f` says yes, with the
    /// frame locked.
    fn count_file_places(
        &self,
        pfn: Pfn,
        f: impl Fn(&Mapper<'_, P, Vma<P>>, VirtAddr) -> bool,
    ) -> Result<u64, PageError> {
        let page = self.page(pfn).ok_or(PageError::NoPage)?;
        let AnyRmapRoot::File(_) = page.home else { return Err(PageError::Anonymous) };
        if page.level != Level::Pte {
            // A huge page of a pool stays where it is mapped: nobody wants it back.
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

/// `None`: the lock cannot be had at once.
fn count_accessed<P: Platform, W: RmapKind>(home: &VmaTree<P, W>, index: PageIndex, pfn: Pfn) -> Option<u64> {
    let lookups = home.try_read()?;
    let used = lookups
        .mappers(PageRange::one(index))
        .filter(|place| place.vm.take_accessed(VirtAddr::new(place.range.start()), pfn));
    Some(used.count() as u64)
}
