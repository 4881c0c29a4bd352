//! Mappings without an MMU, and the set of mappings of one address space, ordered by address.
//!
//! An [`Area`] is the counterpart of a VMA, and [`Areas`] is the counterpart of the tree of VMAs. The lock of
//! a space (the field `areas` of [`NoMmuSpace`](super::NoMmuSpace)) guards the tree and its mappings: lookups
//! hold the lock for reading, and changes hold it for writing. The frames of a mapping belong to its region
//! (`region.rs`), which other mappings may use too. Dropping an area can free its region, so an area is
//! dropped only after the space's lock is released.
//!
//! `NoMmuSpace::check`, which tests call, checks the counters and that each mapping lies in its region.
#![expect(unsafe_code, reason = "mappings are linked by pointers")]

use super::region::RegionUse;
use crate::{PAGE_SHIFT, counted::Counted, file::File, platform::Platform, space::Prot};
use allocator_api2::boxed::Box;
use core::{marker::PhantomData, mem::offset_of, ops::Range, ptr::NonNull};
use freehold_range::{IntervalAdapter, IntervalLink, IntervalTree};

/// One mapping. The fields do not change while the mapping is in a tree.
pub(super) struct Area<P: Platform> {
    /// Link in the tree of the space. Guarded by the space's lock.
    link: IntervalLink,
    /// Page-aligned addresses of the mapping.
    pub range: Range<u64>,
    /// Access rights, which are only recorded.
    pub prot: Prot,
    /// True for a shared mapping of a file.
    pub shared: bool,
    /// The mapped file, or `None` for anonymous memory.
    pub file: Option<Counted<File<P>>>,
    /// Offset of the mapping in the file, in bytes.
    pub offset: u64,
    /// The frames of the mapping.
    pub region: RegionUse<P>,
}

impl<P: Platform> Area<P> {
    pub fn new(region: RegionUse<P>, range: Range<u64>, prot: Prot, shared: bool) -> Self {
        Area { link: IntervalLink::new(), range, prot, shared, file: None, offset: 0, region }
    }
}

/// The mappings of an address space. Several mappings of one file may have the same addresses.
///
/// # Invariants
///
/// The tree owns its elements. Each element of the tree was allocated as a `Box`.
pub(super) struct Areas<P: Platform> {
    tree: IntervalTree<ByLink<P>>,
    count: u64,
    pages: u64,
    owned: PhantomData<Box<Area<P>>>,
}

impl<P: Platform> Areas<P> {
    pub const fn new() -> Self {
        Areas { tree: IntervalTree::new(), count: 0, pages: 0, owned: PhantomData }
    }

    /// Returns the number of mappings.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of pages in all mappings.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Inserts a mapping. Allocates nothing.
    pub fn insert(&mut self, area: Box<Area<P>>) {
        let numbers = numbers(&area.range);
        self.count += 1;
        self.pages += numbers.end - numbers.start;
        let area = NonNull::from(Box::leak(area));
        // SAFETY: the area stays in its box until `take` removes it from the tree.
        unsafe { self.tree.insert(area, numbers.start, numbers.end - 1) };
    }

    /// Removes the first mapping that overlaps `range` and satisfies `wanted`. The range must not be empty.
    pub fn take(&mut self, range: &Range<u64>, wanted: impl Fn(&Area<P>) -> bool) -> Option<Box<Area<P>>> {
        // SAFETY: by the type's invariant, areas in the tree are live.
        let area = self.meeting(range).find(|area| wanted(unsafe { area.as_ref() }))?;
        // SAFETY: the area was found in the tree, which `&mut self` keeps unchanged.
        unsafe { self.tree.remove(area) };
        // SAFETY: `insert` leaked the box, and the area was removed from the tree, which held the only
        // pointer.
        let area = unsafe { Box::from_raw(area.as_ptr()) };
        self.count -= 1;
        self.pages -= (area.range.end - area.range.start) >> PAGE_SHIFT;
        Some(area)
    }

    /// Returns the mappings that overlap `range`, in ascending order. The range must not be empty.
    pub fn each(&self, range: &Range<u64>) -> impl Iterator<Item = &Area<P>> {
        // SAFETY: by the type's invariant, areas in the tree are live.
        self.meeting(range).map(|area| unsafe { area.as_ref() })
    }

    fn meeting(&self, range: &Range<u64>) -> impl Iterator<Item = NonNull<Area<P>>> + use<'_, P> {
        let numbers = numbers(range);
        self.tree.overlapping(numbers.start, numbers.end - 1)
    }

    /// Verifies the set of mappings.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is violated. The message names the violation.
    pub fn check(&self) {
        self.tree.check();
        let (mut count, mut pages) = (0, 0);
        for area in self.each(&(0..u64::MAX)) {
            let (own, frames) = (numbers(&area.range), area.region.run.numbers());
            assert!(frames.start <= own.start && own.end <= frames.end, "a mapping lies outside its region");
            count += 1;
            pages += own.end - own.start;
        }
        assert_eq!(
            (count, pages),
            (self.count, self.pages),
            "the counters of mappings differ from a recount"
        );
    }
}

impl<P: Platform> Drop for Areas<P> {
    fn drop(&mut self) {
        while self.take(&(0..u64::MAX), |_| true).is_some() {}
    }
}

/// Returns the numbers of the pages that contain at least one byte of a range of addresses.
fn numbers(range: &Range<u64>) -> Range<u64> {
    range.start >> PAGE_SHIFT..((range.end - 1) >> PAGE_SHIFT) + 1
}

/// An adapter that finds the link in a mapping.
struct ByLink<P>(PhantomData<fn() -> P>);

// SAFETY: the link lies at a fixed offset inside the mapping, which stays in its box. Only trees of this
// adapter use the link.
unsafe impl<P: Platform> IntervalAdapter for ByLink<P> {
    type Object = Area<P>;

    fn link(object: NonNull<Area<P>>) -> NonNull<IntervalLink> {
        // SAFETY: `link` is a field of the object, so its offset lies inside the object.
        unsafe { object.byte_add(offset_of!(Area<P>, link)).cast() }
    }

    fn object(link: NonNull<IntervalLink>) -> NonNull<Area<P>> {
        // SAFETY: every link in a tree of this adapter is the field `link` of a mapping.
        unsafe { link.byte_sub(offset_of!(Area<P>, link)).cast() }
    }
}
