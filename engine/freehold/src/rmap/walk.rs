//! From the number of a frame to its page, and from the page to its entries.
#![expect(unsafe_code, reason = "finds what a frame's record names by an address")]

use super::tree::{
    AnonPages, IMmap, Mapper, RmapKind, VmaTree,
    root::{FILE, RmapRoot, RmapRootRef},
};
use crate::{Pfn, VirtAddr, counted::Counted, engine::Engine, file::Mapping, platform::Platform, vma::Vma};
use core::ptr::NonNull;
use freehold_pagetable::{LeafGuard, Level};
use freehold_vmspace::{PageIndex, PageRange, frame::Frame};

/// Where a page is at home.
pub(super) enum AnyRmapRoot<P: Platform> {
    Anon(RmapRootRef<P, AnonPages>),
    File(RmapRootRef<P, IMmap>),
}

/// A page, found by the number of its frame, and kept: the frame stays this page's as long as this lives.
pub(crate) struct Page<'e, P: Platform> {
    pub(super) engine: &'e Engine<P>,
    /// The first, of a huge page of a pool.
    pub(super) pfn: Pfn,
    /// The one by which it was found.
    pub(super) asked: Pfn,
    /// That of the entries that map it.
    pub(super) level: Level,
    pub(super) home: AnyRmapRoot<P>,
    pub(super) index: PageIndex,
}

impl<P: Platform> AnyRmapRoot<P> {
    /// Whether its pages are frames of storage. A truncation waits until nobody has a reference to them, so
    /// no task with one may wait for a truncation.
    pub(super) fn is_storage(&self) -> bool {
        match self {
            AnyRmapRoot::Anon(_) => false,
            AnyRmapRoot::File(home) => home.mapping(&home.read()).is_some_and(|mapping| mapping.is_direct()),
        }
    }
}

impl<P: Platform> Engine<P> {
    /// How many entries map the page that a frame holds, found by the reverse map; none if it holds no page
    /// of a program or file. A huge page that the frame is part of is split.
    ///
    /// # Locks
    ///
    /// The home's lock for reading, tables' locks one at a time.
    pub fn entries_of(&self, pfn: Pfn) -> u64 {
        self.page(pfn).map_or(0, |page| page.count_entries())
    }

    /// The page that a frame holds. Nothing: it holds none that is mapped or in the cache of a file, or that
    /// is just changing.
    ///
    /// No reference is taken by the record alone: the frame may be free, or hold another page the next
    /// moment. The record names a home; its VMAs' tables, or its file's cache, have a reference to the frame
    /// if it still is theirs; beside that another is taken.
    ///
    /// # Locks
    ///
    /// The home's lock for reading, tables' locks one at a time.
    pub(crate) fn page(&self, pfn: Pfn) -> Option<Page<'_, P>> {
        if !self.platform().has_frame(pfn) {
            return None;
        }
        let asked = pfn;
        let (pfn, level) = self.memory().huge_page_of(pfn).unwrap_or((pfn, Level::Pte));
        let frame = self.platform().frame(pfn);
        let (home, index) = find_rmap_root(frame)?;
        let kept = match &home {
            AnyRmapRoot::Anon(home) => self.keep_mapped(pfn, level, home, index),
            AnyRmapRoot::File(home) => self.keep_cached(pfn, home, index),
        };
        if !kept {
            return None;
        }
        let page = Page { engine: self, pfn, asked, level, home, index };
        // The frame is this page's for certain now; if it was another's while we looked, somebody is at work.
        // Nor was it a small page's before that of a huge one, or the other way round.
        (page.is_at_home() && frame.hugetlb().unwrap_or(Level::Pte) == level).then_some(page)
    }

    /// Takes a reference beside that of an entry which maps the frame.
    fn keep_mapped(&self, pfn: Pfn, level: Level, home: &VmaTree<P, AnonPages>, index: PageIndex) -> bool {
        let lookups = home.read();
        // A page of another engine on the same platform is none here.
        let own = |mapper: &Mapper<'_, P, Vma<P>>| Counted::ptr_eq(self.memory(), mapper.vm.memory());
        lookups.mappers(PageRange::one(index)).filter(own).any(|mapper| {
            let frame = |_: &mut LeafGuard<'_, P::Format, P>| self.platform().frame(pfn).get();
            mapper.vm.with_entry(VirtAddr::new(mapper.range.start()), level, pfn, frame).is_some()
        })
    }

    /// Takes a reference beside that of the cache.
    fn keep_cached(&self, pfn: Pfn, home: &RmapRoot<P, IMmap>, index: PageIndex) -> bool {
        let lookups = home.read();
        // Frames of storage do not move, and a truncation waits until nobody has a reference: none is given
        // out by number.
        let ours = |mapping: &&Mapping<P>| !mapping.is_direct() && self.owns(mapping.files());
        let Some(mapping) = home.mapping(&lookups).filter(ours) else {
            return false;
        };
        let found = mapping.get_page(mapping.index_of(index)).filter(|found| **found == pfn);
        // The reference is the caller's.
        found.map(core::mem::forget).is_some()
    }
}

/// What the record names, with a reference.
pub(super) fn find_rmap_root<P: Platform>(frame: &Frame) -> Option<(AnyRmapRoot<P>, PageIndex)> {
    let rcu = P::rcu_read();
    // An anonymous page that is not mapped may be older than its home. Maps first: it was mapped within this
    // section.
    let mapped = frame.maps() != 0;
    let (home, index) = frame.rmap();
    let home = match home & FILE != 0 {
        // SAFETY: the record of a page in a cache names its file's home, and forgets it before the file goes.
        true => AnyRmapRoot::File(unsafe { find(&rcu, home & !FILE) }?),
        // SAFETY: mapped within this section.
        false if mapped => AnyRmapRoot::Anon(unsafe { find(&rcu, home) }?),
        false => return None,
    };
    Some((home, index))
}

/// # Safety
///
/// As for [`RmapRoot::find`], if the address is not 0.
unsafe fn find<P: Platform, W: RmapKind>(rcu: &P::RcuGuard, at: usize) -> Option<RmapRootRef<P, W>> {
    let home = NonNull::new(core::ptr::with_exposed_provenance_mut::<RmapRoot<P, W>>(at))?;
    // SAFETY: the caller's promise.
    unsafe { RmapRoot::find(rcu, home) }
}

impl<P: Platform> Page<'_, P> {
    /// The frame's record.
    pub fn frame(&self) -> &Frame {
        self.engine.platform().frame(self.pfn)
    }

    /// The frame's number.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// The page offset by which it is known at home.
    pub fn index(&self) -> PageIndex {
        self.index
    }

    /// The record still names the home by which the page was found.
    pub fn is_at_home(&self) -> bool {
        let home = match &self.home {
            AnyRmapRoot::Anon(home) => core::ptr::from_ref::<RmapRoot<P, AnonPages>>(home).addr(),
            AnyRmapRoot::File(home) => core::ptr::from_ref::<RmapRoot<P, IMmap>>(home).addr() | FILE,
        };
        self.frame().rmap() == (home, self.index)
    }

    /// Calls `f` for every place where the page may be mapped: in order, parents before the children that
    /// fork gave them, with everything kept still but the entries.
    ///
    /// # Locks
    ///
    /// The home's lock for reading, meanwhile.
    pub fn each_place(&self, mut f: impl FnMut(&Mapper<'_, P, Vma<P>>)) {
        let pages = PageRange::one(self.index);
        match &self.home {
            AnyRmapRoot::Anon(home) => home.read().mappers(pages).for_each(|mapper| f(&mapper)),
            AnyRmapRoot::File(home) => home.read().mappers(pages).for_each(|mapper| f(&mapper)),
        }
    }

    /// Entries that map the page.
    ///
    /// # Locks
    ///
    /// As [`each_place`](Self::each_place); tables' locks one at a time.
    pub fn count_entries(&self) -> u64 {
        let mut count = 0;
        self.each_place(|place| {
            let address = VirtAddr::new(place.range.start());
            count += u64::from(place.vm.with_entry(address, self.level, self.pfn, |_| ()).is_some());
        });
        count
    }
}

impl<P: Platform> Drop for Page<'_, P> {
    fn drop(&mut self) {
        self.engine.memory().put_frame(self.pfn);
    }
}
