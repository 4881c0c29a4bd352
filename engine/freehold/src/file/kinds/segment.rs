//! System V shared memory, as far as address spaces need it: the memory, and the number of its attachments.
//!
//! The embedder manages keys, permissions, identifiers and times. This file decides when the memory is freed:
//! when the segment is marked as removed *and* is not attached. Each VMA that maps the segment counts as an
//! attachment. A fork and a split therefore increment the count, and an unmapped fragment decrements it. An
//! attempt to attach the segment also counts as an attachment while the attempt runs (hazard C-71).
//!
//! `segment_state.rs` has the states. `call/shm.rs` attaches and detaches segments. `object.rs` reports each
//! VMA that begins or ends. The task that destroys the segment frees the memory, exactly once, and must hold
//! no lock.
//! `tests/shm.rs` and `shuttle_engine/segments.rs` have the tests.

use super::segment_state::SegmentState;
use crate::{
    counted::{Counted, Room, Shared},
    error::NoMemory,
    file::{File, FileAccess, FillError, HasFiles, Mapping, Zeroes, mapping::NewFile},
    platform::Platform,
};
use freehold_vmspace::HugePageSize;

/// A segment of System V shared memory.
pub struct Segment<P: Platform> {
    /// The key by which reports name the segment.
    key: u32,
    /// The pages.
    memory: Counted<Mapping<P>>,
    state: SegmentState,
}

impl<P: Platform> Shared for Segment<P> {}

/// An attempt to attach a segment. The segment counts as attached while this value lives.
pub(crate) struct Attaching<'s, P: Platform>(&'s Segment<P>);

impl<P: Platform> Drop for Attaching<'_, P> {
    fn drop(&mut self) {
        self.0.closed();
    }
}

impl<P: Platform> Segment<P> {
    /// Creates a zeroed segment of `bytes` bytes. Reports name the segment by `key`. The whole size counts as
    /// committed memory until the segment is destroyed.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory, or if more would be committed than
    /// [allowed](crate::engine::Engine::set_overcommit).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageCount, file::Segment};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let segment = Segment::new(&engine, 7, 4 * PAGE_SIZE).unwrap();
    /// assert_eq!((segment.key(), engine.committed_pages()), (7, PageCount::new(4)));
    /// ```
    pub fn new(files: &impl HasFiles<P>, key: u32, bytes: u64) -> Result<Counted<Self>, NoMemory> {
        Self::over(key, Mapping::make(files.files(), Zeroes, NewFile::nameless(bytes, true))?)
    }

    /// Creates a segment like [`new`](Self::new), of which only touched pages count as committed memory
    /// (SHM_NORESERVE). Under [`Overcommit::Never`](crate::engine::Overcommit::Never), this function has the
    /// effect of `new`.
    ///
    /// # Errors
    ///
    /// Fails like `new`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageCount, file::Segment};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let segment = Segment::noreserve(&engine, 7, 4 * PAGE_SIZE).unwrap();
    /// assert_eq!(engine.committed_pages(), PageCount::new(0));
    /// segment.mapping().write_at(0, b"page").unwrap();
    /// assert_eq!(engine.committed_pages(), PageCount::new(1));
    /// ```
    pub fn noreserve(files: &impl HasFiles<P>, key: u32, bytes: u64) -> Result<Counted<Self>, NoMemory> {
        let new = NewFile::nameless(bytes, files.files().committed.is_strict());
        Self::over(key, Mapping::make(files.files(), Zeroes, new)?)
    }

    /// Creates a segment like [`new`](Self::new), made of huge pages of the size `page` (SHM_HUGETLB). Pages
    /// come from the [pool](crate::engine::Engine::huge_pool) when they are first touched. With `reserved`,
    /// the whole segment is reserved in the pool until it is destroyed. Without `reserved` (SHM_NORESERVE),
    /// no page is reserved.
    ///
    /// # Errors
    ///
    /// Fails if `bytes` is not a multiple of the page size, if the pool has too few pages, or if there is no
    /// memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::FillError, file::Segment, hugetlb::HugePageSize};
    /// # let engine = freehold_machine::example_engine(16 << 20);
    /// # engine.resize_huge_pool(HugePageSize::Mib2, 2, None);
    /// let huge = |pages: u64| Segment::of_huge_pages(&engine, 7, HugePageSize::Mib2, pages << 21, true);
    /// let segment = huge(2).unwrap();
    /// assert_eq!(engine.huge_pool(HugePageSize::Mib2).counts(None).reserved, 2);
    /// assert_eq!(huge(1).err(), Some(FillError::NoHugePages));
    /// ```
    #[cfg(feature = "hugetlb")]
    pub fn of_huge_pages(
        files: &impl HasFiles<P>,
        key: u32,
        page: HugePageSize,
        bytes: u64,
        reserved: bool,
    ) -> Result<Counted<Self>, FillError> {
        let memory = Mapping::of_huge_pages(files, page, bytes, false)?;
        // If creating the segment fails, dropping the memory releases the reservation.
        memory.retry_when_short(|| match memory.reserving()? {
            Some(right) => right.reserve(0..memory.size(), reserved, false),
            None => Ok(()),
        })?;
        Ok(Self::over(key, memory)?)
    }

    /// Creates a segment over `memory`, without attachments.
    fn over(key: u32, memory: Counted<Mapping<P>>) -> Result<Counted<Self>, NoMemory> {
        let room: Room<Self> = memory.files().allocate(true, || Ok(Room::try_new()?))?;
        Ok(room.fill(Segment { key, memory, state: SegmentState::new() }))
    }

    /// Returns the segment's pages.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::ShmFlags, file::Segment, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let segment = Segment::new(&engine, 0, PAGE_SIZE).unwrap();
    /// let at = space.shmat(&segment, 0, ShmFlags::empty()).unwrap();
    /// space.write_memory(at, b"text", AccessMode::Plain).unwrap();
    /// let mut found = [0; 4];
    /// segment.mapping().read_at(0, &mut found).unwrap();
    /// assert_eq!(&found, b"text");
    /// ```
    pub fn mapping(&self) -> &Counted<Mapping<P>> {
        &self.memory
    }

    /// Returns the key by which reports name the segment.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::ShmFlags, file::Segment, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let segment = Segment::new(&engine, 0xabcd, PAGE_SIZE).unwrap();
    /// assert_eq!(segment.key(), 0xabcd);
    /// let at = space.shmat(&segment, 0, ShmFlags::empty()).unwrap();
    /// assert_eq!(space.maps(at).next().unwrap().name.as_str(), "/SYSV0000abcd");
    /// ```
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Returns the number of VMAs that map the segment (shm_nattch), including attempts to attach it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::ShmFlags, file::Segment, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let segment = Segment::new(&engine, 0, PAGE_SIZE).unwrap();
    /// space.shmat(&segment, 0, ShmFlags::empty()).unwrap();
    /// let child = space.fork().unwrap();
    /// assert_eq!(segment.attached(), 2);
    /// child.clear();
    /// assert_eq!(segment.attached(), 1);
    /// ```
    pub fn attached(&self) -> u64 {
        self.state.attached()
    }

    /// Returns true if the segment is marked as removed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::ShmFlags, file::Segment, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let segment = Segment::new(&engine, 0, PAGE_SIZE).unwrap();
    /// space.shmat(&segment, 0, ShmFlags::empty()).unwrap();
    /// segment.remove();
    /// assert!(segment.is_removed() && !segment.is_destroyed());
    /// ```
    pub fn is_removed(&self) -> bool {
        self.state.is_marked()
    }

    /// Returns true if the segment is destroyed: removed and not attached. The embedder may then forget it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::ShmFlags, file::Segment, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let segment = Segment::new(&engine, 0, PAGE_SIZE).unwrap();
    /// let at = space.shmat(&segment, 0, ShmFlags::empty()).unwrap();
    /// segment.remove();
    /// assert!(!segment.is_destroyed());
    /// space.shmdt(at).unwrap();
    /// assert!(segment.is_destroyed());
    /// ```
    pub fn is_destroyed(&self) -> bool {
        self.state.is_destroyed()
    }

    /// Marks the segment as removed (IPC_RMID). The memory is freed as soon as the segment is not attached,
    /// possibly by this call.
    ///
    /// # Locks
    ///
    /// If this call frees the memory: the content and invalidate locks of the memory for writing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::ShmFlags, error::ShmatError, file::Segment, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let segment = Segment::new(&engine, 0, PAGE_SIZE).unwrap();
    /// segment.remove();
    /// assert!(segment.is_removed() && segment.is_destroyed());
    /// assert_eq!(space.shmat(&segment, 0, ShmFlags::empty()), Err(ShmatError::Removed));
    /// ```
    pub fn remove(&self) {
        if self.state.mark() {
            self.destroy();
        }
    }

    /// Marks a removed segment as ending if its only attachments are the `vmas` VMAs that the caller is about
    /// to remove. Returns true if it marked the segment. An ending segment cannot be attached; its memory is
    /// freed with the last VMA. All the VMAs are in one address space, whose mmap lock the caller holds for
    /// writing, so that no fork or split adds to the count.
    pub(crate) fn ends_with(&self, vmas: u64) -> bool {
        self.state.ends_with(vmas)
    }

    /// Counts an attempt to attach the segment. Returns `None` if the segment is destroyed or ending.
    pub(crate) fn attaching(&self) -> Option<Attaching<'_, P>> {
        self.state.try_attach().then(|| Attaching(self))
    }

    /// Opens the file that one attach maps. Each attach has its own open file, so that VMAs of two attaches
    /// never merge.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub(crate) fn open(this: &Counted<Self>, access: FileAccess) -> Result<Counted<File<P>>, NoMemory> {
        File::of_segment(this, access, &name(this.key))
    }

    /// Counts a new VMA. Another attachment exists during this call, so the count is not 0.
    pub(in crate::file) fn opened(&self) {
        self.state.attach();
    }

    /// Uncounts a VMA or an attempt. The caller that removes the last attachment holds no lock. Code that
    /// removes a VMA under a lock always keeps another VMA of the segment.
    pub(in crate::file) fn closed(&self) {
        if self.state.detach() {
            self.destroy();
        }
    }

    /// Frees the memory, although tasks may still hold references to the segment. Runs once, because the
    /// state no longer changes afterwards.
    fn destroy(&self) {
        self.memory.clear();
    }
}

/// Returns the name that reports show for this key.
fn name(key: u32) -> arrayvec::ArrayString<13> {
    use core::fmt::Write;
    let mut name = arrayvec::ArrayString::new();
    let written = write!(name, "/SYSV{key:08x}");
    debug_assert!(written.is_ok(), "the name of a segment exceeds 13 characters");
    name
}
