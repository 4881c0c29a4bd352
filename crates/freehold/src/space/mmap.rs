//! mmap: new mappings, of memory or of a file.

use super::{
    AddressSpace, TASK_SIZE,
    locking::WriteGuard,
    unmap::{Decoded, Unmapped},
};
use crate::{
    PAGE_SHIFT, PAGE_SIZE,
    counted::Counted,
    error::{MmapError, MunmapError},
    object::{File, Mapping, Object, Writing},
    platform::Platform,
    vma::{Family, Vma, flags::VmFlags, merge::Attrs},
};
use bitflags::bitflags;
use core::ops::Range;
use freehold_range::{Direction, GapRequest};
use freehold_sync::atomic::Ordering::Relaxed;

/// What a 2 MiB page table entry spans: large anonymous mappings are aligned to it.
const HUGE: u64 = 2 << 20;

bitflags! {
    /// Access rights as mmap and mprotect take them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Prot: u64 {
        /// PROT_READ
        const READ = 1;
        /// PROT_WRITE
        const WRITE = 2;
        /// PROT_EXEC
        const EXEC = 4;
        /// PROT_SEM: accepted, without meaning here.
        const SEM = 8;
        /// PROT_GROWSDOWN: mprotect goes down to the start of a growing VMA.
        const GROWSDOWN = 0x0100_0000;
        /// PROT_GROWSUP: nothing grows upwards here.
        const GROWSUP = 0x0200_0000;
    }

    /// Flags of mmap, with Linux's numbers on x86-64.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MapFlags: u64 {
        /// MAP_SHARED
        const SHARED = 0x01;
        /// MAP_PRIVATE
        const PRIVATE = 0x02;
        /// MAP_SHARED_VALIDATE: shared, unknown flags refused.
        const SHARED_VALIDATE = 0x03;
        /// MAP_DROPPABLE
        const DROPPABLE = 0x08;
        /// MAP_FIXED
        const FIXED = 0x10;
        /// MAP_ANONYMOUS
        const ANONYMOUS = 0x20;
        /// MAP_GROWSDOWN
        const GROWSDOWN = 0x0100;
        /// MAP_DENYWRITE: ignored.
        const DENYWRITE = 0x0800;
        /// MAP_EXECUTABLE: ignored.
        const EXECUTABLE = 0x1000;
        /// MAP_LOCKED
        const LOCKED = 0x2000;
        /// MAP_NORESERVE
        const NORESERVE = 0x4000;
        /// MAP_POPULATE
        const POPULATE = 0x8000;
        /// MAP_NONBLOCK: with POPULATE, do not.
        const NONBLOCK = 0x1_0000;
        /// MAP_STACK
        const STACK = 0x2_0000;
        /// MAP_HUGETLB
        const HUGETLB = 0x4_0000;
        /// MAP_SYNC
        const SYNC = 0x8_0000;
        /// MAP_FIXED_NOREPLACE
        const FIXED_NOREPLACE = 0x10_0000;
        /// MAP_UNINITIALIZED: ignored.
        const UNINITIALIZED = 0x400_0000;
    }
}

/// The kind of sharing, which is a number and not a set of bits.
const TYPE: u64 = 0x0f;
const SHARED: u64 = 1;
const PRIVATE: u64 = 2;
const SHARED_VALIDATE: u64 = 3;
const DROPPABLE: u64 = 8;

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

/// Arguments in the form the steps need them.
pub(super) struct Request<P: Platform> {
    /// Page-aligned hint, or the fixed address as passed.
    addr: u64,
    /// Whole pages, not zero.
    len: u64,
    flags: MapFlags,
    vm_flags: VmFlags,
    object: Object<P>,
    pgoff: u64,
    /// Keeps the file from being sealed.
    writing: Option<Writing<P>>,
}

impl<P: Platform> AddressSpace<P> {
    /// Maps `len` bytes, of anonymous memory or of `file` from byte `offset` on, and returns where.
    ///
    /// `addr` is a hint, or with [`MapFlags::FIXED`] the place, whatever is there now. `file` is ignored with
    /// [`MapFlags::ANONYMOUS`]. The whole of D.2 of the semantics reference, in its order of checks.
    ///
    /// # Errors
    ///
    /// See [`MmapError`]; nothing was changed.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably; then, to populate, the locks of faults.
    pub fn mmap(
        &self,
        addr: u64,
        len: u64,
        prot: Prot,
        flags: MapFlags,
        file: Option<&Counted<File<P>>>,
        offset: u64,
    ) -> Result<u64, MmapError> {
        let request = self.decode_mmap(addr, len, prot, flags, file, offset)?;
        let fixed = request
            .flags
            .contains(MapFlags::FIXED)
            .then(|| request.addr..request.addr.wrapping_add(request.len));
        // A range that does not fit is refused below, in its turn.
        let guard = match fixed {
            Some(range) if range.start < range.end && range.end <= TASK_SIZE => self.write_range(range)?,
            _ => self.write_killable()?,
        };
        guard.map_and_populate(request)
    }

    /// Step 1: what can be said without looking at the address space.
    pub(super) fn decode_mmap(
        &self,
        addr: u64,
        len: u64,
        prot: Prot,
        mut flags: MapFlags,
        file: Option<&Counted<File<P>>>,
        offset: u64,
    ) -> Result<Request<P>, MmapError> {
        if !offset.is_multiple_of(PAGE_SIZE) {
            return Err(MmapError::Invalid);
        }
        let file = file.filter(|_| !flags.contains(MapFlags::ANONYMOUS));
        if file.is_none() && !flags.contains(MapFlags::ANONYMOUS) {
            return Err(MmapError::BadDescriptor);
        }
        if len == 0 || (flags.contains(MapFlags::HUGETLB) && file.is_some()) {
            return Err(MmapError::Invalid);
        }
        if flags.contains(MapFlags::HUGETLB) {
            return Err(MmapError::NoHugePages);
        }
        if flags.contains(MapFlags::FIXED_NOREPLACE) {
            flags |= MapFlags::FIXED;
        }
        let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(MmapError::NoSpace)?;
        if (offset >> PAGE_SHIFT).checked_add(len >> PAGE_SHIFT).is_none() {
            return Err(MmapError::OffsetOverflow);
        }
        let addr = if flags.contains(MapFlags::FIXED) { addr } else { self.round_hint(addr) };
        let object = file.map_or(Object::Anonymous, |file| Object::File(file.clone()));
        Ok(Request {
            addr,
            len,
            flags,
            vm_flags: vm_flags(prot, flags),
            object,
            pgoff: offset >> PAGE_SHIFT,
            writing: None,
        })
    }

    /// A hint in whole pages, not below the minimum address.
    fn round_hint(&self, addr: u64) -> u64 {
        let hint = addr & !(PAGE_SIZE - 1);
        if hint == 0 { 0 } else { hint.max(self.engine.config().mmap_min_addr) }
    }
}

/// What the arguments alone say about a mapping's flags.
fn vm_flags(prot: Prot, flags: MapFlags) -> VmFlags {
    let mut vm =
        VmFlags::MAYREAD | VmFlags::MAYWRITE | VmFlags::MAYEXEC | VmFlags::SOFTDIRTY | access_flags(prot);
    vm.set(VmFlags::GROWSDOWN, flags.contains(MapFlags::GROWSDOWN));
    vm.set(VmFlags::LOCKED, flags.contains(MapFlags::LOCKED));
    vm.set(VmFlags::NOHUGEPAGE, flags.contains(MapFlags::STACK));
    vm
}

/// The access rights in `prot`.
pub(super) fn access_flags(prot: Prot) -> VmFlags {
    let mut vm = VmFlags::empty();
    vm.set(VmFlags::READ, prot.contains(Prot::READ));
    vm.set(VmFlags::WRITE, prot.contains(Prot::WRITE));
    vm.set(VmFlags::EXEC, prot.contains(Prot::EXEC));
    vm
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Steps 2 to 5, the lock let go of after the fourth; then populates, if that is asked for. Returns the address.
    pub(super) fn map_and_populate(self, request: Request<P>) -> Result<u64, MmapError> {
        let space = self.space;
        let (range, populate, replaced) = self.map(request)?;
        drop(self);
        replaced.retire();
        if populate {
            // Errors are not reported: the mapping stands, and the next access shows what is wrong.
            let _ = space.populate(range.clone());
        }
        Ok(range.start)
    }

    /// Steps 2 to 4. Returns the range, whether it wants populating, and what it replaced.
    fn map(&self, mut request: Request<P>) -> Result<(Range<u64>, bool, Unmapped<'s, P>), MmapError> {
        let space = self.space;
        if space.counters.counts().map_count > space.engine.config().max_map_count {
            return Err(MmapError::TooManyVmas);
        }
        let start = self.place(&request)?;
        let range = start..start + request.len;
        if request.flags.contains(MapFlags::FIXED_NOREPLACE)
            && self.next_slot(range.start).is_some_and(|slot| slot.range().start < range.end)
        {
            return Err(MmapError::Occupied);
        }
        request.vm_flags |= VmFlags::from_bits_retain(space.default_flags.load(Relaxed));
        self.check_lock(&request)?;
        self.settle_kind(&mut request, range.start)?;
        self.store_mapping(request, range)
    }

    /// Where the mapping goes.
    fn place(&self, request: &Request<P>) -> Result<u64, MmapError> {
        let &Request { addr, len, flags, .. } = request;
        if len > TASK_SIZE {
            return Err(MmapError::NoSpace);
        }
        if flags.contains(MapFlags::FIXED) {
            if addr > TASK_SIZE - len {
                return Err(MmapError::NoSpace);
            }
            if !addr.is_multiple_of(PAGE_SIZE) {
                return Err(MmapError::Invalid);
            }
            return if self.space.may_map_at(addr) { Ok(addr) } else { Err(MmapError::NotPermitted) };
        }
        // Shared memory is a file in the making.
        let private = matches!(request.object, Object::Anonymous) && flags.bits() & TYPE != SHARED;
        self.place_free(addr, len, private)
    }

    /// Where `len` bytes fit: at the hint, unless it is zero, or wherever there is room.
    /// Large private anonymous memory (`private`) goes where huge pages may start.
    pub(super) fn place_free(&self, hint: u64, len: u64, private: bool) -> Result<u64, MmapError> {
        if hint != 0 && self.hint_is_free(hint, len) {
            return Ok(hint);
        }
        let huge = hint == 0 && private && len.is_multiple_of(HUGE);
        self.find_gap(len, huge)
    }

    /// Whether nothing, stack gaps included, lies in the hinted range.
    pub(super) fn hint_is_free(&self, addr: u64, len: u64) -> bool {
        if addr > TASK_SIZE - len || addr < self.space.engine.config().mmap_min_addr {
            return false;
        }
        self.next_slot(addr).is_none_or(|slot| addr + len <= self.kept_from(&slot))
    }

    /// The highest gap below the mmap base, or else the lowest above a third of the address space. With `huge`, where a
    /// huge page may start, if there is room for one more than needed.
    pub(super) fn find_gap(&self, len: u64, huge: bool) -> Result<u64, MmapError> {
        if huge && let Some(at) = self.highest_gap(len + HUGE).or_else(|| self.lowest_gap(len + HUGE)) {
            return Ok((at + 1).next_multiple_of(HUGE));
        }
        self.highest_gap(len).or_else(|| self.lowest_gap(len)).ok_or(MmapError::NoSpace)
    }

    /// A gap is looked for as if stacks kept nothing free. If the one found lies below a stack that wants some of it, the
    /// search goes on below what it wants. So a stack right above something else takes nothing from what is below that.
    fn highest_gap(&self, len: u64) -> Option<u64> {
        let low = self.space.engine.config().mmap_min_addr.max(PAGE_SIZE);
        let mut high = self.space.mmap_base;
        loop {
            let at =
                self.gap(&GapRequest { len, align: PAGE_SIZE, low, high, direction: Direction::TopDown })?;
            match self.next_slot(at).map(|slot| self.kept_from(&slot)) {
                Some(kept) if kept < at + len => high = kept,
                _ => return Some(at),
            }
        }
    }

    /// Likewise, from below; beyond a stack that wants some of it.
    fn lowest_gap(&self, len: u64) -> Option<u64> {
        let mut low = (TASK_SIZE / 3).next_multiple_of(PAGE_SIZE);
        loop {
            let request =
                GapRequest { len, align: PAGE_SIZE, low, high: TASK_SIZE, direction: Direction::BottomUp };
            let at = self.gap(&request)?;
            match self.next_slot(at) {
                Some(slot) if self.kept_from(&slot) < at + len => low = slot.range().end,
                _ => return Some(at),
            }
        }
    }

    /// Rights and limits of locked memory.
    fn check_lock(&self, request: &Request<P>) -> Result<(), MmapError> {
        if request.flags.contains(MapFlags::LOCKED) && !self.space.may_mlock() {
            return Err(MmapError::NotPermitted);
        }
        let locked = request.vm_flags.contains(VmFlags::LOCKED);
        if locked && !self.space.may_lock_pages(request.len >> PAGE_SHIFT) {
            return Err(MmapError::LockLimit);
        }
        Ok(())
    }

    /// Checks that depend on what is mapped and how, and the flags that follow.
    fn settle_kind(&self, request: &mut Request<P>, start: u64) -> Result<(), MmapError> {
        match request.object.clone() {
            Object::File(file) => self.settle_file(request, &file)?,
            _ => self.settle_anonymous(request, start)?,
        }
        let private = !request.vm_flags.intersects(VmFlags::SHARED | VmFlags::NORESERVE);
        if request.flags.contains(MapFlags::NORESERVE) {
            request.vm_flags |= VmFlags::NORESERVE;
        } else if private && request.vm_flags.contains(VmFlags::WRITE) {
            request.vm_flags |= VmFlags::ACCOUNT;
        }
        Ok(())
    }

    fn settle_file(&self, request: &mut Request<P>, file: &File<P>) -> Result<(), MmapError> {
        /// Flags that MAP_SHARED_VALIDATE lets pass for an ordinary file.
        const KNOWN: MapFlags = MapFlags::SHARED_VALIDATE
            .union(MapFlags::FIXED)
            .union(MapFlags::ANONYMOUS)
            .union(MapFlags::DENYWRITE)
            .union(MapFlags::EXECUTABLE)
            .union(MapFlags::UNINITIALIZED)
            .union(MapFlags::GROWSDOWN)
            .union(MapFlags::LOCKED)
            .union(MapFlags::NORESERVE)
            .union(MapFlags::POPULATE)
            .union(MapFlags::NONBLOCK)
            .union(MapFlags::STACK)
            .union(MapFlags::HUGETLB);
        let access = file.access();
        if !file.fits(request.pgoff, request.len >> PAGE_SHIFT) {
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
        if access.noexec {
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
        let writing = Mapping::begin_writing(file.mapping(), &mut request.vm_flags);
        request.writing = writing.map_err(|_| MmapError::NotPermitted)?;
        Ok(())
    }

    fn settle_anonymous(&self, request: &mut Request<P>, start: u64) -> Result<(), MmapError> {
        match request.flags.bits() & TYPE {
            SHARED => {
                if request.vm_flags.contains(VmFlags::GROWSDOWN) {
                    return Err(MmapError::Invalid);
                }
                request.vm_flags |= VmFlags::SHARED | VmFlags::MAYSHARE;
                request.pgoff = 0;
                request.object = Object::File(File::shared_memory(&self.space.engine, request.len)?);
            }
            PRIVATE => request.pgoff = start >> PAGE_SHIFT,
            DROPPABLE => {
                if request.flags.contains(MapFlags::LOCKED) || request.vm_flags.contains(VmFlags::GROWSDOWN) {
                    return Err(MmapError::Invalid);
                }
                request.vm_flags |=
                    VmFlags::DROPPABLE | VmFlags::NORESERVE | VmFlags::WIPEONFORK | VmFlags::DONTDUMP;
                request.pgoff = start >> PAGE_SHIFT;
            }
            _ => return Err(MmapError::Invalid),
        }
        Ok(())
    }

    /// The limits, what is in the way, and the store.
    fn store_mapping(
        &self,
        request: Request<P>,
        range: Range<u64>,
    ) -> Result<(Range<u64>, bool, Unmapped<'s, P>), MmapError> {
        let (space, pages) = (self.space, request.len >> PAGE_SHIFT);
        let gathered = match request.flags.contains(MapFlags::FIXED) {
            true => self.gather(&Decoded::trusted(range.clone()))?,
            false => self.gather_nothing(range.clone()),
        };
        if !space.may_expand(request.vm_flags, pages, gathered.replaced()) {
            return Err(MmapError::Limit);
        }
        if request.vm_flags.contains(VmFlags::ACCOUNT) && pages > space.engine.config().commit_pages {
            return Err(MmapError::Limit);
        }
        let attrs = Attrs {
            flags: request.vm_flags,
            object: &request.object,
            pgoff: request.pgoff,
            anon: Family::NONE,
            policy: 0,
            uffd: None,
        };
        let new = self.prepare_new(range.clone(), &attrs)?;
        // Nothing can fail from here on. The old pages go before the new VMA comes: it could merge with a neighbour that is
        // not locked, and its first fault must find the range empty.
        gathered.zap_in_place();
        let vma: &Vma<P> = self.insert(range.clone(), new, &attrs);
        let replaced = gathered.commit_replaced();
        space.counters.account(self, request.vm_flags, pages as i64);
        let locked = request.vm_flags.contains(VmFlags::LOCKED);
        if locked && (request.vm_flags.contains(VmFlags::DROPPABLE) || request.object.is_direct()) {
            // What mlockall wants of new mappings, these cannot give. Until here the flags kept it from joining those that
            // were mapped before, as on Linux; and it is populated all the same.
            self.lock_vma(vma).set_flags(vma.flags() - VmFlags::LOCK_MASK);
        } else if locked {
            space.counters.count_locked(self, pages as i64);
        }
        let populate = locked
            || (request.flags.contains(MapFlags::POPULATE) && !request.flags.contains(MapFlags::NONBLOCK));
        Ok((range, populate, replaced))
    }
}
