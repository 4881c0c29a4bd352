//! An open file: what a descriptor refers to, as far as mapping it goes.

use super::{Driver, Mapping, Segment};
use crate::{
    PAGE_SHIFT,
    counted::{Counted, Shared},
    error::NoMemory,
    file::{HasFiles, Kind, MAX_BYTES, Zeroes},
    hugetlb::state::huge_file::HugeFile,
    platform::Platform,
};
use allocator_api2::{boxed::Box, unsize_box, vec::Vec};
use freehold_vmspace::{HugePageSize, PageIndex, PageRange};

/// What an open file permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAccess {
    /// It was opened for reading.
    pub read: bool,
    /// It was opened for writing.
    pub write: bool,
    /// It may only be appended to.
    pub append: bool,
    /// Its file system forbids execution.
    pub noexec: bool,
    /// It can be mapped at all.
    pub mappable: bool,
}

impl FileAccess {
    /// Opened for reading.
    pub const READ: FileAccess =
        FileAccess { read: true, write: false, append: false, noexec: false, mappable: true };
    /// Opened for reading and writing.
    pub const READ_WRITE: FileAccess = FileAccess { write: true, ..FileAccess::READ };
}

/// An open file. Two descriptors that were opened apart are two `File`s over one [`Mapping`]; neighbouring
/// VMAs merge only over the same `File`. Nothing in it changes.
pub struct File<P: Platform> {
    mapping: Counted<Mapping<P>>,
    /// Whose memory it is, if a segment's.
    segment: Option<Counted<Segment<P>>>,
    /// The driver that answers mmap, if not the pages of `mapping`.
    driver: Option<Box<dyn Driver<P>>>,
    access: FileAccess,
    /// UTF-8.
    name: Box<[u8]>,
}

impl<P: Platform> Shared for File<P> {}

impl<P: Platform> File<P> {
    /// Opens `mapping`; `name` is what reports call it.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(
        mapping: &Counted<Mapping<P>>,
        access: FileAccess,
        name: &str,
    ) -> Result<Counted<Self>, NoMemory> {
        Self::open(mapping, None, None, access, name)
    }

    /// Opens a device: `driver` says what a mapping of it maps, and `mapping`, which has no pages of its own,
    /// knows its VMAs; see [`Mapping::revoke`].
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn with_driver(
        mapping: &Counted<Mapping<P>>,
        driver: impl Driver<P>,
        access: FileAccess,
        name: &str,
    ) -> Result<Counted<Self>, NoMemory> {
        let driver: Box<dyn Driver<P>> = unsize_box!(Box::try_new(driver)?);
        Self::open(mapping, None, Some(driver), access, name)
    }

    /// What an attach of a segment maps.
    pub(super) fn of_segment(
        segment: &Counted<Segment<P>>,
        access: FileAccess,
        name: &str,
    ) -> Result<Counted<Self>, NoMemory> {
        Self::open(segment.mapping(), Some(segment.clone()), None, access, name)
    }

    fn open(
        mapping: &Counted<Mapping<P>>,
        segment: Option<Counted<Segment<P>>>,
        driver: Option<Box<dyn Driver<P>>>,
        access: FileAccess,
        name: &str,
    ) -> Result<Counted<Self>, NoMemory> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(name.len()).map_err(|_| NoMemory)?;
        bytes.extend_from_slice(name.as_bytes());
        let name = bytes.into_boxed_slice();
        Ok(Counted::try_new(File { mapping: mapping.clone(), segment, driver, access, name })?)
    }

    /// Makes the file that a shared anonymous mapping of `bytes` bytes maps, which no other name refers to.
    /// With `committed` all of it counts as committed memory until its end; without (MAP_NORESERVE) only the
    /// pages that were touched.
    ///
    /// # Errors
    ///
    /// No memory, or more would be committed than [allowed](crate::engine::Engine::set_overcommit).
    pub fn shared_memory(
        files: &impl HasFiles<P>,
        bytes: u64,
        committed: bool,
    ) -> Result<Counted<Self>, NoMemory> {
        let mapping = Mapping::nameless(files, bytes, committed)?;
        File::new(&mapping, FileAccess::READ_WRITE, "/dev/zero (deleted)")
    }

    /// Its pages.
    pub fn mapping(&self) -> &Counted<Mapping<P>> {
        &self.mapping
    }

    /// Takes pages of this range out of the cache that are clean and used by nobody; see
    /// [`Mapping::drop_clean`].
    ///
    /// # Locks
    ///
    /// As there.
    pub fn drop_clean(&self, pages: PageRange) -> u64 {
        self.mapping.drop_clean(pages)
    }

    /// The segment of System V shared memory that it is an attach of.
    pub fn segment(&self) -> Option<&Counted<Segment<P>>> {
        self.segment.as_ref()
    }

    /// Whether what is mapped of it is new memory. A driver has its own answers.
    pub(crate) fn is_zeroes(&self) -> bool {
        self.mapping.is_zeroes() && self.driver.is_none()
    }

    /// The driver that answers mmap in the place of pages.
    pub(crate) fn driver(&self) -> Option<&dyn Driver<P>> {
        self.driver.as_deref()
    }

    /// What it permits.
    pub fn access(&self) -> FileAccess {
        self.access
    }

    /// What reports call it.
    pub fn name(&self) -> &str {
        // The bytes came from a `str`.
        core::str::from_utf8(&self.name).unwrap_or_default()
    }

    /// Whether `pages` pages from page offset `pgoff` on lie within the largest size a file can have; a
    /// device of zeroes goes as far as offsets do.
    pub fn fits(&self, pgoff: PageIndex, pages: u64) -> bool {
        fits(if self.mapping.is_zeroes() { u64::MAX } else { MAX_BYTES }, pgoff, pages)
    }

    /// What a MAP_HUGETLB mapping of `bytes` bytes maps: a fresh file that has no other name.
    ///
    /// # Errors
    ///
    /// No memory.
    pub(crate) fn anonymous_huge(
        files: &impl HasFiles<P>,
        page: HugePageSize,
        bytes: u64,
    ) -> Result<Counted<Self>, NoMemory> {
        let huge = Some(HugeFile::new(page));
        let mapping = Mapping::of_kind(files.files(), Zeroes, bytes, Kind::Memory, huge, false)?;
        File::new(&mapping, FileAccess::READ_WRITE, "/anon_hugepage (deleted)")
    }
}

fn fits(bytes: u64, pgoff: PageIndex, pages: u64) -> bool {
    let room = (bytes >> PAGE_SHIFT).checked_sub(pages);
    room.is_some_and(|room| pgoff.get() <= room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_that_fit() {
        // The largest file ends one byte before page 1 << 51 would be complete.
        const LAST: u64 = (1 << 51) - 1;
        for (pgoff, pages, fit) in [
            (0, 1, true),
            (0, LAST, true),
            (0, LAST + 1, false),
            (LAST - 1, 1, true),
            (LAST, 1, false),
            (u64::MAX, 1, false),
            (0, u64::MAX, false),
        ] {
            assert_eq!(
                fits(MAX_BYTES, PageIndex::new(pgoff), pages),
                fit,
                "{pages} pages from {pgoff:#x} on"
            );
        }
    }
}
