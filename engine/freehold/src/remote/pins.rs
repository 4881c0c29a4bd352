//! Pinned pages: their frames, and access to their contents. `pin.rs` pins the pages.

use super::{publish_code, within_page};
use crate::{PAGE_SIZE, Pfn, counted::Counted, engine::Engine, error::PinError, platform::Platform};
use allocator_api2::vec::Vec;

/// Pinned pages. Dropping the value unpins them. Pinned frames are not freed or moved, even if the mapping
/// changes.
///
/// An anonymous page stays the program's own while it is mapped: the program and the holder of the pin see
/// each other's stores.
///
/// # Invariants
///
/// Each frame has a pin, except frames of zeroes.
///
/// # Examples
///
/// ```
/// # use freehold::{PAGE_SIZE, remote::{AccessMode, PinFlags}, space::*};
/// # let engine = freehold_machine::example_engine(1 << 20);
/// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
/// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
/// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
/// space.write_memory(at + PAGE_SIZE, b"page", AccessMode::Plain).unwrap();
/// let pins = space.pin_user_pages(at, 2, PinFlags::WRITE).unwrap();
/// assert!(pins.len() == 2 && !pins.is_empty());
/// let mut found = [0; 4];
/// pins.read(PAGE_SIZE, &mut found).unwrap();
/// assert_eq!(&found, b"page");
/// ```
#[must_use = "pages are unpinned when this is dropped"]
pub struct Pins<P: Platform> {
    pub(super) engine: Counted<Engine<P>>,
    pub(super) frames: Vec<Pfn>,
    /// True if the pages were pinned for writing.
    pub(super) write: bool,
}

impl<P: Platform> Pins<P> {
    /// Returns the number of pages.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns true if there are no pages.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the frames in ascending order of their addresses. Stores are allowed if the pages were pinned
    /// for writing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::PinFlags, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let pins = space.pin_user_pages(at + 3 * PAGE_SIZE, 2, PinFlags::WRITE).unwrap();
    /// assert_eq!(pins.frames(), [space.frame_at(at + 3 * PAGE_SIZE).unwrap()], "up to the end of the VMA");
    /// ```
    pub fn frames(&self) -> &[Pfn] {
        &self.frames
    }

    /// Reads bytes from the pages, starting at byte `offset` of the first page.
    ///
    /// # Errors
    ///
    /// Fails without reading if the range exceeds the pages.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), PinError> {
        let mut done = 0;
        self.for_each_piece(offset, out.len(), |pfn, at, len| {
            self.engine.platform().read_frame(pfn, at, &mut out[done..done + len]);
            done += len;
        })
    }

    /// Writes bytes to the pages, starting at byte `offset` of the first page. Marks the pages dirty.
    ///
    /// # Errors
    ///
    /// Fails without writing if the range exceeds the pages, or if the pages were not pinned for writing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::{AccessMode, PinFlags}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let pins = space.pin_user_pages(at, 2, PinFlags::WRITE).unwrap();
    /// pins.write(PAGE_SIZE - 2, b"data").unwrap();
    /// let mut found = [0; 4];
    /// space.read_memory(at + PAGE_SIZE - 2, &mut found, AccessMode::Plain).unwrap();
    /// assert_eq!(&found, b"data");
    /// ```
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), PinError> {
        if !self.write {
            return Err(PinError::BadAddress);
        }
        let mut done = 0;
        self.for_each_piece(offset, data.len(), |pfn, at, len| {
            self.engine.platform().write_frame(pfn, at, &data[done..done + len]);
            publish_code(self.engine.platform(), pfn);
            done += len;
            let memory = self.engine.memory();
            memory.set_dirty_late(memory.platform().frame(memory.record_of(pfn)));
        })
    }

    /// Unpins pages that were written, for example by a device. The pages become dirty: pages of files are
    /// written back even if a write-back happened after the first store, and pages to which MADV_FREE was
    /// applied during the pin are not discarded. Pages that were not pinned for writing are not marked.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageRange, file::{File, FileAccess, Mapping, Zeroes}, remote::PinFlags, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let file = File::new(&Mapping::new(&engine, Zeroes, PAGE_SIZE, false).unwrap(), FileAccess::READ_WRITE, "/f").unwrap();
    /// # let at = space.mmap(0, PAGE_SIZE, Prot::READ | Prot::WRITE, MapFlags::SHARED, Some(&file), 0).unwrap();
    /// let pins = space.pin_user_pages(at, 1, PinFlags::WRITE).unwrap();
    /// file.mapping().write_back(PageRange::ALL).unwrap();
    /// space.munmap(at, PAGE_SIZE).unwrap();
    /// pins.unpin_dirty();
    /// assert_eq!(file.drop_clean(PageRange::ALL), 0, "the page is dirty");
    /// ```
    pub fn unpin_dirty(mut self) {
        let frames = core::mem::take(&mut self.frames);
        self.engine.memory().unpin(&frames, self.write);
    }

    fn for_each_piece(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(Pfn, usize, usize),
    ) -> Result<(), PinError> {
        let end = offset.checked_add(len as u64).ok_or(PinError::BadAddress)?;
        if end > self.frames.len() as u64 * PAGE_SIZE {
            return Err(PinError::BadAddress);
        }
        let mut at = offset;
        while at < end {
            let (skip, part) = within_page(at, (end - at) as usize);
            f(self.frames[(at / PAGE_SIZE) as usize], skip, part);
            at += part as u64;
        }
        Ok(())
    }
}

impl<P: Platform> Drop for Pins<P> {
    fn drop(&mut self) {
        self.engine.memory().unpin(&self.frames, false);
    }
}
