//! System V shared memory: attaches and detaches segments.
//!
//! An attach is a shared mapping of a file that is opened only for this attach (`Segment::open`). The VMAs of
//! two attaches therefore never merge. A detach finds the remaining VMAs of one attach by this file, and
//! unmaps them. `file/kinds/segment.rs` counts attachments and decides when the memory is freed. The embedder
//! manages keys, identifiers and permissions, and checks them before the call.
//!
//! Both calls hold the mmap lock for writing. The memory of a removed segment is freed after this lock is
//! released, because freeing the memory takes locks of the file. `tests/shm.rs` has the tests, and
//! `shuttle_engine/segments.rs` attaches concurrently with the removal (hazard C-71).

use crate::space::{
    AddressSpace,
    change::unmap::{UnmapRange, Unmapped},
    locking::WriteGuard,
    map_flags::{MapFlags, Prot},
};
use crate::{
    PAGE_SIZE,
    counted::Counted,
    error::{MmapError, ShmatError, ShmdtError},
    file::{File, FileAccess, Segment},
    platform::Platform,
    vma::Vma,
};
use bitflags::bitflags;
use freehold_vmspace::{PageIndex, UserRange};

bitflags! {
    /// Flags of shmat, with Linux's numbers. Other flags are ignored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ShmFlags: u32 {
        /// SHM_RDONLY: the attachment can only be read. mprotect cannot make it writable later.
        const RDONLY = 0o10000;
        /// SHM_RND: an address inside a page is rounded down to the start of the page.
        const RND = 0o20000;
        /// SHM_REMAP: existing mappings are replaced.
        const REMAP = 0o40000;
        /// SHM_EXEC: instructions can be executed.
        const EXEC = 0o100000;
    }
}

/// Alignment of addresses (SHMLBA).
const ALIGN: u64 = PAGE_SIZE;

impl From<MmapError> for ShmatError {
    fn from(error: MmapError) -> Self {
        match error {
            MmapError::NoSpace => ShmatError::NoSpace,
            MmapError::TooManyVmas => ShmatError::TooManyVmas,
            MmapError::Limit => ShmatError::Limit,
            MmapError::OutOfMemory => ShmatError::OutOfMemory,
            MmapError::LockLimit => ShmatError::LockLimit,
            MmapError::NotPermitted => ShmatError::NotPermitted,
            MmapError::OtherEngine => ShmatError::OtherEngine,
            MmapError::Killed => ShmatError::Killed,
            // Errors that mmap returns only for other kinds of files or for flags that shmat does not use.
            _ => ShmatError::Invalid,
        }
    }
}

/// Checks the address and the flags of shmat. Returns the address for the segment, or `None` if the engine
/// chooses it.
fn decode(addr: u64, flags: ShmFlags) -> Result<Option<u64>, ShmatError> {
    let (round, remap) = (flags.contains(ShmFlags::RND), flags.contains(ShmFlags::REMAP));
    let at = if round { addr & !(ALIGN - 1) } else { addr };
    if !at.is_multiple_of(PAGE_SIZE) || (at == 0 && remap) {
        return Err(ShmatError::Invalid);
    }
    Ok((addr != 0).then_some(at))
}

impl<P: Platform> AddressSpace<P> {
    /// Attaches all of `segment` at `addr`, or at any address if `addr` is zero. Returns the address. The
    /// embedder checks before the call that the caller may attach the segment.
    ///
    /// # Errors
    ///
    /// See [`ShmatError`]. Nothing is changed after an error.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably. Afterwards, if the segment was removed and is not attached at the
    /// end of the call, the locks that free its memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::ShmFlags, file::Segment, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let segment = Segment::new(&engine, 0, PAGE_SIZE).unwrap();
    /// let (here, there) = (space.shmat(&segment, 0, ShmFlags::empty()).unwrap(), space.shmat(&segment, 0, ShmFlags::empty()).unwrap());
    /// space.write_memory(here, b"both", AccessMode::Plain).unwrap();
    /// let mut found = [0; 4];
    /// space.read_memory(there, &mut found, AccessMode::Plain).unwrap();
    /// assert_eq!((&found, segment.attached()), (b"both", 2));
    /// space.shmdt(there).unwrap();
    /// ```
    pub fn shmat(
        &self,
        segment: &Counted<Segment<P>>,
        addr: u64,
        flags: ShmFlags,
    ) -> Result<u64, ShmatError> {
        let at = decode(addr, flags)?;
        // The attempt counts as an attachment. Dropped at the end of the call, when no lock is held, because
        // the drop may free the segment.
        let _attached = segment.attaching().ok_or(ShmatError::Removed)?;
        let (access, mut prot) = match flags.contains(ShmFlags::RDONLY) {
            true => (FileAccess::READ, Prot::READ),
            false => (FileAccess::READ_WRITE, Prot::READ | Prot::WRITE),
        };
        prot.set(Prot::EXEC, flags.contains(ShmFlags::EXEC));
        let file = Segment::open(segment, access)?;
        self.attach(&file, at, prot, flags.contains(ShmFlags::REMAP))
    }

    /// Maps `file` with the steps of mmap, at `at` or at any address.
    fn attach(
        &self,
        file: &Counted<File<P>>,
        at: Option<u64>,
        prot: Prot,
        remap: bool,
    ) -> Result<u64, ShmatError> {
        let len = file.mapping().size();
        let mut flags = MapFlags::SHARED;
        flags.set(MapFlags::FIXED, at.is_some());
        let mut request = self.decode_mmap(at.unwrap_or(0), len, prot, flags, Some(file), 0)?;
        let end = |at: u64| at.checked_add(len)?.checked_next_multiple_of(PAGE_SIZE);
        let guard = match at.and_then(|at| UserRange::try_new(at, end(at)?)) {
            Some(range) if range.end() <= Self::TASK_SIZE => self.write_exclusive_range(range)?,
            _ => self.write_killable()?,
        };
        if let Some(at) = at.filter(|&at| at != 0 && !remap) {
            let end = at.checked_add(len).ok_or(ShmatError::Invalid)?;
            if guard.next_slot(at).is_some_and(|slot| slot.range().start() < end) {
                return Err(ShmatError::Invalid);
            }
        }
        Ok(guard.map_and_populate(&mut request, None, None)?)
    }

    /// Detaches the segment that was attached at `addr`. Searches for the first VMA at or above `addr` that
    /// maps a segment and whose page offset matches an attachment at `addr`. Unmaps this VMA and all other
    /// VMAs that remain of the attachment. A sealed VMA stays mapped, and no error is returned.
    ///
    /// # Errors
    ///
    /// See [`ShmdtError`]. Nothing is changed after an error.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably. With [`Unmap::Sectioned`](crate::space::Unmap::Sectioned) the
    /// lock is taken again for each section, and other tasks may take it in between. Afterwards, if a removed
    /// segment is not attached any more, the locks that free its memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::ShmFlags, file::Segment, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let segment = Segment::new(&engine, 0, PAGE_SIZE).unwrap();
    /// let at = space.shmat(&segment, 0, ShmFlags::RDONLY).unwrap();
    /// segment.remove();
    /// assert!(!segment.is_destroyed(), "still attached");
    /// space.shmdt(at).unwrap();
    /// assert!(segment.is_destroyed());
    /// ```
    pub fn shmdt(&self, addr: u64) -> Result<(), ShmdtError> {
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(ShmdtError::Invalid);
        }
        let mut guard = self.write_killable()?;
        let mut attach = Attach::at(&guard, addr)?;
        if self.unmaps_by_sections() {
            while let Some(range) = attach.next_part(&guard) {
                // A sealed part stays mapped.
                let _ = guard.unmap_by_design(&mut UnmapRange::trusted::<P>(range));
                if attach.is_over() {
                    return Ok(());
                }
                guard = self.write();
            }
            return Ok(());
        }
        let mut gone = None;
        while let Some(range) = attach.next_part(&guard) {
            gone = join(gone, guard.unmap(&UnmapRange::trusted::<P>(range)).ok());
        }
        drop(guard);
        gone.into_iter().for_each(Unmapped::retire);
        Ok(())
    }
}

/// The remaining parts of an attachment.
struct Attach<P: Platform> {
    /// Start of the whole attachment, as passed to shmdt.
    addr: u64,
    /// The file of the attach. While the lock is released, this reference keeps the file in memory, so that
    /// no other attach gets a file at the same memory address.
    file: Counted<File<P>>,
    /// End of the whole attachment.
    end: u64,
    /// Address at which the search for the next part continues.
    at: u64,
    /// Maximum end of the next part.
    limit: u64,
}

impl<P: Platform> Attach<P> {
    /// Finds the attachment at `addr`.
    fn at(guard: &WriteGuard<'_, P>, addr: u64) -> Result<Self, ShmdtError> {
        let first = guard
            .vmas(UserRange::new(addr, addr.max(AddressSpace::<P>::TASK_SIZE)))
            .find(|vma| attached_at(vma, addr).is_some());
        let first = first.ok_or(ShmdtError::Invalid)?;
        let file = attached_at(first, addr).cloned().ok_or(ShmdtError::Invalid)?;
        // The first VMA is unmapped in any case, even if it extends beyond the current end of the segment.
        let end = addr.saturating_add(file.mapping().size().next_multiple_of(PAGE_SIZE));
        Ok(Attach { addr, end, at: first.start(), limit: first.end().max(end), file })
    }

    /// Returns the next VMA of the attachment, in ascending order.
    fn next_part(&mut self, guard: &WriteGuard<'_, P>) -> Option<UserRange> {
        while let Some(vma) = guard.next(self.at).filter(|vma| vma.end() <= self.limit) {
            self.limit = self.end;
            self.at = vma.end();
            if attached_at(vma, self.addr).is_some_and(|other| Counted::ptr_eq(other, &self.file)) {
                return Some(vma.range());
            }
        }
        None
    }

    /// Returns true if no part can follow.
    fn is_over(&self) -> bool {
        self.at >= self.limit
    }
}

/// Returns the attachment to which a VMA belongs, if the VMA lies where an attachment at `addr` would be.
fn attached_at<P: Platform>(vma: &Vma<P>, addr: u64) -> Option<&Counted<File<P>>> {
    let file = vma.object().file().filter(|file| file.segment().is_some())?;
    let offset = vma.start().checked_sub(addr)?;
    (PageIndex::of_byte(offset) == vma.pgoff()).then_some(file)
}

/// Combines two removals, so that both are retired together.
fn join<'s, P: Platform>(a: Option<Unmapped<'s, P>>, b: Option<Unmapped<'s, P>>) -> Option<Unmapped<'s, P>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.join(b)),
        (a, b) => a.or(b),
    }
}
