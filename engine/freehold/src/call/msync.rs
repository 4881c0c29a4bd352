//! msync: stores through shared mappings reach the store behind the file.

use crate::space::{AddressSpace, change::vma_ranges::VmaRanges};
use crate::{
    PAGE_SIZE,
    counted::Counted,
    error::MsyncError,
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
        /// MS_ASYNC: nothing is written now; dirty pages are written in their time anyway.
        const ASYNC = 1;
        /// MS_INVALIDATE: other mappings see the same pages anyway; refused where memory is locked.
        const INVALIDATE = 2;
        /// MS_SYNC: returns when everything is written.
        const SYNC = 4;
    }
}

/// What one look under the lock found.
enum SyncStep<P: Platform> {
    /// These pages of a file are to be written, and then it goes on at this address.
    Write(Counted<File<P>>, PageRange, u64),
    /// All seen.
    End,
}

impl<P: Platform> AddressSpace<P> {
    /// Writes back what was stored through shared mappings in `len` bytes at `addr`.
    ///
    /// # Errors
    ///
    /// See [`MsyncError`]. Holes are reported at the end, after everything mapped was written; with
    /// [`SyncFlags::ASYNC`] alone, at once.
    ///
    /// # Locks
    ///
    /// The mmap lock for reading, killably, let go of while a file is written; the file's locks.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::SyncFlags, engine::{Config, Engine}, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// // Of anonymous memory there is nothing to write.
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
                    file.mapping().write_back(pages).map_err(|_| MsyncError::Io)?;
                    at = next;
                }
                SyncStep::End => break,
            }
        }
        if hole { Err(MsyncError::NotMapped) } else { Ok(()) }
    }

    /// Looks for the next part of `range` that has something to write.
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

/// The pages of a file that stores to `part` of `vma` go to.
fn stores_to<P: Platform>(vma: &Vma<P>, part: UserRange) -> Option<(Counted<File<P>>, PageRange)> {
    let file = vma.object().file().filter(|_| vma.flags().contains(VmFlags::SHARED))?;
    let first = vma.pgoff_of(part.start());
    Some((file.clone(), PageRange::at(first, part.pages())))
}
