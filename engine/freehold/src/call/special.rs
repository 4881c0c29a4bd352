//! Special mappings without a file: how exec gives a program its vdso, and the data that goes with it.

use crate::{
    PAGE_SIZE,
    counted::Counted,
    error::MmapError,
    file::{Object, Special},
    platform::Platform,
    space::{AddressSpace, limits::ReplacedPages, locking::WriteGuard, placement_request::PlacementRequest},
    vma::{flags::VmFlags, merge::Attrs},
};
use arrayvec::ArrayVec;
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::{PageCount, PageIndex, UserRange};

/// Most parts that are installed together.
const MAX_PARTS: usize = 4;

/// What a special mapping may be: rights, and properties that say nothing of where its pages come from. A
/// lock is allowed, and taken away.
const ALLOWED: VmFlags = VmFlags::ACCESS
    .union(VmFlags::SPECIAL)
    .union(VmFlags::LOCK_MASK)
    .union(VmFlags::MAYREAD)
    .union(VmFlags::MAYWRITE)
    .union(VmFlags::MAYEXEC)
    .union(VmFlags::SHARED)
    .union(VmFlags::MAYSHARE)
    .union(VmFlags::DONTCOPY)
    .union(VmFlags::DONTDUMP)
    .union(VmFlags::SEQ_READ)
    .union(VmFlags::RAND_READ)
    .union(VmFlags::NORESERVE)
    .union(VmFlags::ACCOUNT)
    .union(VmFlags::NOHUGEPAGE)
    .union(VmFlags::SEALED)
    .union(VmFlags::SOFTDIRTY);

/// One VMA of several that are installed side by side.
pub struct SpecialPart<'a, P: Platform> {
    /// Bytes; rounded up to whole pages.
    pub len: u64,
    /// Rights and properties. It never merges or grows, whatever they say, and is never locked into memory,
    /// since it is never out of it.
    pub flags: VmFlags,
    /// What it maps, from its first page on.
    pub special: &'a Counted<Special<P>>,
}

impl<P: Platform> AddressSpace<P> {
    /// Maps `len` bytes of `special`, from its first page on, and returns where; see
    /// [`install_specials`](Self::install_specials).
    ///
    /// # Errors
    ///
    /// As `install_specials`.
    ///
    /// # Locks
    ///
    /// As `install_specials`.
    pub fn install_special(
        &self,
        hint: u64,
        len: u64,
        flags: VmFlags,
        special: &Counted<Special<P>>,
    ) -> Result<u64, MmapError> {
        self.install_specials(hint, &[SpecialPart { len, flags, special }])
    }

    /// Maps up to four specials side by side, each a VMA, all or none; returns where the first begins: at
    /// `hint` if all of them fit there, else where [`mmap`](Self::mmap) would put them. The vdso and its
    /// data are two such parts.
    ///
    /// # Errors
    ///
    /// As `mmap`, for a range or a limit that does not allow it, or a special of another engine; nothing was
    /// changed. `Invalid`: no part, an empty one, more than four, an unaligned hint, or a property that
    /// only other memory can have.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably.
    pub fn install_specials(&self, hint: u64, parts: &[SpecialPart<'_, P>]) -> Result<u64, MmapError> {
        if parts.is_empty() || parts.len() > MAX_PARTS || !hint.is_multiple_of(PAGE_SIZE) {
            return Err(MmapError::Invalid);
        }
        let mut whole = 0u64;
        let mut lens = ArrayVec::<u64, MAX_PARTS>::new();
        for part in parts {
            if part.len == 0 || !ALLOWED.contains(part.flags) {
                return Err(MmapError::Invalid);
            }
            if !self.engine.owns(part.special.files()) {
                return Err(MmapError::OtherEngine);
            }
            let len = part.len.checked_next_multiple_of(PAGE_SIZE).ok_or(MmapError::NoSpace)?;
            whole = whole.checked_add(len).filter(|&all| all <= Self::TASK_SIZE).ok_or(MmapError::NoSpace)?;
            lens.push(len);
        }
        let guard = self.write_killable()?;
        // Each VMA but the last one counts when the next one comes.
        if !guard.may_have_vmas(parts.len() as u64 - 1) {
            return Err(MmapError::TooManyVmas);
        }
        let start = guard.find_placement(&PlacementRequest::new(hint, whole))?;
        let mut at = start;
        let ranges: ArrayVec<UserRange, MAX_PARTS> = lens
            .into_iter()
            .map(|len| {
                at += len;
                UserRange::new(at - len, at)
            })
            .collect();
        guard.insert_specials(&ranges, parts)?;
        Ok(start)
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Stores the parts in ranges that are free: everything that may fail for all of them before the first.
    fn insert_specials(&self, ranges: &[UserRange], parts: &[SpecialPart<'_, P>]) -> Result<(), MmapError> {
        let defaults = VmFlags::from_bits_retain(self.space.default_flags.load(Relaxed))
            - VmFlags::LOCK_MASK
            - VmFlags::MERGEABLE;
        let flags = |part: &SpecialPart<'_, P>| {
            (part.flags - VmFlags::LOCK_MASK) | defaults | VmFlags::DONTEXPAND | VmFlags::SOFTDIRTY
        };
        let (mut pages, mut data, mut committed) = (PageCount::ZERO, PageCount::ZERO, PageCount::ZERO);
        for (range, part) in ranges.iter().zip(parts) {
            pages += range.pages();
            if flags(part).is_data() {
                data += range.pages();
            }
            if flags(part).contains(VmFlags::ACCOUNT) {
                committed += range.pages();
            }
        }
        let fits = |flags, pages| self.may_expand(flags, pages, ReplacedPages::default());
        if !fits(VmFlags::empty(), pages) || (data > PageCount::ZERO && !fits(VmFlags::WRITE, data)) {
            return Err(MmapError::Limit);
        }
        let charge = self.space.engine.committed().charge(committed).map_err(|_| MmapError::Limit)?;
        self.reserve(parts.len())?;
        let mut fresh = ArrayVec::<_, MAX_PARTS>::new();
        for (range, part) in ranges.iter().zip(parts) {
            let object = Object::Special(part.special.clone());
            let attrs = Attrs::new(flags(part), &object, PageIndex::ZERO);
            fresh.push(self.alloc(*range, &attrs)?);
        }
        // Nothing can fail any more.
        charge.keep();
        for vma in fresh {
            let vma = self.insert_fresh(vma);
            self.space.counters.count_mapped(self, vma.flags(), vma.pages());
        }
        Ok(())
    }
}
