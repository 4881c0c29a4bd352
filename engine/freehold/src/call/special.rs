//! Installs special mappings that no file descriptor refers to, such as the vdso and its data, which exec
//! maps.
//!
//! Several parts are installed in one step under the mmap lock for writing: all of them, or none. Everything
//! that can fail comes before the first insertion. `file/kinds/special.rs` has the object that such a VMA
//! maps, and the hooks. `fault/special.rs` handles faults in such a VMA. Special mappings of device files are
//! created by mmap (`mmap/driver.rs`). A flag that an embedder may pass must be in `ALLOWED`.
//! `tests/special/vdso.rs` has the tests, and `special_mapping_refuses_flags_of_other_memory` in
//! `tests/every_call/edges.rs` tests the refused flags.

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

/// Maximum number of parts that are installed together.
const MAX_PARTS: usize = 4;

/// Flags that a special mapping may have: access rights, and properties that do not depend on the origin of
/// its pages. Lock flags are accepted and ignored.
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

/// One VMA of several that are installed at adjacent addresses.
pub struct SpecialPart<'a, P: Platform> {
    /// Length in bytes, rounded up to whole pages.
    pub len: u64,
    /// Access rights and properties. With any flags, the VMA never merges or grows. The VMA never becomes
    /// locked either, because its pages are always in memory.
    pub flags: VmFlags,
    /// The special mapping, mapped from its first page on.
    pub special: &'a Counted<Special<P>>,
}

impl<P: Platform> AddressSpace<P> {
    /// Maps `len` bytes of `special` from its first page on. Returns the address. See
    /// [`install_specials`](Self::install_specials).
    ///
    /// # Errors
    ///
    /// The errors of [`install_specials`](Self::install_specials).
    ///
    /// # Locks
    ///
    /// The locks of [`install_specials`](Self::install_specials).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{Frames, Special}, space::*, vma::flags::VmFlags};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// // A kernel passes the frames of the vdso instead of an empty list.
    /// let vdso = Special::new(&engine, Frames::new("[vdso]", &[]).unwrap()).unwrap();
    /// let at = space.install_special(0, PAGE_SIZE, VmFlags::READ | VmFlags::EXEC, &vdso).unwrap();
    /// assert_eq!(space.maps(at).next().unwrap().name.as_str(), "[vdso]");
    /// ```
    pub fn install_special(
        &self,
        hint: u64,
        len: u64,
        flags: VmFlags,
        special: &Counted<Special<P>>,
    ) -> Result<u64, MmapError> {
        self.install_specials(hint, &[SpecialPart { len, flags, special }])
    }

    /// Maps up to four special mappings at adjacent addresses, each as a VMA. Maps either all of them or
    /// none. Returns the address of the first one: `hint` if all of them fit there, otherwise an address that
    /// is chosen as in [`mmap`](Self::mmap). The vdso and its data are two such parts.
    ///
    /// # Errors
    ///
    /// The errors of [`mmap`](Self::mmap) for the range, the limits, and special mappings of another engine.
    /// Fails with `Invalid` if there are no parts or more than four parts, or if a part is empty. Also fails
    /// with `Invalid` if the hint is not page-aligned or a flag is not allowed for special mappings. Nothing
    /// is changed after an error.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::SpecialPart, file::{Frames, Special}, space::*, vma::flags::VmFlags};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let [vvar, vdso] = ["[vvar]", "[vdso]"].map(|name| Frames::new(name, &[]).unwrap());
    /// let [vvar, vdso] = [vvar, vdso].map(|frames| Special::new(&engine, frames).unwrap());
    /// let part = |special| SpecialPart { len: PAGE_SIZE, flags: VmFlags::READ, special };
    /// let at = space.install_specials(0, &[part(&vvar), part(&vdso)]).unwrap();
    /// let second = space.maps(at + PAGE_SIZE).next().unwrap();
    /// assert_eq!((second.start, second.name.as_str()), (at + PAGE_SIZE, "[vdso]"));
    /// ```
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
        // As on Linux, the last VMA may exceed the limit by one: when it is inserted, only the VMAs before it
        // count.
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
    /// Inserts the parts into free ranges. All steps that may fail precede the first insertion.
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
        // No step can fail from here on.
        charge.keep();
        for vma in fresh {
            let vma = self.insert_fresh(vma);
            self.space.counters.count_mapped(self, vma.flags(), vma.pages());
        }
        Ok(())
    }
}
