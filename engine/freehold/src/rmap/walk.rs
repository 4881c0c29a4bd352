//! Walks from the number of a frame to its page, and from the page to its entries.
//!
//! `Engine::page` reads the record of a frame without a lock, finds the home that the record names, and takes
//! a reference to the frame. The result, a `Page`, keeps the page in this frame. `Page::each_place` then
//! visits the places that may map the page, with the lock of the home held for reading. The entries at these
//! places may change during the walk; each operation checks an entry under the lock of its page table.
//!
//! `entries.rs`, `migrate.rs`, `failure.rs` and `lose.rs` use these walks. `tree/` contains the trees of
//! VMAs. The scenarios of `shuttle_engine/rmap.rs` fail if a walk misses an entry, and
//! `tests/every_call/engines.rs` tests frames of another engine.
//!
//! `Engine::page` returns no page of a file whose pages are frames of storage. A truncation of such a file
//! waits for all references, so a task that held such a `Page` could deadlock with the truncation.
#![expect(unsafe_code, reason = "finds the home that a frame's record names by its address")]

use super::tree::{
    AnonPages, IMmap, Mapper, RmapKind, RmapReadGuard, VmaTree,
    root::{FILE, RmapRoot, RmapRootRef},
};
use crate::{Pfn, VirtAddr, counted::Counted, engine::Engine, file::Mapping, platform::Platform, vma::Vma};
use core::ptr::NonNull;
use freehold_pagetable::{LeafGuard, Level};
use freehold_sync::WordGuard;
use freehold_vmspace::{PageIndex, PageRange, frame::Frame};

/// The home of a page.
pub(crate) enum AnyRmapRoot<P: Platform> {
    Anon(RmapRootRef<P, AnonPages>),
    File(RmapRootRef<P, IMmap>),
}

/// A page, found by the number of its frame. The frame holds this page as long as this value lives, because
/// the value has a reference.
pub(crate) struct Page<'e, P: Platform> {
    pub(super) engine: &'e Engine<P>,
    /// The frame of the page; for a huge page of a pool, its first frame.
    pub(super) pfn: Pfn,
    /// The frame by which the page was found.
    pub(super) asked: Pfn,
    /// The level of the entries that map the page.
    pub(super) level: Level,
    pub(super) home: AnyRmapRoot<P>,
    /// The page's index in its home.
    pub(super) index: PageIndex,
}

impl<P: Platform> AnyRmapRoot<P> {
    /// Returns true if the pages are frames of storage. A truncation waits until all references to such
    /// frames are released, so a task with a reference must not wait for a truncation.
    pub(super) fn is_storage(&self) -> bool {
        match self {
            AnyRmapRoot::Anon(_) => false,
            AnyRmapRoot::File(home) => home.mapping(&home.read()).is_some_and(|mapping| mapping.is_direct()),
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Returns the number of entries that map the page in a frame, found by the reverse map. Returns 0 if the
    /// frame holds no page of a program or file. Splits a huge page that the frame is part of.
    ///
    /// # Locks
    ///
    /// The home's lock for reading, page table locks one at a time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// let child = space.fork().unwrap();
    /// assert_eq!(engine.entries_of(space.frame_at(at).unwrap()), 2);
    /// child.clear();
    /// assert_eq!(engine.entries_of(space.frame_at(at).unwrap()), 1);
    /// ```
    pub fn entries_of(&self, pfn: Pfn) -> u64 {
        self.page(pfn).map_or(0, |page| page.count_entries())
    }

    /// Returns the page in a frame. Returns `None` if the frame holds no page that is mapped or in a file's
    /// cache, or if the page is being changed.
    ///
    /// The frame's record alone does not keep the frame: the frame may be free, or may hold another page a
    /// moment later. The record names a home. If the frame still belongs to that home, the page tables of the
    /// home's VMAs, or the file's cache, have a reference to the frame. The walk takes its own reference in
    /// addition.
    ///
    /// # Locks
    ///
    /// The home's lock for reading, page table locks one at a time.
    pub(crate) fn page(&self, pfn: Pfn) -> Option<Page<'_, P>> {
        self.find_page(pfn, true)
    }

    /// Returns the page in a frame like [`page`](Self::page), but returns `None` instead of waiting for the
    /// home's lock.
    pub(crate) fn page_if_free(&self, pfn: Pfn) -> Option<Page<'_, P>> {
        self.find_page(pfn, false)
    }

    fn find_page(&self, pfn: Pfn, waits: bool) -> Option<Page<'_, P>> {
        if !self.platform().has_frame(pfn) {
            return None;
        }
        let asked = pfn;
        let (pfn, level) = self.memory().huge_page_of(pfn).unwrap_or((pfn, Level::Pte));
        let frame = self.platform().frame(pfn);
        let (home, index) = find_rmap_root(frame)?;
        let kept = match &home {
            AnyRmapRoot::Anon(home) => self.keep_mapped(pfn, level, &lock(home, waits)?, index),
            AnyRmapRoot::File(home) => self.keep_cached(pfn, home, &lock(home, waits)?, index),
        };
        if !kept {
            return None;
        }
        let page = Page { engine: self, pfn, asked, level, home, index };
        // The frame cannot change its page any more. If the record names another home or level now, another
        // task was changing the page during the lookup.
        (page.is_at_home() && frame.hugetlb().unwrap_or(Level::Pte) == level).then_some(page)
    }

    /// Takes a reference to a frame that an entry maps. Returns false if no entry maps the frame any more.
    fn keep_mapped(
        &self,
        pfn: Pfn,
        level: Level,
        lookups: &RmapReadGuard<'_, P, AnonPages>,
        index: PageIndex,
    ) -> bool {
        // A page of another engine on the same platform does not count.
        let own = |mapper: &Mapper<'_, P, Vma<P>>| Counted::ptr_eq(self.memory(), mapper.vm.memory());
        lookups.mappers(PageRange::one(index)).filter(own).any(|mapper| {
            let frame = |_: &mut LeafGuard<'_, P::Format, P>| self.platform().frame(pfn).get();
            mapper.vm.with_entry(VirtAddr::new(mapper.range.start()), level, pfn, frame).is_some()
        })
    }

    /// Takes a reference to a frame that is in the cache of its file. Returns false if the frame is not in
    /// the cache any more.
    fn keep_cached(
        &self,
        pfn: Pfn,
        home: &RmapRoot<P, IMmap>,
        lookups: &RmapReadGuard<'_, P, IMmap>,
        index: PageIndex,
    ) -> bool {
        // Takes no reference to a frame of storage. Such frames do not move, and a truncation waits until all
        // references to them are released.
        let ours = |mapping: &&Mapping<P>| !mapping.is_direct() && self.owns(mapping.files());
        let Some(mapping) = home.mapping(lookups).filter(ours) else {
            return false;
        };
        let found = mapping.get_page(mapping.index_of(index)).filter(|found| **found == pfn);
        // The caller owns the reference now.
        found.map(core::mem::forget).is_some()
    }
}

/// Takes the lock of a home for reading. Without `waits`, returns `None` if the lock is taken.
fn lock<P: Platform, W: RmapKind>(home: &VmaTree<P, W>, waits: bool) -> Option<RmapReadGuard<'_, P, W>> {
    if waits { Some(home.read()) } else { home.try_read() }
}

/// Returns the home that the record of a frame names, with a reference, and the page's index there.
pub(super) fn find_rmap_root<P: Platform>(frame: &Frame) -> Option<(AnyRmapRoot<P>, PageIndex)> {
    let rcu = P::rcu_read();
    // An unmapped anonymous page can outlive its home. `maps` is read first, so a page that counts as mapped
    // was mapped at some moment within this section.
    let mapped = frame.maps() != 0;
    let (home, index) = frame.rmap();
    let home = match home & FILE != 0 {
        // SAFETY: the record of a page in a cache names the home of its file. The record stops naming the
        // home before the file is freed.
        true => AnyRmapRoot::File(unsafe { find(&rcu, home & !FILE) }?),
        // SAFETY: the page was mapped within this section.
        false if mapped => AnyRmapRoot::Anon(unsafe { find(&rcu, home) }?),
        false => return None,
    };
    Some((home, index))
}

/// Returns a reference to the home at address `at`, or `None` if `at` is 0 or the home is about to be freed.
///
/// # Safety
///
/// The requirements of [`RmapRoot::find`], if the address is not 0.
unsafe fn find<P: Platform, W: RmapKind>(rcu: &P::RcuGuard, at: usize) -> Option<RmapRootRef<P, W>> {
    let home = NonNull::new(core::ptr::with_exposed_provenance_mut::<RmapRoot<P, W>>(at))?;
    // SAFETY: the caller's promise.
    unsafe { RmapRoot::find(rcu, home) }
}

impl<P: Platform> Page<'_, P> {
    /// Returns the frame's record.
    pub fn frame(&self) -> &Frame {
        self.engine.platform().frame(self.pfn)
    }

    /// Returns the frame's number.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Returns the page's home.
    pub fn home(&self) -> &AnyRmapRoot<P> {
        &self.home
    }

    /// Returns the level of the entries that map the page.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns the page's index in its home.
    pub fn index(&self) -> PageIndex {
        self.index
    }

    /// Returns true if the record still names the home by which the page was found.
    pub fn is_at_home(&self) -> bool {
        let home = match &self.home {
            AnyRmapRoot::Anon(home) => core::ptr::from_ref::<RmapRoot<P, AnonPages>>(home).addr(),
            AnyRmapRoot::File(home) => core::ptr::from_ref::<RmapRoot<P, IMmap>>(home).addr() | FILE,
        };
        self.frame().rmap() == (home, self.index)
    }

    /// Calls `f` for every place of the page, in order: parents before the children that fork made. The VMAs
    /// and page tables stay during the calls; entries may change.
    ///
    /// # Locks
    ///
    /// The home's lock for reading, during all calls.
    pub fn each_place(&self, mut f: impl FnMut(&Mapper<'_, P, Vma<P>>)) {
        let pages = PageRange::one(self.index);
        match &self.home {
            AnyRmapRoot::Anon(home) => home.read().mappers(pages).for_each(|mapper| f(&mapper)),
            AnyRmapRoot::File(home) => home.read().mappers(pages).for_each(|mapper| f(&mapper)),
        }
    }

    /// Locks the frame if it is not locked.
    pub fn try_lock(&self) -> Option<WordGuard<'_, P>> {
        self.engine.memory().try_lock_frame(self.pfn)
    }

    /// Returns the number of entries that map the page.
    ///
    /// # Locks
    ///
    /// The locks of [`each_place`](Self::each_place); page table locks one at a time.
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
