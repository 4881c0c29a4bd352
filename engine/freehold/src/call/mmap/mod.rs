//! mmap: creates mappings of memory or of files.
//!
//! The call follows the steps of a change (`space/change/unmap.rs`):
//!
//! | step | work | file |
//! | --- | --- | --- |
//! | decode | checks the arguments that need no address space | `decode_mmap` in this file, `request.rs` |
//! | prepare | acquires the right; chooses the address; checks flags, file and limits; allocates | `claim.rs`, `place.rs`, `secret.rs`, this file, `store.rs` |
//! | commit, settle | stores the mapping in place of older mappings | `store.rs`, `driver.rs` |
//! | retire | retires replaced VMAs, without locks; then populates the mapping, if requested | `map_and_populate` in this file |
//!
//! `driver.rs` maps files of drivers, whose hooks run with the mmap lock held for writing.
//! `remap_file_pages.rs` and `shm.rs` use the same steps with a request of their own.
//!
//! Every check that can fail must come before the first change, so that a failed mmap changes nothing. The
//! model's `mmap.rs` has the order of the checks on Linux. `tests/mmap` tests places, merging and committed
//! memory, and `tests/hugetlb/failed_calls.rs` tests failed mappings of huge pages. Most functions of a step
//! are inlined only in optimised builds, because a kernel has little stack (`tests/stack_depth.rs`).

mod claim;
mod driver;
mod place;
mod request;
mod secret;
mod store;

use self::{request::MmapRequest, store::Stored};
use crate::{
    PAGE_SHIFT, PAGE_SIZE,
    call::ksm::with_mergeable,
    counted::Counted,
    error::{MmapError, MunmapError, NoMemory},
    file::{File, HasFiles, Mapping, Object, kinds::huge::Reserving},
    platform::Platform,
    space::{
        AddressSpace,
        change::deferred_retire::DeferredRetire,
        claim::RangeClaim,
        locking::WriteGuard,
        map_flags::{DROPPABLE, DROPPED, MapFlags, PRIVATE, Prot, SHARED, SHARED_VALIDATE, TYPE, vm_flags},
        range_writer::RangeWriterState,
        shortage::ShortageRounds,
    },
    vma::flags::VmFlags,
};
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::{HugePageSize, PageCount, PageIndex, UserRange};

impl From<MunmapError> for MmapError {
    fn from(error: MunmapError) -> Self {
        match error {
            MunmapError::Sealed => MmapError::NotPermitted,
            MunmapError::Invalid | MunmapError::NotSplittable => MmapError::Invalid,
            MunmapError::TooManyVmas => MmapError::TooManyVmas,
            MunmapError::OutOfMemory => MmapError::OutOfMemory,
            MunmapError::Killed => MmapError::Killed,
        }
    }
}

/// Result of an attempt to create a mapping without a claim.
enum Unclaimed {
    /// The mapping was created at this address.
    Mapped(u64),
    /// The mapping needs a claim.
    NeedsClaim,
    /// The mapping needs the exclusive writer.
    NeedsExclusive,
}

impl<P: Platform> AddressSpace<P> {
    /// Maps `len` bytes of anonymous memory, or of `file` from byte `offset` on. Returns the address.
    ///
    /// `addr` is a hint. With [`MapFlags::FIXED`], `addr` is the address, and existing mappings there are
    /// replaced. `file` is ignored with [`MapFlags::ANONYMOUS`]. Supports all features of mmap(2) and checks
    /// the arguments in Linux's order.
    ///
    /// # Errors
    ///
    /// See [`MmapError`]. Nothing is changed after an error, even in cases in which Linux leaves a hole in
    /// place of the replaced mappings. There is one exception: if the driver of `file` provides frames and a
    /// later step fails, the replaced mappings are lost.
    ///
    /// # Locks
    ///
    /// The locks of a [range writer](crate::space::locking#writers), killably. Before them, the file's
    /// content lock for writing if pages of a file of huge pages are reserved. Afterwards, to populate, the
    /// locks of faults.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let low = space.mmap(0x10_0000, PAGE_SIZE, rw, private | MapFlags::FIXED_NOREPLACE, None, 0);
    /// assert_eq!(low, Ok(0x10_0000));
    /// let again = space.mmap(0x10_0000, PAGE_SIZE, rw, private | MapFlags::FIXED_NOREPLACE, None, 0);
    /// assert_eq!(again.unwrap_err().errno(), freehold::error::Errno::EEXIST);
    /// ```
    pub fn mmap(
        &self,
        addr: u64,
        len: u64,
        prot: Prot,
        flags: MapFlags,
        file: Option<&Counted<File<P>>>,
        offset: u64,
    ) -> Result<u64, MmapError> {
        match self.try_mmap(addr, len, prot, flags, file, offset) {
            Err(error @ (MmapError::OutOfMemory | MmapError::NoSpace)) => {
                self.mmap_again(error, addr, len, prot, flags, file, offset)
            }
            done => done,
        }
    }

    /// Makes one attempt of [`mmap`](Self::mmap).
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn try_mmap(
        &self,
        addr: u64,
        len: u64,
        prot: Prot,
        flags: MapFlags,
        file: Option<&Counted<File<P>>>,
        offset: u64,
    ) -> Result<u64, MmapError> {
        let mut request = self.decode_mmap(addr, len, prot, flags, file, offset)?;
        match request.file_to_reserve().cloned() {
            None => self.map_request(&mut request, None),
            Some(file) => self.map_reserving(&mut request, &file),
        }
    }

    /// Repeats [`mmap`](Self::mmap) while memory or addresses are short, after an attempt has failed with
    /// `error`.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "the arguments of mmap")]
    fn mmap_again(
        &self,
        error: MmapError,
        addr: u64,
        len: u64,
        prot: Prot,
        flags: MapFlags,
        file: Option<&Counted<File<P>>>,
        offset: u64,
    ) -> Result<u64, MmapError> {
        // A failed attempt with a driver may have unmapped the range, and another task may have mapped
        // something there.
        if file.is_some_and(|file| file.driver().is_some()) {
            return Err(error);
        }
        let mut rounds = ShortageRounds::new();
        rounds.again(self, error)?;
        self.retry_when_short_by(rounds, || self.try_mmap(addr, len, prot, flags, file, offset))
    }

    /// Completes [`mmap`](Self::mmap) if the mapping may reserve pages of `file` or enlarge it.
    #[cold]
    fn map_reserving(&self, request: &mut MmapRequest<P>, file: &Counted<File<P>>) -> Result<u64, MmapError> {
        let reserving = file.mapping().reserving()?;
        self.map_request(request, reserving)
    }

    /// Acquires the right to create the mapping, and performs the steps from prepare to retire.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn map_request(
        &self,
        request: &mut MmapRequest<P>,
        reserving: Option<Reserving<'_, P>>,
    ) -> Result<u64, MmapError> {
        let fixed = request.fixed_range();
        if let Some(lock) = self.try_lock_exclusive() {
            let mut replaced = DeferredRetire::new();
            let mapped = {
                let guard = self.writer(lock);
                let free = match fixed {
                    None => true,
                    Some(range) => guard.clear_for_write(range),
                };
                // Not `then`, whose closure is not inlined.
                if free { Some(guard.map(request, None, reserving.as_ref(), &mut replaced)) } else { None }
            };
            if let Some(mapped) = mapped {
                return self.finish_mapping(request, mapped, reserving, &mut replaced);
            }
        }
        self.map_concurrently(request, fixed, reserving)
    }

    /// Performs retire, without locks, and populates the mapping if requested. `mapped` is the result of
    /// [`map`](WriteGuard::map). Returns the address.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn finish_mapping(
        &self,
        request: &mut MmapRequest<P>,
        mapped: Result<(UserRange, bool), MmapError>,
        reserving: Option<Reserving<'_, P>>,
        replaced: &mut DeferredRetire<'_, P>,
    ) -> Result<u64, MmapError> {
        // If the VMA was created, it now prevents seals on its file, so `writing` is no longer needed.
        // `writing` is dropped here, because this task must not prevent seals while it waits in the code
        // below, for example for the reader of a userfaultfd.
        request.writing = None;
        // The replaced mapping may have held the last reference to a file, so it is dropped without locks.
        drop(reserving);
        replaced.retire();
        let (range, populate) = mapped?;
        if populate {
            // Errors are not reported: the mapping stays, and the next access reports the problem.
            let _ = self.populate(range);
        }
        Ok(range.start())
    }

    /// Creates the mapping while other writers may be active. Private anonymous memory in a hole is mapped
    /// without a claim if possible. This case is the most frequent one and needs a single change of the tree.
    #[inline(never)]
    fn map_concurrently(
        &self,
        request: &mut MmapRequest<P>,
        fixed: Option<UserRange>,
        reserving: Option<Reserving<'_, P>>,
    ) -> Result<u64, MmapError> {
        let state = RangeWriterState::default();
        let mut ranges = self.prefers_ranges();
        let may_succeed = || match fixed {
            None => !request.flags.contains(MapFlags::FIXED),
            Some(range) => self.may_map_unclaimed(range.start()),
        };
        if ranges && request.is_private_anonymous() && may_succeed() {
            let asked = request.vm_flags;
            match self.map_unclaimed(&state, request, fixed) {
                Ok(Unclaimed::Mapped(start)) => return Ok(start),
                Ok(Unclaimed::NeedsClaim) => ranges = self.prefers_ranges(),
                Ok(Unclaimed::NeedsExclusive) => ranges = false,
                // A claim determines the error, because the range may have to be replaced.
                Err(_) if fixed.is_some() => {}
                Err(error) => return Err(error),
            }
            request.vm_flags = asked;
        }
        let (guard, placed) = self.lock_for_mmap(&state, request, fixed, ranges)?;
        guard.map_and_populate(request, placed, reserving)
    }

    /// Maps private anonymous memory as a range writer without a claim.
    fn map_unclaimed(
        &self,
        state: &RangeWriterState,
        request: &mut MmapRequest<P>,
        fixed: Option<UserRange>,
    ) -> Result<Unclaimed, MmapError> {
        let guard = match self.enter_range_writer(state, || request.limit_demand(self)) {
            RangeClaim::Granted(guard, ()) => guard,
            RangeClaim::NeedsExclusive => return Ok(Unclaimed::NeedsExclusive),
            RangeClaim::Killed => return Err(MmapError::Killed),
        };
        // The insertion checks whether the hint or the fixed range is free.
        let hint = match fixed {
            Some(range) => Some(range.start()),
            None => guard.unchecked_hint(request),
        };
        // If there is no place, the exclusive writer repeats the search and determines the error.
        let Some(start) = hint.or_else(|| guard.place(request).ok()) else {
            return Ok(Unclaimed::NeedsExclusive);
        };
        let range = guard.resolve(request, Some(start))?;
        let populate = match guard.store_unclaimed(request, range)? {
            Stored::Done { populate } => populate,
            Stored::Occupied if hint.is_some() => return Ok(Unclaimed::NeedsClaim),
            Stored::Occupied | Stored::Contended => {
                self.record_contention();
                return Ok(Unclaimed::NeedsClaim);
            }
            Stored::NeedsClaim => return Ok(Unclaimed::NeedsClaim),
        };
        drop(guard);
        if populate {
            // Errors are not reported, as in `map_and_populate`.
            let _ = self.populate(range);
        }
        Ok(Unclaimed::Mapped(start))
    }

    /// Performs decode: the checks that do not need the address space.
    #[inline]
    pub(super) fn decode_mmap(
        &self,
        addr: u64,
        len: u64,
        prot: Prot,
        mut flags: MapFlags,
        file: Option<&Counted<File<P>>>,
        offset: u64,
    ) -> Result<MmapRequest<P>, MmapError> {
        if !offset.is_multiple_of(PAGE_SIZE) {
            return Err(MmapError::Invalid);
        }
        let file = file.filter(|_| !flags.contains(MapFlags::ANONYMOUS));
        if file.is_none() && !flags.contains(MapFlags::ANONYMOUS) {
            return Err(MmapError::BadDescriptor);
        }
        if file.is_some_and(|file| !self.engine.owns(file.mapping().files())) {
            return Err(MmapError::OtherEngine);
        }
        let huge = file.and_then(|file| file.mapping().huge_page_size());
        if len == 0 || (flags.contains(MapFlags::HUGETLB) && file.is_some() && huge.is_none()) {
            return Err(MmapError::Invalid);
        }
        let huge = match flags.contains(MapFlags::HUGETLB) && file.is_none() {
            true => Some(flags.huge_page_size().ok_or(MmapError::Invalid)?),
            false => huge,
        };
        let unit = huge.map_or(PAGE_SIZE, HugePageSize::bytes);
        if flags.contains(MapFlags::FIXED_NOREPLACE) {
            flags |= MapFlags::FIXED;
        }
        let too_long = if huge.is_some() { MmapError::Invalid } else { MmapError::NoSpace };
        let len = len.checked_next_multiple_of(unit).ok_or(too_long)?;
        // The limit on the offset is checked later, by `resolve_file`. The alignment of the offset of huge
        // pages is checked by `store_mapping`.
        if (offset >> PAGE_SHIFT).checked_add(len >> PAGE_SHIFT).is_none() {
            return Err(MmapError::OffsetOverflow);
        }
        let addr = if flags.contains(MapFlags::FIXED) { addr } else { self.round_hint(addr, unit) };
        let object = match (file, huge) {
            (Some(file), _) if file.is_zeroes() => Object::Zeroes(file.clone()),
            (Some(file), _) => Object::File(file.clone()),
            (None, Some(size)) => Object::File(File::anonymous_huge(&self.engine, size, len)?),
            (None, None) => Object::Anonymous,
        };
        let mut vm_flags = vm_flags(prot, flags);
        if huge.is_some() {
            vm_flags |= VmFlags::HUGETLB | VmFlags::DONTEXPAND;
        }
        Ok(MmapRequest {
            addr,
            len,
            unit,
            flags,
            vm_flags,
            object,
            pgoff: PageIndex::of_byte(offset),
            writing: None,
        })
    }

    /// Rounds a hint to whole pages, not below the minimum address.
    fn round_hint(&self, addr: u64, unit: u64) -> u64 {
        let hint = addr & !(PAGE_SIZE - 1);
        match hint {
            0 => 0,
            // A hint that overflows is ignored.
            _ => hint.max(self.engine.config().mmap_min_addr).checked_next_multiple_of(unit).unwrap_or(0),
        }
    }
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Performs the steps from prepare to retire, and releases the locks before retire. Then populates the
    /// mapping if requested. Returns the address.
    #[inline(never)]
    pub(super) fn map_and_populate(
        self,
        request: &mut MmapRequest<P>,
        placed: Option<u64>,
        reserving: Option<Reserving<'_, P>>,
    ) -> Result<u64, MmapError> {
        let space = self.space;
        let mut replaced = DeferredRetire::new();
        let mapped = self.map(request, placed, reserving.as_ref(), &mut replaced);
        drop(self);
        space.finish_mapping(request, mapped, reserving, &mut replaced)
    }

    /// Performs prepare, commit and settle. `placed` is the address if it is already chosen. Returns the
    /// range, and true if the range must be populated.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn map(
        &self,
        request: &mut MmapRequest<P>,
        placed: Option<u64>,
        reserving: Option<&Reserving<'_, P>>,
        replaced: &mut DeferredRetire<'s, P>,
    ) -> Result<(UserRange, bool), MmapError> {
        let range = self.resolve(request, placed)?;
        let file = request.object.file().filter(|file| file.driver().is_some()).cloned();
        let populate = match file {
            None => self.store_mapping(request, range, reserving, replaced)?,
            Some(file) => self.store_driven(&file, request, range, replaced)?,
        };
        Ok((range, populate))
    }

    /// Performs the checks of prepare, and determines the flags and the object. `placed` is the start if it
    /// is already chosen. Returns the range.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn resolve(&self, request: &mut MmapRequest<P>, placed: Option<u64>) -> Result<UserRange, MmapError> {
        let space = self.space;
        if !self.may_have_vmas(0) {
            return Err(MmapError::TooManyVmas);
        }
        let start = match placed {
            Some(start) if !request.flags.contains(MapFlags::FIXED) => start,
            _ => self.place(request)?,
        };
        let range = UserRange::at(start, request.len);
        if request.flags.contains(MapFlags::FIXED_NOREPLACE)
            && self.next_slot(range.start()).is_some_and(|slot| slot.range().start() < range.end())
        {
            return Err(MmapError::Occupied);
        }
        request.vm_flags |= VmFlags::from_bits_retain(space.default_flags.load(Relaxed));
        let pkey = self.key_for(VmFlags::empty(), request.vm_flags & VmFlags::ACCESS, None);
        request.vm_flags = request.vm_flags.with_pkey(pkey);
        self.check_lock(request)?;
        self.resolve_kind(request, range.start())?;
        if space.denies_exec(request.vm_flags, request.vm_flags) {
            return Err(MmapError::AccessDenied);
        }
        Ok(range)
    }

    /// Checks rights and limits of locked memory.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn check_lock(&self, request: &MmapRequest<P>) -> Result<(), MmapError> {
        if request.flags.contains(MapFlags::LOCKED) && !self.space.may_mlock() {
            return Err(MmapError::NotPermitted);
        }
        let locked = request.vm_flags.contains(VmFlags::LOCKED);
        if locked && !self.may_lock_pages(PageCount::of_bytes(request.len)) {
            return Err(MmapError::LockLimit);
        }
        Ok(())
    }

    /// Performs the checks that depend on the kind of mapping, and sets the resulting flags.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn resolve_kind(&self, request: &mut MmapRequest<P>, start: u64) -> Result<(), MmapError> {
        match request.object.open_file().cloned() {
            Some(file) => {
                self.resolve_file(request, &file)?;
                if file.is_zeroes() && request.vm_flags.contains(VmFlags::SHARED) {
                    // The VMA keeps the requested offset, although the new file has no contents.
                    request.object = Object::File(self.shared_memory(request)?);
                }
                request.vm_flags = with_mergeable(request.vm_flags, &request.object);
            }
            None => self.resolve_anonymous(request, start)?,
        }
        let private = !request.vm_flags.intersects(VmFlags::SHARED | VmFlags::NORESERVE);
        if request.flags.contains(MapFlags::NORESERVE) && !self.ignores_noreserve(request) {
            request.vm_flags |= VmFlags::NORESERVE;
        } else if private && request.vm_flags & (VmFlags::WRITE | VmFlags::HUGETLB) == VmFlags::WRITE {
            request.vm_flags |= VmFlags::ACCOUNT;
        }
        Ok(())
    }

    /// Returns true if MAP_NORESERVE has no effect, because committed memory is limited.
    fn ignores_noreserve(&self, request: &MmapRequest<P>) -> bool {
        self.space.engine.committed().is_strict() && request.unit == PAGE_SIZE
    }

    /// Creates the file behind a shared anonymous mapping.
    fn shared_memory(&self, request: &MmapRequest<P>) -> Result<Counted<File<P>>, NoMemory> {
        let committed = !request.flags.contains(MapFlags::NORESERVE) || self.ignores_noreserve(request);
        File::nameless(&self.space.engine, request.len, committed, false)
    }

    /// Performs the checks of a mapping of `file`, in Linux's order, and sets the flags that follow from its
    /// access.
    fn resolve_file(&self, request: &mut MmapRequest<P>, file: &File<P>) -> Result<(), MmapError> {
        /// Flags that MAP_SHARED_VALIDATE accepts for an ordinary file.
        const KNOWN: MapFlags = MapFlags::SHARED_VALIDATE
            .union(MapFlags::FIXED)
            .union(MapFlags::ANONYMOUS)
            .union(MapFlags::DENYWRITE)
            .union(MapFlags::EXECUTABLE)
            .union(MapFlags::UNINITIALIZED)
            .union(MapFlags::BIT32)
            .union(MapFlags::ABOVE_4G)
            .union(MapFlags::GROWSDOWN)
            .union(MapFlags::LOCKED)
            .union(MapFlags::NORESERVE)
            .union(MapFlags::POPULATE)
            .union(MapFlags::NONBLOCK)
            .union(MapFlags::STACK)
            .union(MapFlags::HUGETLB)
            // Sizes of huge pages.
            .union(MapFlags::from_bits_retain(0x1f << 26));
        let access = file.access();
        // The driver of a device checks the offset itself.
        let fits = file.driver().is_some() || file.fits(request.pgoff, request.len >> PAGE_SHIFT);
        if !fits {
            return Err(MmapError::OffsetOverflow);
        }
        let kind = request.flags.bits() & TYPE;
        if kind == SHARED_VALIDATE && !KNOWN.contains(request.flags) {
            return Err(MmapError::UnknownFlag);
        }
        match kind {
            SHARED | SHARED_VALIDATE => {
                if request.vm_flags.contains(VmFlags::WRITE) && !access.write {
                    return Err(MmapError::AccessDenied);
                }
                if access.append && access.write {
                    return Err(MmapError::AccessDenied);
                }
                request.vm_flags |= VmFlags::SHARED | VmFlags::MAYSHARE;
                if !access.write {
                    request.vm_flags -= VmFlags::SHARED | VmFlags::MAYWRITE;
                }
            }
            PRIVATE => {}
            _ => return Err(MmapError::Invalid),
        }
        if !access.read {
            return Err(MmapError::AccessDenied);
        }
        if access.noexec || file.mapping().is_secret() {
            if request.vm_flags.contains(VmFlags::EXEC) {
                return Err(MmapError::NotPermitted);
            }
            request.vm_flags -= VmFlags::MAYEXEC;
        }
        if !access.mappable {
            return Err(MmapError::NotMappable);
        }
        if request.vm_flags.contains(VmFlags::GROWSDOWN) {
            return Err(MmapError::Invalid);
        }
        if file.driver().is_some() || file.is_zeroes() {
            return Ok(());
        }
        if file.mapping().is_secret() {
            return self.apply_secret_flags(request.len, &mut request.vm_flags);
        }
        let writing = Mapping::begin_writing(file.mapping(), &mut request.vm_flags);
        request.writing = writing.map_err(|_| MmapError::NotPermitted)?;
        Ok(())
    }

    /// Performs the checks of an anonymous mapping at `start`. Creates the file of a shared one.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn resolve_anonymous(&self, request: &mut MmapRequest<P>, start: u64) -> Result<(), MmapError> {
        match request.flags.bits() & TYPE {
            SHARED | DROPPABLE if request.vm_flags.contains(VmFlags::GROWSDOWN) => {
                return Err(MmapError::Invalid);
            }
            DROPPABLE if request.flags.contains(MapFlags::LOCKED) => return Err(MmapError::Invalid),
            SHARED => {
                request.vm_flags =
                    (request.vm_flags - VmFlags::MERGEABLE) | VmFlags::SHARED | VmFlags::MAYSHARE;
                request.pgoff = PageIndex::ZERO;
                request.object = Object::File(self.shared_memory(request)?);
            }
            PRIVATE => request.pgoff = PageIndex::of_byte(start),
            DROPPABLE => {
                self.space.engine.files().reclaim.note_droppable();
                request.vm_flags = (request.vm_flags - VmFlags::MERGEABLE) | DROPPED;
                request.pgoff = PageIndex::of_byte(start);
            }
            _ => return Err(MmapError::Invalid),
        }
        Ok(())
    }
}
