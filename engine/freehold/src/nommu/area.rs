//! What one mapping is, and the mappings of one address space by their addresses.
#![expect(unsafe_code, reason = "mappings are linked by pointers")]

use super::region::RegionUse;
use crate::{PAGE_SHIFT, counted::Counted, file::File, platform::Platform, space::Prot};
use allocator_api2::boxed::Box;
use core::{marker::PhantomData, mem::offset_of, ops::Range, ptr::NonNull};
use freehold_range::{IntervalAdapter, IntervalLink, IntervalTree};

/// A mapping. While it is in a tree its fields do not change.
pub(super) struct Area<P: Platform> {
    link: IntervalLink,
    /// Addresses, in whole pages.
    pub range: Range<u64>,
    pub prot: Prot,
    pub shared: bool,
    pub file: Option<Counted<File<P>>>,
    /// Where in the file, in bytes.
    pub offset: u64,
    pub region: RegionUse<P>,
}

impl<P: Platform> Area<P> {
    pub fn new(region: RegionUse<P>, range: Range<u64>, prot: Prot, shared: bool) -> Self {
        Area { link: IntervalLink::new(), range, prot, shared, file: None, offset: 0, region }
    }
}

/// The mappings of an address space. Those of one file may have the same addresses.
///
/// # Invariants
///
/// The tree owns what it holds: each came from a box.
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

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many pages in all of them.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Allocates nothing.
    pub fn insert(&mut self, area: Box<Area<P>>) {
        let numbers = numbers(&area.range);
        self.count += 1;
        self.pages += numbers.end - numbers.start;
        let area = NonNull::from(Box::leak(area));
        // SAFETY: it stays in its box until `take` removes it.
        unsafe { self.tree.insert(area, numbers.start, numbers.end - 1) };
    }

    /// Takes out the first that meets the range, which is not empty, and that `wanted` approves of.
    pub fn take(&mut self, range: &Range<u64>, wanted: impl Fn(&Area<P>) -> bool) -> Option<Box<Area<P>>> {
        // SAFETY: the type's invariant.
        let area = self.meeting(range).find(|area| wanted(unsafe { area.as_ref() }))?;
        // SAFETY: it was just found in the tree.
        unsafe { self.tree.remove(area) };
        // SAFETY: it was leaked by `insert`, and nobody else leads to it now.
        let area = unsafe { Box::from_raw(area.as_ptr()) };
        self.count -= 1;
        self.pages -= (area.range.end - area.range.start) >> PAGE_SHIFT;
        Some(area)
    }

    /// Those that meet a range that is not empty, ascending.
    pub fn each(&self, range: &Range<u64>) -> impl Iterator<Item = &Area<P>> {
        // SAFETY: the type's invariant.
        self.meeting(range).map(|area| unsafe { area.as_ref() })
    }

    fn meeting(&self, range: &Range<u64>) -> impl Iterator<Item = NonNull<Area<P>>> + use<'_, P> {
        let numbers = numbers(range);
        self.tree.overlapping(numbers.start, numbers.end - 1)
    }

    /// # Panics
    ///
    /// If something is wrong, with a description of it.
    pub fn check(&self) {
        self.tree.check();
        let (mut count, mut pages) = (0, 0);
        for area in self.each(&(0..u64::MAX)) {
            let (own, frames) = (numbers(&area.range), area.region.run.numbers());
            assert!(frames.start <= own.start && own.end <= frames.end, "a mapping outside of its region");
            count += 1;
            pages += own.end - own.start;
        }
        assert_eq!((count, pages), (self.count, self.pages), "mappings were counted wrong");
    }
}

impl<P: Platform> Drop for Areas<P> {
    fn drop(&mut self) {
        while self.take(&(0..u64::MAX), |_| true).is_some() {}
    }
}

/// The numbers of the pages that a range of addresses has bytes of.
fn numbers(range: &Range<u64>) -> Range<u64> {
    range.start >> PAGE_SHIFT..((range.end - 1) >> PAGE_SHIFT) + 1
}

/// Finds the link in a mapping.
struct ByLink<P>(PhantomData<fn() -> P>);

// SAFETY: the link lies at a fixed offset inside the mapping, which stays in its box; nothing but the trees
// here uses it.
unsafe impl<P: Platform> IntervalAdapter for ByLink<P> {
    type Object = Area<P>;

    fn link(object: NonNull<Area<P>>) -> NonNull<IntervalLink> {
        // SAFETY: the offset of a field inside the object.
        unsafe { object.byte_add(offset_of!(Area<P>, link)).cast() }
    }

    fn object(link: NonNull<IntervalLink>) -> NonNull<Area<P>> {
        // SAFETY: every link in a tree of this adapter is that field of a mapping.
        unsafe { link.byte_sub(offset_of!(Area<P>, link)).cast() }
    }
}
