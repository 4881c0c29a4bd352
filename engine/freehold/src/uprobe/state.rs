//! Which places of a file have probes: a sorted list that readers find by RCU, and that is replaced whole.
//!
//! | | under | read under |
//! | --- | --- | --- |
//! | the list is replaced | the file's content lock for writing | an RCU guard, or the content lock for writing |
//! | `leaving` is set | the same; never taken back | the same |
//!
//! A file without probes costs a reader one load of a word that nobody writes.
#![expect(unsafe_code, reason = "a list that its readers find without a lock")]

use crate::{PAGE_SIZE, error::ProbeError, platform::Platform, wait::grace_period};
use crate::{Pfn, vma::flags::VmFlags};
use allocator_api2::{boxed::Box, vec::Vec};
use arrayvec::ArrayVec;
use core::ptr::{NonNull, null_mut};
use freehold_sync::{
    RwSemWriteGuard,
    atomic::{
        AtomicBool, AtomicPtr,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};
use freehold_vmspace::{PageIndex, PageRange};

/// Most bytes of a breakpoint, and of the instruction that is kept.
pub(crate) const MAX_BYTES: usize = 16;

/// Whether pages of a VMA that maps a file may show breakpoints at all.
pub(crate) fn may_show(flags: VmFlags) -> bool {
    flags & (VmFlags::MAYEXEC | VmFlags::MAYSHARE | VmFlags::HUGETLB) == VmFlags::MAYEXEC
}

/// Whether breakpoints are put there: they may be shown, and nobody may store.
pub(crate) fn are_put(flags: VmFlags) -> bool {
    may_show(flags) && !flags.contains(VmFlags::WRITE)
}

/// One place of a file. Nothing but `leaving` changes while it is in a list that can be found.
pub(crate) struct Probe {
    /// In the file, in bytes.
    offset: u64,
    breakpoint: ArrayVec<u8, MAX_BYTES>,
    /// What the file had there; at least as long as the breakpoint.
    pub(crate) original: ArrayVec<u8, MAX_BYTES>,
    /// It is being taken away.
    pub(crate) leaving: AtomicBool,
}

impl Probe {
    /// Both parts are no longer than [`MAX_BYTES`].
    pub(crate) fn new(offset: u64, breakpoint: &[u8], original: &[u8]) -> Self {
        Probe {
            offset,
            breakpoint: breakpoint.iter().copied().collect(),
            original: original.iter().copied().collect(),
            leaving: AtomicBool::new(false),
        }
    }

    fn copied(&self) -> Self {
        Probe {
            offset: self.offset,
            breakpoint: self.breakpoint.clone(),
            original: self.original.clone(),
            // Relaxed: under the lock under which it is written.
            leaving: AtomicBool::new(self.leaving.load(Relaxed)),
        }
    }

    /// Where it begins in its page.
    pub(crate) fn start(&self) -> usize {
        (self.offset % PAGE_SIZE) as usize
    }

    /// Whether the byte `at` of its page is covered.
    pub(crate) fn covers(&self, at: usize) -> bool {
        (self.start()..self.start() + self.breakpoint.len()).contains(&at)
    }

    pub(crate) fn is_leaving(&self) -> bool {
        // Relaxed: an old answer is good until a grace period has passed.
        self.leaving.load(Relaxed)
    }

    pub(crate) fn breakpoint(&self) -> &[u8] {
        &self.breakpoint
    }

    /// What stood where the breakpoint is.
    pub(crate) fn replaced(&self) -> &[u8] {
        &self.original[..self.breakpoint.len()]
    }
}

/// Probes by their offsets; no two overlap; not empty.
pub(crate) struct List(Vec<Probe>);

/// A list to be found, or none.
pub(crate) type Owned = Option<Box<List>>;

impl List {
    fn first_from(&self, offset: u64) -> usize {
        self.0.partition_point(|probe| probe.offset < offset)
    }

    /// The probe that begins there.
    pub(crate) fn at(&self, offset: u64) -> Option<&Probe> {
        self.0.get(self.first_from(offset)).filter(|probe| probe.offset == offset)
    }

    /// The probes on a page.
    pub(crate) fn on_page(&self, index: PageIndex) -> &[Probe] {
        // A page of a file; its end does not overflow.
        &self.0[self.first_from(index.byte())..self.first_from((index + 1).byte())]
    }

    /// The first page from `index` on that has probes.
    pub(crate) fn next_page(&self, index: PageIndex) -> Option<PageIndex> {
        let first = self.first_from(index.get().saturating_mul(PAGE_SIZE));
        self.0.get(first).map(|probe| PageIndex::of_byte(probe.offset))
    }

    /// Whether a page has probes that are to be shown.
    pub(crate) fn wants(&self, index: PageIndex) -> bool {
        self.on_page(index).iter().any(|probe| !probe.is_leaving())
    }

    fn copy(probes: impl Iterator<Item = Probe>, len: usize) -> Result<Owned, ProbeError> {
        if len == 0 {
            return Ok(None);
        }
        let mut list = Vec::new();
        list.try_reserve_exact(len).map_err(|_| ProbeError::OutOfMemory)?;
        list.extend(probes);
        Ok(Some(Box::try_new(List(list)).map_err(|_| ProbeError::OutOfMemory)?))
    }

    /// A copy of `list` and one probe more.
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

    /// A copy of `list` without the probe at `offset`.
    pub(crate) fn without(list: Option<&List>, offset: u64) -> Result<Owned, ProbeError> {
        let list = list.filter(|list| list.at(offset).is_some()).ok_or(ProbeError::NotThere)?;
        let rest = list.0.iter().filter(|probe| probe.offset != offset).map(Probe::copied);
        List::copy(rest, list.0.len() - 1)
    }
}

/// Where a file's list is found.
///
/// # Invariants
///
/// The pointer is null, or came from a box that nobody else owns; a list that was there is freed a grace
/// period after it left, or with the registry.
pub(crate) struct Registry {
    list: AtomicPtr<List>,
}

impl Registry {
    pub fn new() -> Self {
        Registry { list: AtomicPtr::new(null_mut()) }
    }

    /// The list, if there are probes.
    pub fn read<'r, P: Platform>(&'r self, _: &'r P::RcuGuard) -> Option<&'r List> {
        // Acquire pairs with the release in `replace`: the list is seen as it was made.
        let list = NonNull::new(self.list.load(Acquire))?;
        // SAFETY: by the invariant it stays as long as the guard.
        Some(unsafe { list.as_ref() })
    }

    /// Whether the page has probes that are to be shown: a hint, for a fault that looks again within the
    /// guard in which it maps the page.
    pub fn wants<P: Platform>(&self, index: PageIndex) -> bool {
        // Relaxed: a hint.
        !self.list.load(Relaxed).is_null()
            && self.read::<P>(&P::rcu_read()).is_some_and(|list| list.wants(index))
    }

    /// Whether there are probes on any of these pages. A hint.
    pub fn any<P: Platform>(&self, range: PageRange) -> bool {
        // Relaxed: a hint.
        !self.list.load(Relaxed).is_null()
            && self
                .read::<P>(&P::rcu_read())
                .and_then(|list| list.next_page(range.start))
                .is_some_and(|page| page < range.end)
    }

    /// The list, for a caller that holds the lock under which it is replaced: the content lock of the
    /// registry's file.
    pub(crate) fn locked<'l, P: Platform>(&'l self, _: &'l RwSemWriteGuard<'_, P>) -> Option<&'l List> {
        // Relaxed: written under the lock.
        let list = NonNull::new(self.list.load(Relaxed))?;
        // SAFETY: by the invariant; replacing it takes the guard for itself, so nobody does as long as this
        // is borrowed.
        Some(unsafe { list.as_ref() })
    }

    /// Makes readers find `new`. Returns what they found before and do not any more: a grace period has
    /// passed.
    pub(crate) fn replace<P: Platform>(&self, _: &mut RwSemWriteGuard<'_, P>, new: Owned) -> Owned {
        let new = new.map_or(null_mut(), |list| Box::leak(list));
        // Release pairs with the acquire in `read`. Acquire: what is found was made under this lock before.
        let old = self.list.swap(new, AcqRel);
        grace_period::<P>();
        // SAFETY: by the invariant it came from such a box; it cannot be found since, and readers that had
        // found it are done.
        NonNull::new(old).map(|old| unsafe { Box::from_raw(old.as_ptr()) })
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // Relaxed: the last owner is alone with it.
        let list = NonNull::new(self.list.load(Relaxed));
        // SAFETY: by the invariant, and nobody can look any more.
        drop(list.map(|list| unsafe { Box::from_raw(list.as_ptr()) }));
    }
}

impl List {
    /// Puts the breakpoints of the page `index` into a copy of it that nobody can see yet.
    pub(crate) fn put<P: Platform>(&self, platform: &P, index: PageIndex, copy: Pfn) {
        self.on_page(index).iter().filter(|probe| !probe.is_leaving()).for_each(|probe| {
            if probe.shows(platform, copy, probe.replaced()) {
                platform.write_frame(copy, probe.start(), probe.breakpoint());
            }
        });
    }
}

impl Probe {
    /// Whether these bytes, as many as the breakpoint has, are at its place.
    pub(crate) fn shows<P: Platform>(&self, platform: &P, frame: Pfn, what: &[u8]) -> bool {
        let mut bytes = [0; MAX_BYTES];
        let bytes = &mut bytes[..what.len()];
        platform.read_frame(frame, self.start(), bytes);
        bytes == what
    }
}
