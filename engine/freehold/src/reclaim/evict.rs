//! Taking a page away that the policy gave up: [`Evictor`].
//!
//! ```text
//! find      the page by its frame, with a reference (rmap/walk.rs)
//! unmap     every entry, under the lock of the frame; a page of locked memory stays
//! dirty?    a write of the page begins, and the page stays until a later visit
//! drop      the page leaves the cache of its file, unless it is in use (file/change/drop_clean.rs)
//! ```
//!
//! Consecutive pages of a file are dropped together. Every step checks under its own lock that the page is
//! still in the frame and may go. A task that begins to use the page between two steps keeps it.

use super::sweep::Reclaimed;
use crate::{
    Pfn, VirtAddr,
    counted::Counted,
    engine::Engine,
    file::Mapping,
    platform::Platform,
    rmap::walk::{AnyRmapRoot, Page},
    vma::flags::VmFlags,
};
use freehold_pagetable::{Kind, Level, Pte, VaRange};
use freehold_vmspace::{Discardable, PAGE_SIZE, PageIndex, PageRange, UserRange};

/// Result of an attempt to evict a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Evicted {
    /// The page is gone, or leaves the cache with the next [`flush`](Evictor::flush).
    Gone,
    /// The page stays until its write has ended.
    Writing,
    /// The page stays.
    Kept,
}

/// Evicts pages, and collects those that leave the cache of a file together.
pub(super) struct Evictor<'e, P: Platform> {
    engine: &'e Engine<P>,
    /// Unmapped, clean pages of a file, which wait to be dropped.
    run: Option<(Counted<Mapping<P>>, PageRange)>,
}

impl<'e, P: Platform> Evictor<'e, P> {
    pub fn new(engine: &'e Engine<P>) -> Self {
        Evictor { engine, run: None }
    }

    /// Returns the number of pages that wait to be dropped.
    pub fn pending(&self) -> u64 {
        self.run.as_ref().map_or(0, |(_, pages)| pages.len().get())
    }

    /// Drops the collected pages from the cache of their file.
    pub fn flush(&mut self, reclaimed: &mut Reclaimed) {
        if let Some((mapping, pages)) = self.run.take() {
            let dropped = mapping.drop_clean(pages);
            reclaimed.freed += dropped;
            reclaimed.kept += pages.len().get() - dropped;
        }
    }

    /// Takes the page in a frame away, if it can go.
    pub fn evict(&mut self, pfn: Pfn, reclaimed: &mut Reclaimed) -> Evicted {
        let evicted = match self.engine.page_if_free(pfn) {
            Some(page) if page.level() == Level::Pte => self.evict_page(page, reclaimed),
            _ => Evicted::Kept,
        };
        reclaimed.kept += u64::from(evicted == Evicted::Kept);
        evicted
    }

    fn evict_page(&mut self, page: Page<'_, P>, reclaimed: &mut Reclaimed) -> Evicted {
        if page.frame().is_anon() {
            let freed = discard(page);
            reclaimed.freed += freed;
            return if freed > 0 { Evicted::Gone } else { Evicted::Kept };
        }
        let (pfn, offset) = (page.pfn(), page.index());
        let AnyRmapRoot::File(home) = page.home() else { return Evicted::Kept };
        // Fails if the file is about to be freed, which frees its pages.
        let Some(mapping) = home.hold_mapping() else { return Evicted::Kept };
        let index = mapping.index_of(offset);
        if !mapping.has_store() || !unmap(&page) {
            return Evicted::Kept;
        }
        let dirty = self.engine.platform().frame(pfn).is_dirty() || mapping.may_be_dirty(index);
        drop(page);
        if dirty {
            let begun = mapping.start_write(index);
            reclaimed.writing += begun;
            return Evicted::Writing;
        }
        self.drop_later(mapping, index, reclaimed);
        Evicted::Gone
    }

    /// Adds an unmapped page to the pages that are dropped together.
    fn drop_later(&mut self, mapping: Counted<Mapping<P>>, index: PageIndex, reclaimed: &mut Reclaimed) {
        self.engine.files().reclaim.add_ghost(mapping.key(), index);
        match &mut self.run {
            Some((last, pages)) if Counted::ptr_eq(last, &mapping) && pages.end == index => {
                pages.end = index + 1;
            }
            _ => {
                self.flush(reclaimed);
                self.run = Some((mapping, PageRange::one(index)));
            }
        }
    }
}

/// Removes every entry that maps a page of a file. Returns false if the page stays mapped: its memory is
/// locked, or a lock is taken.
fn unmap<P: Platform>(page: &Page<'_, P>) -> bool {
    if page.frame().maps() == 0 {
        return true;
    }
    let Some(_identity) = page.try_lock() else { return false };
    let mut stays = false;
    let visited = page.is_at_home()
        && page.try_each_place(|place| {
            if place.vma.flags().contains(VmFlags::LOCKED) {
                stays = true;
            } else if !stays {
                place.vm.take_entry(VirtAddr::new(place.range.start()), Level::Pte, page.pfn(), Pte::NONE);
            }
        });
    visited && !stays && page.frame().maps() == 0
}

/// Frees an anonymous page whose contents are not needed: it was freed lazily, or is droppable. Returns the
/// number of freed pages. A huge page is freed as a whole if none of it is needed.
fn discard<P: Platform>(page: Page<'_, P>) -> u64 {
    let (pfn, index, lazy) = (page.pfn(), page.index(), page.frame().is_lazily_freed());
    let AnyRmapRoot::Anon(home) = page.home() else { return 0 };
    let home = home.hold();
    // The reference of this task would keep the page.
    drop(page);
    let Some(lookups) = home.try_read() else { return 0 };
    let mut freed = 0;
    for place in lookups.mappers(PageRange::one(index)) {
        let flags = place.vma.flags();
        let which = match flags.contains(VmFlags::DROPPABLE) {
            true => Discardable::All,
            false if lazy => Discardable::LazilyFreed,
            false => continue,
        };
        if flags.contains(VmFlags::LOCKED) {
            continue;
        }
        // The entry may have changed since. The eviction checks every page again.
        let address = VirtAddr::new(place.range.start());
        let (pte, level) = place.vm.peek(address);
        match pte.kind(level) {
            Kind::Leaf { pfn: first, .. } if first.add(address.frame_in_leaf(level)) == pfn => {}
            _ => continue,
        }
        let leaf = VaRange::entry(address.align_down(level.frames() * PAGE_SIZE), level);
        freed += place.vm.evict_discardable(UserRange::new(leaf.start().get(), leaf.end().get()), which);
    }
    freed
}
