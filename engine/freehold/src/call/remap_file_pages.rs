//! remap_file_pages: maps other pages of the same file at the same addresses. As on Linux since 4.0, the call
//! is an mmap with a fixed address over the old mapping.
//!
//! This file finds the file and its rights in the old mapping, and passes a request to the steps of mmap
//! (`mmap/mod.rs`). The mmap lock is held for writing from the lookup of the old mapping until its
//! replacement, so no other task changes the mapping in between. `tests/mmap/remap_file_pages.rs` tests
//! arguments and errors; `tests/shm.rs` tests segments (hazard C-71).

use crate::space::{
    AddressSpace,
    locking::WriteGuard,
    map_flags::{MapFlags, Prot},
};
use crate::{
    PAGE_SHIFT, PAGE_SIZE,
    counted::Counted,
    error::{MmapError, RemapFilePagesError},
    file::File,
    platform::Platform,
    vma::flags::VmFlags,
};
use freehold_vmspace::UserRange;

impl From<MmapError> for RemapFilePagesError {
    fn from(error: MmapError) -> Self {
        match error {
            MmapError::OffsetOverflow => RemapFilePagesError::OffsetOverflow,
            MmapError::TooManyVmas => RemapFilePagesError::TooManyVmas,
            MmapError::NoSpace | MmapError::Limit => RemapFilePagesError::Limit,
            MmapError::OutOfMemory => RemapFilePagesError::OutOfMemory,
            MmapError::LockLimit => RemapFilePagesError::LockLimit,
            MmapError::NotPermitted => RemapFilePagesError::NotPermitted,
            MmapError::AccessDenied => RemapFilePagesError::AccessDenied,
            MmapError::Killed => RemapFilePagesError::Killed,
            _ => RemapFilePagesError::Invalid,
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Replaces the shared file mapping of `len` bytes at `addr` by a mapping of the same file from page
    /// `pgoff` on. `addr` and `len` are rounded down to whole pages. The only meaningful bit of `flags` is
    /// [`MapFlags::NONBLOCK`], which prevents population. The access rights stay, and `prot` must be empty.
    /// The range may span several adjacent VMAs if they map the same open file with the same flags.
    ///
    /// # Errors
    ///
    /// See [`RemapFilePagesError`]. Nothing is changed after an error, with one exception. A
    /// [segment](crate::file::Segment) that was removed and is attached only in the range is destroyed with
    /// the old mapping, as on Linux. The range is then unmapped, and the call fails with
    /// [`Invalid`](RemapFilePagesError::Invalid).
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably. Afterwards, to populate, the locks of faults. If a removed
    /// segment is not attached any more, also the locks that free its memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping}, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let rw = Prot::READ | Prot::WRITE;
    /// # let file = File::new(&Mapping::memfd(&engine, 4 * PAGE_SIZE).unwrap(), FileAccess::READ_WRITE, "/memfd:it").unwrap();
    /// let at = space.mmap(0, 2 * PAGE_SIZE, rw, MapFlags::SHARED, Some(&file), 0).unwrap();
    /// space.remap_file_pages(at, PAGE_SIZE, Prot::empty(), 3, MapFlags::empty()).unwrap();
    /// space.write_memory(at, b"page 3", AccessMode::Plain).unwrap();
    /// let mut found = [0; 6];
    /// file.mapping().read_at(3 * PAGE_SIZE, &mut found).unwrap();
    /// assert_eq!(&found, b"page 3");
    /// ```
    pub fn remap_file_pages(
        &self,
        addr: u64,
        len: u64,
        prot: Prot,
        pgoff: u64,
        flags: MapFlags,
    ) -> Result<(), RemapFilePagesError> {
        let (start, len) = (addr & !(PAGE_SIZE - 1), len & !(PAGE_SIZE - 1));
        let end = start.checked_add(len).filter(|&end| end > start).ok_or(RemapFilePagesError::Invalid)?;
        if !prot.is_empty() || pgoff.checked_add(len >> PAGE_SHIFT).is_none() {
            return Err(RemapFilePagesError::Invalid);
        }
        // Nothing can be mapped beyond the end of user space.
        if end > Self::TASK_SIZE {
            return Err(RemapFilePagesError::Invalid);
        }
        let guard = self.write_exclusive_range(UserRange::new(start, end))?;
        let (file, like) =
            guard.shared_file(UserRange::new(start, end)).ok_or(RemapFilePagesError::Invalid)?;
        // No file has an offset in bytes that overflows.
        let offset = pgoff.checked_mul(PAGE_SIZE).ok_or(RemapFilePagesError::OffsetOverflow)?;
        let mut how = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE | (flags & MapFlags::NONBLOCK);
        how.set(MapFlags::LOCKED, like.contains(VmFlags::LOCKED));
        let mut request = self.decode_mmap(start, len, rights(like), how, Some(&file), offset)?;
        guard.map_and_populate(&mut request, None, None)?;
        Ok(())
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Returns the file that is mapped shared in all of `range`, and the flags of the mapping.
    fn shared_file(&self, range: UserRange) -> Option<(Counted<File<P>>, VmFlags)> {
        let first = self.find(range.start()).filter(|vma| vma.flags().contains(VmFlags::SHARED))?;
        let (file, flags) = (first.object().file()?, first.flags());
        let mut at = first.end();
        while at < range.end() {
            let next = self.find(at).filter(|vma| vma.flags() == flags)?;
            next.object().file().filter(|other| Counted::ptr_eq(other, file))?;
            at = next.end();
        }
        Some((file.clone(), flags))
    }
}

/// Returns the access rights of a mapping with these flags.
fn rights(flags: VmFlags) -> Prot {
    let mut prot = Prot::empty();
    prot.set(Prot::READ, flags.contains(VmFlags::READ));
    prot.set(Prot::WRITE, flags.contains(VmFlags::WRITE));
    prot.set(Prot::EXEC, flags.contains(VmFlags::EXEC));
    prot
}
