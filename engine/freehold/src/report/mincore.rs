//! The call mincore: reports for each page of a range whether an access would find the page in memory without
//! reading a file.
//!
//! The range must be mapped without a hole, so the call holds the mmap lock for reading, for one batch of
//! pages at a time. The answer comes from the page table and from the page cache of the file
//! (`file/cache/lookup.rs`); no page is faulted in. The answers must be Linux's: the cases in
//! `lab/freehold-model/cases` and the tests in `engine/freehold/tests/files/advice.rs` compare them.

use crate::space::{AddressSpace, change::vma_ranges::VmaRanges};
use crate::{
    PAGE_SHIFT, PAGE_SIZE,
    error::MincoreError,
    file::{Mapping, Object},
    platform::Platform,
    vma::Vma,
};
use freehold_vmspace::{PageCount, PageRange, UserRange};

/// Number of pages examined in one lock hold.
const BATCH: usize = 4096;

impl<P: Platform> AddressSpace<P> {
    /// Writes for each page of `len` bytes at `addr` whether the page is in memory. The first bytes of `out`
    /// receive 1 or 0, one byte per page.
    ///
    /// A page is in memory if it is mapped, being moved, or lost because its memory failed. A page that was
    /// swapped out is in memory if the swap cache holds it, because an access does not read it from the
    /// device. A page of a file is also in memory if the page cache of the file holds it. Every page of a
    /// file that does not [show its cache](crate::file::FileAccess::shows_cache) is reported as in memory,
    /// and so is every page of a special mapping that belongs to no file.
    ///
    /// # Errors
    ///
    /// See [`MincoreError`]. After an error, a part of `out` may have been written.
    ///
    /// # Locks
    ///
    /// The mmap lock for reading, killably, once per batch of pages.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at + PAGE_SIZE, Access::WRITE).unwrap();
    /// let mut resident = [0; 4];
    /// space.mincore(at, 4 * PAGE_SIZE, &mut resident).unwrap();
    /// assert_eq!(resident, [0, 1, 0, 0]);
    /// ```
    pub fn mincore(&self, addr: u64, len: u64, out: &mut [u8]) -> Result<(), MincoreError> {
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(MincoreError::Invalid);
        }
        if addr.checked_add(len).is_none_or(|end| end > Self::TASK_SIZE) {
            return Err(MincoreError::NotMapped);
        }
        let out = out.get_mut(..len.div_ceil(PAGE_SIZE) as usize).ok_or(MincoreError::Invalid)?;
        let mut at = addr;
        for batch in out.chunks_mut(BATCH) {
            let end = at + batch.len() as u64 * PAGE_SIZE;
            let guard = self.read_killable()?;
            while at < end {
                let rest = UserRange::new(at, end);
                let (vma, part) = guard
                    .first_range(rest)
                    .filter(|(_, part)| part.start() == at)
                    .ok_or(MincoreError::NotMapped)?;
                let done = batch.len() - ((end - at) >> PAGE_SHIFT) as usize;
                let pages = part.pages().get() as usize;
                self.resident(vma, part, &mut batch[done..done + pages]);
                at = part.end();
            }
        }
        Ok(())
    }

    /// Reports `part` of one VMA.
    fn resident(&self, vma: &Vma<P>, part: UserRange, out: &mut [u8]) {
        if hides_residence(vma) {
            return out.fill(1);
        }
        out.fill(0);
        let _kept = self.keep_tables(vma);
        self.vm.mark_present(part, out);
        // A direct file has no cache. For huge pages only mapped pages are reported.
        let cached = |mapping: &Mapping<P>| !mapping.is_direct() && mapping.huge_page_size().is_none();
        let Some(file) = vma.object().file().filter(|file| cached(file.mapping())) else { return };
        let pages = PageRange::at(vma.pgoff_of(part.start()), PageCount::new(out.len() as u64));
        for (index, page) in pages.into_iter().zip(out.iter_mut()).filter(|(_, page)| **page == 0) {
            *page = u8::from(file.mapping().is_in_core(index));
        }
    }
}

/// Returns true if the program must not learn which pages of the VMA are in memory.
fn hides_residence<P: Platform>(vma: &Vma<P>) -> bool {
    match vma.object() {
        Object::File(file) => !file.access().shows_cache,
        Object::Special(special) => special.mapping().is_none(),
        Object::Anonymous | Object::Zeroes(_) => false,
    }
}
