//! Taking pages away that the policy gave up: [`Evictor`].
//!
//! ```text
//! find      the page by its frame, with a reference (rmap/walk.rs)
//! collect   a batch of pages of files
//! unmap     every entry, under the lock of the frame; a page of locked memory stays
//! flush     the TLBs, once for each address space (batch.rs)
//! dirty?    a write of the page begins, and the page stays until a later visit
//! drop      the page leaves the cache of its file, unless it is in use (file/change/drop_clean.rs)
//! ```
//!
//! Consecutive pages of a file are dropped together. Every step checks under its own lock that the page is
//! still in the frame and may go. A task that begins to use the page between two steps keeps it. An anonymous
//! page goes at once, if its contents are not needed, or is collected in a batch of its own, which is swapped
//! out (`swap_out.rs`).

use super::{
    batch::{BATCH, Flushes, Homes, home_of},
    state::{
        policy::{Age, PageKind},
        stats::Reclaimed,
    },
    swap_out::{Fate, Swapper},
};
use crate::{
    Pfn, VirtAddr,
    counted::Counted,
    engine::Engine,
    file::Mapping,
    platform::Platform,
    rmap::walk::{AnyRmapRoot, Page},
    swap::Shadow,
    vma::flags::VmFlags,
};
use arrayvec::ArrayVec;
use freehold_pagetable::{Kind, Level};
use freehold_vmspace::{Discardable, PageIndex, PageRange};

/// Result of an attempt to evict a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Evicted {
    /// The page is gone.
    Gone,
    /// The page waits in a batch; [`finish_batch`](Evictor::finish_batch) decides about it.
    Collected,
    /// The page stays until its write has ended.
    Writing,
    /// The page stays.
    Kept,
}

/// A page that the policy gave up.
#[derive(Clone, Copy)]
pub(super) struct GivenUp {
    pub pfn: Pfn,
    pub kind: PageKind,
    /// The age with which the page goes.
    pub age: Age,
}

/// Evicts pages, and collects pages to unmap them together.
pub(super) struct Evictor<'e, P: Platform> {
    engine: &'e Engine<P>,
    /// The pages of the batch, with references: first the anonymous pages, then the pages of files.
    batch: ArrayVec<Page<'e, P>, BATCH>,
    /// A record for each page of the batch, in the same order.
    given_up: ArrayVec<GivenUp, BATCH>,
    /// Number of anonymous pages in the batch.
    anon: usize,
    swapper: Swapper<'e, P>,
    /// True if writes may begin.
    writes: bool,
}

impl<'e, P: Platform> Evictor<'e, P> {
    pub fn new(engine: &'e Engine<P>) -> Self {
        Evictor {
            engine,
            batch: ArrayVec::new(),
            given_up: ArrayVec::new(),
            anon: 0,
            swapper: Swapper::new(engine),
            writes: true,
        }
    }

    /// Chooses whether writes may begin. Without them, pages that need a write stay.
    pub fn set_writes(&mut self, writes: bool) {
        self.writes = writes;
    }

    /// Returns the number of pages in the batch, and of those whose write to a swap device has not ended.
    pub fn pending(&self) -> u64 {
        self.batch.len() as u64 + self.swapper.pending()
    }

    /// Returns true if anonymous pages may be swapped out.
    pub fn swaps(&self) -> bool {
        self.writes && self.swapper.has_room()
    }

    /// Returns true if the batch has no room for another page.
    pub fn is_full(&self) -> bool {
        self.batch.is_full()
    }

    /// Takes the page away, or adds it to the batch, if it can go. The batch has room.
    pub fn evict(&mut self, page: GivenUp, reclaimed: &mut Reclaimed) -> Evicted {
        let evicted = match self.engine.page_if_free(page.pfn) {
            Some(found) if found.level() == Level::Pte => self.evict_page(found, page, reclaimed),
            _ => Evicted::Kept,
        };
        reclaimed.kept += u64::from(evicted == Evicted::Kept);
        evicted
    }

    fn evict_page(&mut self, found: Page<'e, P>, page: GivenUp, reclaimed: &mut Reclaimed) -> Evicted {
        if found.frame().is_anon() {
            return self.evict_anon(found, page, reclaimed);
        }
        if found.frame().is_shmem() && !self.swaps() {
            return Evicted::Kept;
        }
        self.add_to_batch(found, page);
        Evicted::Collected
    }

    /// Adds a page to the batch, which has room. Keeps the anonymous pages first.
    fn add_to_batch(&mut self, page: Page<'e, P>, given_up: GivenUp) {
        let (place, last) = (self.anon, self.batch.len());
        let is_anon = matches!(page.home(), AnyRmapRoot::Anon(_));
        self.batch.push(page);
        self.given_up.push(given_up);
        if is_anon {
            self.batch.swap(place, last);
            self.given_up.swap(place, last);
            self.anon += 1;
        }
    }

    /// Frees an anonymous page whose contents are not needed, or adds it to the batch.
    fn evict_anon(&mut self, page: Page<'e, P>, given_up: GivenUp, reclaimed: &mut Reclaimed) -> Evicted {
        let (pfn, engine) = (page.pfn(), self.engine);
        let mut page = Some(page);
        if engine.platform().frame(pfn).is_lazily_freed() || engine.files().reclaim.has_droppable() {
            let freed = page.take().map_or(0, discard);
            reclaimed.freed += freed;
            if freed > 0 {
                return Evicted::Gone;
            }
        }
        if !self.swaps() {
            return Evicted::Kept;
        }
        let Some(page) = page.or_else(|| engine.page_if_free(pfn)) else { return Evicted::Kept };
        if !page.frame().is_anon() || page.level() != Level::Pte {
            return Evicted::Kept;
        }
        self.add_to_batch(page, given_up);
        Evicted::Collected
    }

    /// Swaps the anonymous pages of the batch out. Calls `stays` for each page that is still in its frame.
    fn swap_batch(&mut self, reclaimed: &mut Reclaimed, stays: &mut impl FnMut(GivenUp, Evicted)) {
        let anon = core::mem::take(&mut self.anon);
        if anon == 0 {
            return;
        }
        self.flush_swapped(reclaimed);
        let fates = self.swapper.swap_out(&self.batch[..anon]);
        self.batch.drain(..anon);
        for (page, fate) in self.given_up.drain(..anon).zip(&fates) {
            count_fate(page, fate, reclaimed, stays);
        }
    }

    /// Writes the pages that were swapped out.
    pub fn flush_swapped(&mut self, reclaimed: &mut Reclaimed) {
        let shadow = Shadow::new(self.engine.files().reclaim.evicted());
        let flushed = self.swapper.flush(shadow);
        reclaimed.freed += flushed.stored;
        reclaimed.writing += flushed.writing;
    }

    /// Takes the pages of the batch away, if they can go. Calls `stays` for each page that stays.
    pub fn finish_batch(&mut self, reclaimed: &mut Reclaimed, mut stays: impl FnMut(GivenUp, Evicted)) {
        self.swap_batch(reclaimed, &mut stays);
        while !self.batch.is_empty() {
            let mut unmapped = self.unmap_some();
            let mut clean = ArrayVec::<_, BATCH>::new();
            for (n, file) in unmapped.iter_mut().enumerate() {
                let page = self.given_up[n];
                let Some((mapping, index)) = file.take() else {
                    reclaimed.kept += 1;
                    stays(page, Evicted::Kept);
                    continue;
                };
                if mapping.is_swappable() {
                    let fate = self.swap_shared(&mapping, index, page.pfn, reclaimed);
                    count_fate(page, &fate, reclaimed, &mut stays);
                } else if is_dirty(&mapping, index, page.pfn) {
                    if !self.writes {
                        reclaimed.kept += 1;
                        stays(page, Evicted::Kept);
                        continue;
                    }
                    reclaimed.writing += mapping.start_writes(PageRange::one(index));
                    stays(page, Evicted::Writing);
                } else {
                    self.engine.files().reclaim.add_ghost(mapping.key(), index, page.age);
                    clean.push((mapping, index));
                }
            }
            self.given_up.drain(..unmapped.len());
            drop_pages(&mut clean, reclaimed);
        }
    }

    /// Swaps out a page of shared memory that no entry maps. Returns its fate.
    fn swap_shared(
        &mut self,
        mapping: &Counted<Mapping<P>>,
        index: PageIndex,
        pfn: Pfn,
        reclaimed: &mut Reclaimed,
    ) -> Fate {
        if self.swapper.must_flush() {
            self.flush_swapped(reclaimed);
        }
        self.swapper.swap_out_shared(mapping, index, pfn)
    }

    /// Unmaps pages of the batch, which has only pages of files, and removes them from it. Returns for each
    /// page its file and its index there, or `None` if the page is still mapped. No processor can use an
    /// unmapped page when this returns, and the page has no reference of this task.
    fn unmap_some(&mut self) -> ArrayVec<Option<Unmapped<P>>, BATCH> {
        let mut unmapped = ArrayVec::new();
        {
            let homes = Homes::try_lock(self.batch.iter().map(home_of));
            let mut flushes = Flushes::new();
            for page in &self.batch[..homes.pages()] {
                if flushes.is_full() {
                    break;
                }
                unmapped.push(home_of(page).and_then(|home| {
                    let lookups = homes.of(home)?;
                    // `None` if the file is about to be freed, which frees its pages. The reference outlives
                    // the locks, because the last one must not be dropped under the lock of the home.
                    let mapping = home.mapping(lookups).filter(|mapping| may_evict(mapping))?;
                    let index = mapping.index_of(page.index());
                    flushes
                        .unmap(page, lookups)
                        .then(|| home.hold_mapping_within(lookups))?
                        .map(|file| (file, index))
                }));
            }
            flushes.finish(self.engine.memory());
        }
        self.batch.drain(..unmapped.len());
        unmapped
    }
}

impl<P: Platform> Engine<P> {
    /// Takes pages of a file away whose entries were removed, for MADV_PAGEOUT: drops clean pages from the
    /// cache, begins writes of dirty ones, and swaps out shared memory. Pages that are in use stay.
    ///
    /// # Locks
    ///
    /// The locks of [`Mapping::drop_clean`], and those of a write-back. The caller holds no lock.
    pub(crate) fn evict_unmapped(&self, mapping: &Counted<Mapping<P>>, pages: PageRange) -> Reclaimed {
        let mut reclaimed = Reclaimed::default();
        if mapping.has_store() {
            let state = &self.files().reclaim;
            pages.into_iter().for_each(|index| state.add_ghost(mapping.key(), index, Age::NEW));
            drop_run(mapping, pages, &mut reclaimed);
            if reclaimed.kept > 0 {
                reclaimed.writing = mapping.start_writes(pages);
            }
        } else if mapping.is_swappable() {
            self.swap_out_unmapped(mapping, pages, &mut reclaimed);
        }
        self.files().reclaim.add_evicted(reclaimed.freed);
        reclaimed
    }

    /// Swaps out pages of shared memory that no entry maps. Pages that are in use stay.
    fn swap_out_unmapped(&self, mapping: &Counted<Mapping<P>>, pages: PageRange, reclaimed: &mut Reclaimed) {
        let mut evictor = Evictor::new(self);
        for index in pages {
            if !evictor.swaps() {
                break;
            }
            let Some(pfn) = mapping.get_page(index).map(|page| *page) else { continue };
            let fate = evictor.swap_shared(mapping, index, pfn, reclaimed);
            reclaimed.freed += u64::from(matches!(fate, Fate::Gone));
        }
        evictor.flush_swapped(reclaimed);
    }

    /// Swaps out the anonymous pages in these frames that one entry maps, for MADV_PAGEOUT. Pages that are in
    /// use stay.
    ///
    /// # Locks
    ///
    /// The locks of [`reclaim`](Self::reclaim). The caller holds no lock.
    pub(crate) fn swap_out_unshared(&self, pages: &[Pfn]) {
        // Not as a tuple, which would be copied.
        let mut evictor = Evictor::new(self);
        let mut reclaimed = Reclaimed::default();
        for pfn in pages {
            if let Some(page) = self.page_if_free(*pfn)
                && page.level() == Level::Pte
                && page.frame().is_anon()
                && page.frame().maps() == 1
            {
                let given_up = GivenUp { pfn: *pfn, kind: PageKind::Anonymous, age: Age::NEW };
                if evictor.evict_anon(page, given_up, &mut reclaimed) == Evicted::Collected
                    && evictor.is_full()
                {
                    evictor.finish_batch(&mut reclaimed, |_, _| ());
                }
            }
        }
        evictor.finish_batch(&mut reclaimed, |_, _| ());
        evictor.flush_swapped(&mut reclaimed);
        self.files().reclaim.add_evicted(reclaimed.freed);
    }
}

/// Counts a page that was to be swapped out. Calls `stays` if the page is still in its frame.
fn count_fate(
    page: GivenUp,
    fate: &Fate,
    reclaimed: &mut Reclaimed,
    stays: &mut impl FnMut(GivenUp, Evicted),
) {
    match fate {
        Fate::Cached => stays(page, Evicted::Writing),
        Fate::Gone => reclaimed.freed += 1,
        Fate::Stays => {
            reclaimed.kept += 1;
            stays(page, Evicted::Kept);
        }
    }
}

/// Returns true if pages of the file can go: to its backing store, or to a swap device.
fn may_evict<P: Platform>(mapping: &Mapping<P>) -> bool {
    mapping.has_store() || mapping.is_swappable()
}

/// Returns true if an unmapped page may have contents that the backing store of its file lacks.
fn is_dirty<P: Platform>(mapping: &Mapping<P>, index: PageIndex, pfn: Pfn) -> bool {
    mapping.files().platform().frame(pfn).is_dirty() || mapping.may_be_dirty(index)
}

/// Drops clean, unmapped pages from the caches of their files.
fn drop_pages<P: Platform>(clean: &mut [Unmapped<P>], reclaimed: &mut Reclaimed) {
    clean.sort_unstable_by_key(|(mapping, index)| (mapping.key(), *index));
    let mut rest = &*clean;
    while let Some((mapping, first)) = rest.first() {
        let is_next =
            |(n, (file, index)): (u64, &Unmapped<P>)| Counted::ptr_eq(file, mapping) && *index == *first + n;
        let len = (0..).zip(rest).take_while(|page| is_next(*page)).count();
        drop_run(mapping, PageRange::new(*first, *first + len as u64), reclaimed);
        rest = &rest[len..];
    }
}

/// Drops a run of clean, unmapped pages from the cache of their file.
fn drop_run<P: Platform>(mapping: &Mapping<P>, pages: PageRange, reclaimed: &mut Reclaimed) {
    let dropped = mapping.drop_clean(pages);
    reclaimed.freed += dropped;
    reclaimed.kept += pages.len().get() - dropped;
}

/// A page of a file without entries.
type Unmapped<P> = (Counted<Mapping<P>>, PageIndex);

/// Frees an anonymous page whose contents are not needed: it was freed lazily, or is droppable. Returns the
/// number of freed pages. The lookup of the page has split a huge page.
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
        // The entry may have changed since. The eviction checks the page again.
        let address = VirtAddr::new(place.range.start());
        let (pte, level) = place.vm.peek(address);
        if matches!(pte.kind(level), Kind::Leaf { pfn: found, .. } if found == pfn && level == Level::Pte) {
            freed += place.vm.evict_discardable_page(address, which);
        }
    }
    freed
}
