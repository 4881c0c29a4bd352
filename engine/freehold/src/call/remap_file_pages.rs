//! remap_file_pages: other pages of the same file at the same addresses, as what it has been since Linux 4.0:
//! an mmap over them.

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
    /// Maps the file that is mapped shared at `addr`, from its page `pgoff` on, at `len` bytes there. Both
    /// are rounded down to pages. Of `flags` only [`MapFlags::NONBLOCK`] counts: do not populate. Rights
    /// are those of the mapping there, and `prot` must be empty. The range may span several VMAs, if they
    /// follow each other and map the same open file in the same way.
    ///
    /// # Errors
    ///
    /// See [`RemapFilePagesError`]; nothing was changed. But for a [segment](crate::file::Segment) that was
    /// removed, and that nothing but what lies in the range has attached: as on Linux it is destroyed
    /// with that, the range is empty, and the call is refused as [invalid](RemapFilePagesError::Invalid).
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably. Then, to populate, the locks of faults; and if a removed segment
    /// is attached nowhere any more, those that give its memory back.
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
        // Nothing is mapped there.
        if end > Self::TASK_SIZE {
            return Err(RemapFilePagesError::Invalid);
        }
        let guard = self.write_exclusive_range(UserRange::new(start, end))?;
        let (file, like) =
            guard.shared_file(UserRange::new(start, end)).ok_or(RemapFilePagesError::Invalid)?;
        // No file has an offset in bytes that does not fit.
        let offset = pgoff.checked_mul(PAGE_SIZE).ok_or(RemapFilePagesError::OffsetOverflow)?;
        let mut how = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE | (flags & MapFlags::NONBLOCK);
        how.set(MapFlags::LOCKED, like.contains(VmFlags::LOCKED));
        let mut request = self.decode_mmap(start, len, rights(like), how, Some(&file), offset)?;
        guard.map_and_populate(&mut request, None, None)?;
        Ok(())
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// The file that all of `range` maps shared, and how.
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

/// The rights to ask for so that a mapping allows what these flags do.
fn rights(flags: VmFlags) -> Prot {
    let mut prot = Prot::empty();
    prot.set(Prot::READ, flags.contains(VmFlags::READ));
    prot.set(Prot::WRITE, flags.contains(VmFlags::WRITE));
    prot.set(Prot::EXEC, flags.contains(VmFlags::EXEC));
    prot
}
