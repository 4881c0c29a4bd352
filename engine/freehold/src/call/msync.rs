//! msync: writes the pages that a program changed through shared mappings back to the backing store of the
//! file.
//!
//! The mmap lock is held for reading, and only while the call searches for the next file and pages to write.
//! The lock is released for the write itself (`file/change/write_back.rs`), which may wait for the backing
//! store. The search then continues at the address after the written pages. Mappings may change between two
//! searches; msync writes the files that each search finds.
//!
//! The model's `sync.rs` has the rules for arguments and holes. `tests/files/advice.rs` tests them with
//! files.

use crate::space::{AddressSpace, change::vma_ranges::VmaRanges};
use crate::{
    PAGE_SIZE,
    counted::Counted,
    error::{MsyncError, SyncError},
    file::File,
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use bitflags::bitflags;
use freehold_vmspace::{PageRange, UserRange};

bitflags! {
    /// Flags of msync, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SyncFlags: u32 {
        /// MS_ASYNC: writes nothing now; dirty pages are written back later.
        const ASYNC = 1;
        /// MS_INVALIDATE: has no effect on pages, because all mappings of a file share them. The call fails
        /// if the range contains locked memory.
        const INVALIDATE = 2;
        /// MS_SYNC: returns after everything is written.
        const SYNC = 4;
    }
}

impl From<SyncError> for MsyncError {
    fn from(error: SyncError) -> Self {
        match error {
            SyncError::Io => MsyncError::Io,
            SyncError::Killed => MsyncError::Killed,
        }
    }
}

/// Result of one search under the lock.
enum SyncStep<P: Platform> {
    /// The pages of a file to be written, and the address at which the search continues.
    Write(Counted<File<P>>, PageRange, u64),
    /// The whole range was searched.
    End,
}

impl<P: Platform> AddressSpace<P> {
    /// Writes back the pages that were changed through shared mappings in `len` bytes at `addr`.
    ///
    /// # Errors
    ///
    /// See [`MsyncError`]. A failed write is reported once per open file, like by
    /// [`File::sync`](crate::file::File::sync). Holes are reported at the end, after all mapped parts were
    /// written. With [`SyncFlags::ASYNC`] alone, holes are reported immediately.
    ///
    /// # Locks
    ///
    /// The mmap lock for reading, killably; while a file is written, only the file's locks.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::SyncFlags, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// // Anonymous memory has nothing to write.
    /// space.msync(at, PAGE_SIZE, SyncFlags::SYNC).unwrap();
    /// ```
    pub fn msync(&self, addr: u64, len: u64, flags: SyncFlags) -> Result<(), MsyncError> {
        let both = SyncFlags::ASYNC | SyncFlags::SYNC;
        if !SyncFlags::all().contains(flags) || !addr.is_multiple_of(PAGE_SIZE) || flags.contains(both) {
            return Err(MsyncError::Invalid);
        }
        let range = UserRange::decode_wrapping(addr, len).ok_or(MsyncError::NotMapped)?;
        let (mut at, end, mut hole) = (range.start(), range.end(), false);
        while at < end {
            match self.sync_step(UserRange::new(at, end), flags, &mut hole)? {
                SyncStep::Write(file, pages, next) => {
                    file.sync(pages)?;
                    at = next;
                }
                SyncStep::End => break,
            }
        }
        if hole { Err(MsyncError::NotMapped) } else { Ok(()) }
    }

    /// Finds the next part of `range` that must be written. Sets `hole` to true if a hole lies before that
    /// part.
    fn sync_step(
        &self,
        mut range: UserRange,
        flags: SyncFlags,
        hole: &mut bool,
    ) -> Result<SyncStep<P>, MsyncError> {
        let guard = self.read_killable()?;
        while range.start() < range.end() {
            let (vma, part) = guard.first_range(range).ok_or(MsyncError::NotMapped)?;
            if part.start() > range.start() {
                if flags == SyncFlags::ASYNC {
                    return Err(MsyncError::NotMapped);
                }
                *hole = true;
            }
            if flags.contains(SyncFlags::INVALIDATE) && vma.flags().contains(VmFlags::LOCKED) {
                return Err(MsyncError::Locked);
            }
            if flags.contains(SyncFlags::SYNC) && vma.object().is_secret() {
                return Err(MsyncError::Invalid);
            }
            if flags.contains(SyncFlags::SYNC)
                && let Some((file, pages)) = stores_to(vma, part)
            {
                return Ok(SyncStep::Write(file, pages, part.end()));
            }
            range = range.with_start(part.end());
        }
        Ok(SyncStep::End)
    }
}

/// Returns the file that `part` of `vma` maps, and the range of pages there. Returns `None` if `vma` is not a
/// shared mapping of a file: stores to other mappings do not change a file.
fn stores_to<P: Platform>(vma: &Vma<P>, part: UserRange) -> Option<(Counted<File<P>>, PageRange)> {
    let file = vma.object().file().filter(|_| vma.flags().contains(VmFlags::SHARED))?;
    let first = vma.pgoff_of(part.start());
    Some((file.clone(), PageRange::at(first, part.pages())))
}
