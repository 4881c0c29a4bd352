//! Swapping an anonymous page out: from the entries that map it to a write of its frame. Pages of shared
//! memory take another way to the swap cache (`file/swapped.rs`), and are written together with the anonymous
//! pages.
//!
//! # States
//!
//! A page is named by entries of page tables, by the word of a slot (`swap/slot.rs`), and by the references
//! to its frame. From the point of view of one entry:
//!
//! | entry | word of the slot | frame | references to the frame |
//! | --- | --- | --- | --- |
//! | leaf | none | the page | one for each leaf |
//! | migration marker | none | the page | none; this task has one |
//! | swap entry, count + 1 | cached, new | the page | the cache; this task |
//! | swap entry | cached, being written | the page, which does not change | the cache; the write |
//! | swap entry | stored | none | none |
//! | swap entry | being read | undefined contents | the cache; the read; each waiting task |
//! | swap entry | cached, clean | the page, which does not change | the cache |
//! | leaf, read-only; count - 1 | cached, for other entries | the page, which does not change | the cache; the leaf |
//! | leaf, exclusive; the last count | free | the page | the leaf |
//! | leaf, read-only; the last count | being written, count 0 | the page | the leaf; the write |
//!
//! The last row ends when the write ends: the leaf then has the only reference, and the next store finds that
//! the page is its own.
//!
//! # Steps
//!
//! | step | under | undone by |
//! | --- | --- | --- |
//! | 1. each leaf becomes a migration marker. When this is done for all pages of a batch, each space is flushed (`batch.rs`) | the frame's lock; the home's lock for reading; the table's lock | the markers become leaves |
//! | 2. there is no other reference: pins, transfers and forks in progress keep the page | the same | the same |
//! | 3. a page of zeroes of anonymous memory: the markers become entries of the zero page | the same | |
//! | 4. `insert`: the frame enters the swap cache; this task has the count of the slot | the same | the same |
//! | 5. each marker becomes a swap entry, after `duplicate` | the same; the table's lock | a marker becomes a read-only leaf if the slot has too many entries |
//! | 6. `begin_write`, and the request goes to the device | nothing | an error leaves the page in the cache |
//! | 7. this task releases its count | nothing | |
//!
//! A fault at a migration marker waits for the frame's lock, and a fault at a swap entry takes the page from
//! the cache. Neither waits for the device. The count of this task keeps the slot until the write has begun,
//! also if faults, munmap or exit take all entries: a page that was never written must not be *stored*.
//! After step 5, no TLB has an entry that allows stores, and step 6 relies on that.
//!
//! The locks of all pages of a batch are held from step 1 to step 5. They are taken by tries, so their order
//! does not matter.
//!
//! The walks of the steps 1 and 5 happen under one hold of the home's lock, so they visit the same VMAs. A
//! fork that copies a marker or a swap entry in between has linked its VMA before, behind that of the parent,
//! so the second walk visits the copy after the original (`rmap/migrate.rs`).
//!
//! Pages of locked memory and of droppable memory stay, and so do private copies of pages of files with
//! probes, because a probe that is removed is searched in all copies. A copy full of zeroes takes a slot like
//! any other. `tests/swapped/` and `shuttle_engine/swapped.rs` test this file.

use super::batch::{BATCH, Flushes, Homes};
use crate::{
    Pfn, VirtAddr,
    counted::Counted,
    engine::Engine,
    file::{File, Mapping, SwappedOut, is_zero},
    platform::Platform,
    rmap::{
        tree::{AnonPages, Mapper, RmapReadGuard, root::RmapRoot},
        walk::{AnyRmapRoot, Page},
    },
    swap::{Shadow, SlotRun, SwapEntry, SwapWrite},
    vma::{
        Vma,
        flags::{VmFlags, pte_flags::vma_pte_flags},
    },
};
use arrayvec::ArrayVec;
use freehold_pagetable::Level;
use freehold_sync::WordGuard;
use freehold_vmspace::{PageIndex, PageRange};

/// The fate of a page.
pub(super) enum Fate {
    /// The page is in the swap cache, and is about to be written.
    Cached,
    /// The page was full of zeroes, and its frame is free.
    Gone,
    /// The page stays.
    Stays,
}

/// Swaps pages out, and collects them for requests of consecutive slots.
pub(super) struct Swapper<'e, P: Platform> {
    engine: &'e Engine<P>,
    /// Slots for the next pages.
    slots: Option<SlotRun<P>>,
    /// No device has free slots.
    is_full: bool,
    /// The pages that are about to be written.
    out: ArrayVec<Out, BATCH>,
    /// Number of pages whose write has begun and not ended at once.
    pub writing: u64,
}

/// A page that is about to be written.
struct Out {
    entry: SwapEntry,
    /// The frame, if the write of the page has begun, as for shared memory. Otherwise the task has a count of
    /// the slot.
    begun: Option<Pfn>,
}

/// The numbers of pages of a flush.
#[derive(Default)]
pub(super) struct Flushed {
    /// Written already, so that the frame is free.
    pub stored: u64,
    /// Being written.
    pub writing: u64,
}

impl<'e, P: Platform> Swapper<'e, P> {
    pub fn new(engine: &'e Engine<P>) -> Self {
        let is_full = !engine.swap().has_open_device();
        Swapper { engine, slots: None, is_full, out: ArrayVec::new(), writing: 0 }
    }

    /// Returns true if there may be room for a page.
    pub fn has_room(&self) -> bool {
        !self.is_full
    }

    /// Returns the number of pages that are about to be written or being written.
    pub fn pending(&self) -> u64 {
        self.out.len() as u64 + self.writing
    }

    /// Takes anonymous pages, at most [`BATCH`], away from all page tables, unless they are in use. Returns
    /// the fate of each page. The caller holds no lock, and has written the pages of the call before by
    /// [`flush`](Self::flush).
    pub fn swap_out(&mut self, pages: &[Page<'_, P>]) -> ArrayVec<Fate, BATCH> {
        let mut fates = ArrayVec::new();
        while fates.len() < pages.len() {
            self.allocate_slots();
            let Some(slots) = &mut self.slots else { break };
            let rest = &pages[fates.len()..];
            let rest = &rest[..rest.len().min(slots.len() as usize)];
            unmap_some(self.engine, rest, slots, &mut self.out, &mut fates);
        }
        fates.extend(pages[fates.len()..].iter().map(|_| Fate::Stays));
        fates
    }

    /// Swaps out a page of shared memory that no entry maps any more, unless it is in use. Returns its fate.
    /// The caller holds no lock, and calls [`flush`](Self::flush) before the list of pages is full.
    pub fn swap_out_shared(&mut self, mapping: &Counted<Mapping<P>>, index: PageIndex, pfn: Pfn) -> Fate {
        self.allocate_slots();
        let Some(slots) = &mut self.slots else { return Fate::Stays };
        match Mapping::swap_out(mapping, index, pfn, slots) {
            None => Fate::Stays,
            Some(SwappedOut::Zeroes) => Fate::Gone,
            Some(SwappedOut::Slot(entry)) => {
                self.out.push(Out { entry, begun: Some(pfn) });
                Fate::Cached
            }
        }
    }

    /// Returns true if [`flush`](Self::flush) must be called before another page of shared memory is swapped
    /// out.
    pub fn must_flush(&self) -> bool {
        self.out.is_full()
    }

    /// Allocates slots for the next pages, if none is left.
    fn allocate_slots(&mut self) {
        if self.slots.as_ref().is_none_or(SlotRun::is_empty) && !self.is_full {
            self.slots = self.engine.swap().allocate(BATCH as u32).ok();
            self.is_full = self.slots.is_none();
        }
    }

    /// Writes the collected pages. The caller holds no lock.
    pub fn flush(&mut self, shadow: Shadow) -> Flushed {
        let swap = self.engine.swap();
        let mut request: Option<SwapWrite<P>> = None;
        for out in &self.out {
            let begun = out.begun.or_else(|| swap.mark_written(out.entry));
            debug_assert!(begun.is_some(), "a page was written by another task");
            let Some(pfn) = begun else { continue };
            // The slots are consecutive in most cases, so few requests are full.
            if let Some(full) = swap.add_written(&mut request, out.entry, pfn, shadow) {
                swap.send_write(full);
            }
        }
        if let Some(request) = request {
            swap.send_write(request);
        }
        let mut flushed = Flushed::default();
        for Out { entry, begun } in self.out.drain(..) {
            // A hint for shared memory: the page may have returned, and the slot may have another page.
            match swap.is_stored(entry) {
                true => flushed.stored += 1,
                false => flushed.writing += 1,
            }
            if begun.is_none()
                && let Some(pfn) = swap.release(entry)
            {
                self.engine.memory().put_frame(pfn);
            }
        }
        self.writing += flushed.writing;
        flushed
    }
}

impl<P: Platform> Drop for Swapper<'_, P> {
    fn drop(&mut self) {
        debug_assert!(self.out.is_empty(), "pages were swapped out and not written");
    }
}

/// A page that no entry maps any more.
enum Unmapped {
    /// Swap entries name the slot, which has the page in the cache. The caller has a count.
    Swapped(SwapEntry),
    /// The page was full of zeroes.
    Zeroes,
}

/// Does the steps 1 to 5 for pages, for which there are slots. Stops after some pages if they have many
/// entries or homes. Appends the fate of each page that was visited, and each swap entry of which the caller
/// has a count.
fn unmap_some<'b, P: Platform>(
    engine: &Engine<P>,
    pages: &'b [Page<'b, P>],
    slots: &mut SlotRun<P>,
    out: &mut ArrayVec<Out, BATCH>,
    fates: &mut ArrayVec<Fate, BATCH>,
) {
    let homes = Homes::try_lock(pages.iter().map(home_of));
    let mut flushes = Flushes::new();
    // The locks of the frames whose entries are markers.
    let mut marked = ArrayVec::<Option<WordGuard<'_, P>>, BATCH>::new();
    for page in &pages[..homes.pages()] {
        if flushes.is_full() {
            break;
        }
        marked.push(mark(page, &homes, &mut flushes));
    }
    flushes.finish(engine.memory());
    for (page, marked) in pages.iter().zip(&mut marked) {
        let unmapped = match (marked.take(), home_of(page).and_then(|home| homes.of(home))) {
            (Some(_identity), Some(lookups)) => replace(engine, page, lookups, slots),
            _ => None,
        };
        fates.push(match unmapped {
            Some(Unmapped::Swapped(entry)) => {
                out.push(Out { entry, begun: None });
                Fate::Cached
            }
            Some(Unmapped::Zeroes) => Fate::Gone,
            None => Fate::Stays,
        });
    }
}

/// Returns the home of an anonymous page.
fn home_of<'b, P: Platform>(page: &'b Page<'_, P>) -> Option<&'b RmapRoot<P, AnonPages>> {
    match page.home() {
        AnyRmapRoot::Anon(home) => Some(home),
        AnyRmapRoot::File(_) => None,
    }
}

/// Does step 1, without the flush. Returns the lock of the frame, or `None` if the page stays.
fn mark<'m, P: Platform>(
    page: &'m Page<'_, P>,
    homes: &'m Homes<'_, P, AnonPages>,
    flushes: &mut Flushes<'m, P>,
) -> Option<WordGuard<'m, P>> {
    let identity = page.try_lock()?;
    let lookups = homes.of(home_of(page)?)?;
    let places = || lookups.mappers(PageRange::one(page.index()));
    let frame = page.frame();
    // A task that adds a probe waits for this section, and then finds the markers.
    let _rcu = P::rcu_read();
    // A reference besides those of the entries and of this task: the page is pinned, in transfer, or in the
    // swap cache. The exact check follows in `replace`; this one keeps pages in use mapped.
    if !page.is_at_home() || frame.refs() != frame.maps() + 1 || places().any(|place| stays(&place)) {
        return None;
    }
    for place in places() {
        flushes.mark(place.vm, VirtAddr::new(place.range.start()), page.pfn());
    }
    Some(identity)
}

/// Returns true if the page at this place must stay: in locked or droppable memory, and if the page of a file
/// has probes, because a probe that is removed is searched in all copies.
fn stays<P: Platform>(place: &Mapper<'_, P, Vma<P>>) -> bool {
    let (vma, at) = (place.vma, place.range.start());
    let is_probed =
        |file: &Counted<File<P>>| file.mapping().probes().any::<P>(PageRange::one(vma.pgoff_of(at)));
    vma.flags().intersects(VmFlags::LOCKED | VmFlags::DROPPABLE) || vma.object().file().is_some_and(is_probed)
}

/// Does the steps 2 to 5 for a page whose frame is locked. Returns `None` if the page stays.
fn replace<P: Platform>(
    engine: &Engine<P>,
    page: &Page<'_, P>,
    lookups: &RmapReadGuard<'_, P, AnonPages>,
    slots: &mut SlotRun<P>,
) -> Option<Unmapped> {
    let (pfn, frame) = (page.pfn(), page.frame());
    // No task can take a new reference except through the reference of this task: the only entry that may be
    // left is that of a pinned page.
    let alone = frame.refs() == 1;
    let places = || lookups.mappers(PageRange::one(page.index()));
    let unmapped = match alone {
        false => None,
        // The page of zeroes would look like a page of the file.
        true if places().all(|place| place.vma.is_anonymous()) && is_zero(engine.platform(), pfn) => {
            Some(Unmapped::Zeroes)
        }
        true => slots.insert(pfn).map(Unmapped::Swapped),
    };
    for place in places() {
        let address = VirtAddr::new(place.range.start());
        // Called under the table's lock, as in `rmap/migrate.rs`. A page in the swap cache is never writable.
        let flags = || place.vma.flags();
        let may_write = unmapped.is_none();
        let rights = || (vma_pte_flags(flags()), may_write && flags().contains(VmFlags::WRITE));
        match &unmapped {
            Some(Unmapped::Zeroes) => place.vm.end_migration_by_zero(|| rights().0, address, pfn),
            Some(Unmapped::Swapped(entry))
                if place.vm.end_migration_by_swap(address, pfn, entry.payload()) => {}
            _ => place.vm.end_migration_entry(rights, address, Level::Pte, pfn, pfn),
        }
    }
    unmapped
}
