//! The probes of a file: a sorted list that readers find by RCU and that writers replace as a whole.
//!
//! | change | made under | read under |
//! | --- | --- | --- |
//! | the list is replaced | the file's content lock for writing | an RCU guard, or the content lock for writing |
//! | `leaving` is set, and never cleared | the same | the same |
//!
//! If a file has no probes, a reader loads only one word, and no task writes this word.
//!
//! The registry is a field of a file's home (`rmap/tree/root.rs`). `mod.rs` changes the registry, and faults
//! read the registry through `wants` and `read`. This file is a layer below files, so it does not use VMAs or
//! page tables. A list that readers may use is never changed, except for `leaving`; a change copies the list.
//! The tests are `probes` (`engine/freehold/tests`, `shuttle_engine`).
#![expect(unsafe_code, reason = "readers find the list without a lock")]

use crate::{PAGE_SIZE, error::ProbeError, platform::Platform, wait::grace_period};
use crate::{Pfn, vma::flags::VmFlags};
use allocator_api2::{boxed::Box, vec::Vec};
use arrayvec::ArrayVec;
use core::ptr::{NonNull, null_mut};
use freehold_sync::{
    RwSemWriteGuard,
    atomic::{AtomicBool, Ordering::Relaxed},
    publish::Published,
};
use freehold_vmspace::{PageIndex, PageRange};

/// Maximum number of bytes of a breakpoint, and of the original instruction that is kept.
pub(crate) const MAX_BYTES: usize = 16;

/// Returns true if pages of a file VMA with these flags may contain breakpoints.
pub(crate) fn may_show(flags: VmFlags) -> bool {
    flags & (VmFlags::MAYEXEC | VmFlags::MAYSHARE | VmFlags::HUGETLB) == VmFlags::MAYEXEC
}

/// Returns true if breakpoints are inserted into pages of a VMA with these flags: the pages may contain
/// breakpoints and are not writable.
pub(crate) fn are_put(flags: VmFlags) -> bool {
    cfg!(feature = "uprobe") && may_show(flags) && !flags.contains(VmFlags::WRITE)
}

/// A probe at one place of a file. Only `leaving` changes while readers can find the list that contains the
/// probe.
pub(crate) struct Probe {
    /// Offset in the file, in bytes.
    offset: u64,
    /// The bytes that replace the original bytes.
    breakpoint: ArrayVec<u8, MAX_BYTES>,
    /// Bytes that the file contained at `offset` when the probe was added. At least as long as the
    /// breakpoint.
    pub(crate) original: ArrayVec<u8, MAX_BYTES>,
    /// True if the probe is being removed.
    pub(crate) leaving: AtomicBool,
}

impl Probe {
    /// Creates a probe. `breakpoint` and `original` have at most [`MAX_BYTES`] bytes.
    pub(crate) fn new(offset: u64, breakpoint: &[u8], original: &[u8]) -> Self {
        Probe {
            offset,
            breakpoint: breakpoint.iter().copied().collect(),
            original: original.iter().copied().collect(),
            leaving: AtomicBool::new(false),
        }
    }

    /// Returns a copy for a new list.
    fn copied(&self) -> Self {
        Probe {
            offset: self.offset,
            breakpoint: self.breakpoint.clone(),
            original: self.original.clone(),
            // Relaxed: the caller holds the content lock, under which `leaving` is written.
            leaving: AtomicBool::new(self.leaving.load(Relaxed)),
        }
    }

    /// Returns the offset of the probe in its page, in bytes.
    pub(crate) fn start(&self) -> usize {
        (self.offset % PAGE_SIZE) as usize
    }

    /// Returns true if the breakpoint covers the byte at offset `at` of its page.
    pub(crate) fn covers(&self, at: usize) -> bool {
        (self.start()..self.start() + self.breakpoint.len()).contains(&at)
    }

    /// Returns true if the probe is being removed: its breakpoint is no longer inserted.
    pub(crate) fn is_leaving(&self) -> bool {
        // Relaxed: an old value may be used until a grace period has passed.
        self.leaving.load(Relaxed)
    }

    /// Returns the bytes of the breakpoint.
    pub(crate) fn breakpoint(&self) -> &[u8] {
        &self.breakpoint
    }

    /// Returns the original bytes that the breakpoint replaces.
    pub(crate) fn replaced(&self) -> &[u8] {
        &self.original[..self.breakpoint.len()]
    }
}

/// Probes in ascending order of their offsets. No two probes overlap. The list is not empty.
pub(crate) struct List(Vec<Probe>);

/// An owned list, or `None` if there are no probes.
pub(crate) type Owned = Option<Box<List>>;

impl List {
    /// Returns the index in the list of the first probe at or after `offset`.
    fn first_from(&self, offset: u64) -> usize {
        self.0.partition_point(|probe| probe.offset < offset)
    }

    /// Returns the probe that begins at `offset`.
    pub(crate) fn at(&self, offset: u64) -> Option<&Probe> {
        self.0.get(self.first_from(offset)).filter(|probe| probe.offset == offset)
    }

    /// Returns the probes on a page.
    pub(crate) fn on_page(&self, index: PageIndex) -> &[Probe] {
        // The page belongs to a file, so its end does not overflow.
        &self.0[self.first_from(index.byte())..self.first_from((index + 1).byte())]
    }

    /// Returns the first page from `index` on that has probes.
    pub(crate) fn next_page(&self, index: PageIndex) -> Option<PageIndex> {
        let first = self.first_from(index.get().saturating_mul(PAGE_SIZE));
        self.0.get(first).map(|probe| PageIndex::of_byte(probe.offset))
    }

    /// Returns true if a page has probes that are not leaving.
    pub(crate) fn wants(&self, index: PageIndex) -> bool {
        self.on_page(index).iter().any(|probe| !probe.is_leaving())
    }

    /// Makes a list of `len` probes, or `None` if `len` is 0.
    fn copy(probes: impl Iterator<Item = Probe>, len: usize) -> Result<Owned, ProbeError> {
        if len == 0 {
            return Ok(None);
        }
        let mut list = Vec::new();
        list.try_reserve_exact(len).map_err(|_| ProbeError::OutOfMemory)?;
        list.extend(probes);
        Ok(Some(Box::try_new(List(list)).map_err(|_| ProbeError::OutOfMemory)?))
    }

    /// Returns a copy of `list` that also contains `new`.
    pub(crate) fn with(list: Option<&List>, new: Probe) -> Result<Box<List>, ProbeError> {
        let old = list.map_or(&[][..], |list| &list.0);
        let at = list.map_or(0, |list| list.first_from(new.offset));
        let end = |probe: &Probe| probe.offset + probe.breakpoint.len() as u64;
        let (before, behind) = old.split_at(at);
        let meets = before.last().is_some_and(|probe| end(probe) > new.offset)
            || behind.first().is_some_and(|probe| end(&new) > probe.offset);
        if meets {
            return Err(ProbeError::Taken);
        }
        let all = before.iter().map(Probe::copied).chain([new]).chain(behind.iter().map(Probe::copied));
        List::copy(all, old.len() + 1)?.ok_or(ProbeError::OutOfMemory)
    }

    /// Returns a copy of `list` without the probe at `offset`.
    pub(crate) fn without(list: Option<&List>, offset: u64) -> Result<Owned, ProbeError> {
        let list = list.filter(|list| list.at(offset).is_some()).ok_or(ProbeError::NotThere)?;
        let rest = list.0.iter().filter(|probe| probe.offset != offset).map(Probe::copied);
        List::copy(rest, list.0.len() - 1)
    }
}

/// A file's pointer to its list of probes.
///
/// # Invariants
///
/// The pointer is null or owns a boxed list. A list that was replaced is freed after a grace period. The last
/// list is freed with the registry.
pub(crate) struct Registry {
    list: Published<List>,
}

impl Registry {
    pub fn new() -> Self {
        Registry { list: Published::new() }
    }

    /// Returns the list, if there are probes.
    pub fn read<'r, P: Platform>(&'r self, _: &'r P::RcuGuard) -> Option<&'r List> {
        let list = NonNull::new(self.list.get())?;
        // SAFETY: by the type's invariant the list is freed only after a grace period, which cannot end while
        // the guard of `'r` exists.
        Some(unsafe { list.as_ref() })
    }

    /// Returns true if the page has probes that are not leaving. The result is a hint: a fault checks again
    /// within the guard in which it maps the page.
    pub fn wants<P: Platform>(&self, index: PageIndex) -> bool {
        !self.list.is_null() && self.read::<P>(&P::rcu_read()).is_some_and(|list| list.wants(index))
    }

    /// Returns true if any of these pages has probes. The result is a hint.
    pub fn any<P: Platform>(&self, range: PageRange) -> bool {
        cfg!(feature = "uprobe")
            && !self.list.is_null()
            && self
                .read::<P>(&P::rcu_read())
                .and_then(|list| list.next_page(range.start))
                .is_some_and(|page| page < range.end)
    }

    /// Returns the list to a caller that holds the content lock of the registry's file for writing, under
    /// which the list is replaced.
    pub(crate) fn locked<'l, P: Platform>(&'l self, _: &'l RwSemWriteGuard<'_, P>) -> Option<&'l List> {
        let list = NonNull::new(self.list.get())?;
        // SAFETY: by the type's invariant the pointer owns a live list. `replace` borrows the guard mutably,
        // so the list is not replaced while this borrow lives.
        Some(unsafe { list.as_ref() })
    }

    /// Publishes `new` to readers. Returns the old list after a grace period, when no reader uses it any
    /// more.
    pub(crate) fn replace<P: Platform>(&self, _: &mut RwSemWriteGuard<'_, P>, new: Owned) -> Owned {
        let new = new.map_or(null_mut(), |list| Box::leak(list));
        let old = self.list.replace(new);
        grace_period::<P>();
        // SAFETY: by the type's invariant the pointer came from a box. The old list is not reachable any
        // more, and the grace period has ended all readers that had found it.
        NonNull::new(old).map(|old| unsafe { Box::from_raw(old.as_ptr()) })
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let list = NonNull::new(self.list.get());
        // SAFETY: by the type's invariant the pointer came from a box, and no reader can exist any more.
        drop(list.map(|list| unsafe { Box::from_raw(list.as_ptr()) }));
    }
}

impl List {
    /// Writes the breakpoints of page `index` into `copy`, which is not yet visible to any other task.
    pub(crate) fn put<P: Platform>(&self, platform: &P, index: PageIndex, copy: Pfn) {
        self.on_page(index).iter().filter(|probe| !probe.is_leaving()).for_each(|probe| {
            if probe.shows(platform, copy, probe.replaced()) {
                platform.write_frame(copy, probe.start(), probe.breakpoint());
            }
        });
    }
}

impl Probe {
    /// Returns true if `frame` contains the bytes `what` at the place of the probe. `what` is not longer than
    /// a breakpoint.
    pub(crate) fn shows<P: Platform>(&self, platform: &P, frame: Pfn, what: &[u8]) -> bool {
        let mut bytes = [0; MAX_BYTES];
        let bytes = &mut bytes[..what.len()];
        platform.read_frame(frame, self.start(), bytes);
        bytes == what
    }
}
