//! What is done to all entries of one page, wherever they are: taken away, write-protected, asked whether they were used.
//!
//! The names are Linux's. Each is found by the number of a frame, which may hold another page, or none, by the time it is looked at;
//! then there is nothing to be done.

use super::{
    tree::{Mapper, VmaTree, Which},
    walk::{AnyRmapRoot, find_rmap_root},
};
use crate::{
    Pfn, VirtAddr,
    engine::Engine,
    object::{cleaned, keep_dirty},
    platform::Platform,
    space::{AddressSpace, RssKind, zap::SpaceTlb},
    vma::flags::VmFlags,
};
use freehold_pagetable::{Gather, Kind, Level, MarkerKind, NotCached, Pte, PteFlags, UnmappedFrame};

/// Why nothing was done to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageError {
    /// The frame holds no page of a program or file, or it is just changing.
    NoPage,
    /// The page is anonymous: what is in it is nowhere else.
    Anonymous,
    /// Somebody changes which VMAs may map the page, and it was not to be waited for.
    Contended,
}

impl core::fmt::Display for PageError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            PageError::NoPage => "no page",
            PageError::Anonymous => "an anonymous page",
            PageError::Contended => "the reverse map is being changed",
        })
    }
}

impl core::error::Error for PageError {}

impl<P: Platform> Engine<P> {
    /// Takes the page of a file that `pfn` holds out of all page tables but those of locked memory; returns how many entries went.
    /// That it was written by one of them is known to the file afterwards. The page stays in its file's cache, and faults may
    /// bring entries back at once.
    ///
    /// # Errors
    ///
    /// No page, or an anonymous one, which would be lost.
    ///
    /// # Locks
    ///
    /// The frame's lock; the i_mmap lock for reading; tables' locks one at a time. The caller holds none.
    pub fn try_to_unmap(&self, pfn: Pfn) -> Result<u64, PageError> {
        self.count_file_places(pfn, |place, address| {
            !place.vma.flags().contains(VmFlags::LOCKED)
                && place.space.take_entry(address, Level::Pte, pfn, Pte::NONE)
        })
    }

    /// Takes the right to write from every entry by which stores reach the page of a file that `pfn` holds: the next store faults,
    /// and says so. Returns how many entries could be, or had been, written through; if any was written, the file knows that the
    /// page is dirty. What [`write_back`](crate::object::Mapping::write_back) does before it writes a page.
    ///
    /// # Errors
    ///
    /// No page, or an anonymous one, of which nobody keeps another copy.
    ///
    /// # Locks
    ///
    /// As [`try_to_unmap`](Self::try_to_unmap).
    pub fn mkclean(&self, pfn: Pfn) -> Result<u64, PageError> {
        self.count_file_places(pfn, |place, address| {
            place.vma.flags().contains(VmFlags::SHARED) && place.space.clean_entry(address, pfn)
        })
    }

    /// How many of the entries that map the page in `pfn` were used since this was last asked. A huge page is asked as one.
    ///
    /// Nothing is flushed: a processor that remembers a translation goes on using it without a word in the entry, so a page in use may
    /// count as unused once, which costs a guess and nothing else. A flush would cost more than the guess is worth.
    ///
    /// # Errors
    ///
    /// No page; or the reverse map is contended: who looks for memory to take back goes on to another page.
    ///
    /// # Locks
    ///
    /// The home's lock for reading, which is tried for and not waited for; tables' locks one at a time.
    pub fn referenced(&self, pfn: Pfn) -> Result<u64, PageError> {
        // No reference is taken: an entry that maps the frame, under its table's lock, maps this page if it lies where the page
        // may be mapped, and if it is another page by now, that was used.
        if !self.platform().has_frame(pfn) {
            return Err(PageError::NoPage);
        }
        let (home, index) = find_rmap_root::<P>(self.platform().frame(pfn)).ok_or(PageError::NoPage)?;
        let count = match &home {
            AnyRmapRoot::Anon(home) => count_accessed(home, index, pfn),
            AnyRmapRoot::File(home) => count_accessed(home, index, pfn),
        };
        count.ok_or(PageError::Contended)
    }

    /// For how many of the places where the page of a file in `pfn` may be mapped `f` says yes, with the frame locked.
    fn count_file_places(
        &self,
        pfn: Pfn,
        f: impl Fn(&Mapper<'_, P>, VirtAddr) -> bool,
    ) -> Result<u64, PageError> {
        let page = self.page(pfn).ok_or(PageError::NoPage)?;
        let AnyRmapRoot::File(_) = page.home else { return Err(PageError::Anonymous) };
        if page.level != Level::Pte {
            // A huge page of a pool stays where it is mapped: nobody wants it back.
            return Ok(0);
        }
        let _identity = self.lock_frame(pfn);
        if !page.is_at_home() {
            return Err(PageError::NoPage);
        }
        let mut count = 0;
        page.each_place(|place| count += u64::from(f(place, VirtAddr::new(place.range.start))));
        Ok(count)
    }
}

/// `None`: the lock cannot be had at once.
fn count_accessed<P: Platform, W: Which>(home: &VmaTree<P, W>, index: u64, pfn: Pfn) -> Option<u64> {
    let lookups = home.try_read()?;
    let used = lookups
        .mappers(index..index + 1)
        .filter(|place| place.space.take_accessed(VirtAddr::new(place.range.start), pfn));
    Some(used.count() as u64)
}

impl<P: Platform> AddressSpace<P> {
    /// Puts `instead`, nothing or a marker, in the place of the entry at `address` if that maps `pfn`, of which the caller has a
    /// reference; returns whether it did. No processor uses the old entry any more then, and a store through it is known to
    /// the frame.
    pub(crate) fn take_entry(
        &self,
        address: VirtAddr,
        level: Level,
        pfn: Pfn,
        instead: Pte<P::Format>,
    ) -> bool {
        let tlb = SpaceTlb { space: self };
        let mut gather: Gather<'_, _, 1> = Gather::new(&tlb, &self.gathers);
        let taken = self.with_entry(address, level, pfn, |leaf| {
            // What a userfaultfd has write-protected stays so when it comes again.
            let marked = instead.is_none() && leaf.pte().flags().contains(PteFlags::UFFD_WP);
            let instead = if marked { Pte::marker(MarkerKind::UffdWp, 0) } else { instead };
            let old = leaf.replace(instead, &mut gather);
            let frame = self.platform().frame(pfn);
            if level == Level::Pte {
                self.counters.count_page(RssKind::of(frame), -1);
            }
            frame.sub_map();
            let what = UnmappedFrame::new(pfn, level);
            let written = !frame.is_anon() && old.flags().contains(PteFlags::DIRTY);
            if written {
                // At once, and again after the flush: as in `cleaned` and `keep_dirty`.
                frame.set_dirty();
            }
            gather.unmapped(if written { what.dirty() } else { what });
        });
        gather.finish();
        taken.is_some()
    }

    /// Makes the next store through the entry at `address` fault, if that maps `pfn`; returns whether anything was changed.
    fn clean_entry(&self, address: VirtAddr, pfn: Pfn) -> bool {
        let tlb = SpaceTlb { space: self };
        let mut gather: Gather<'_, _, 1> = Gather::new(&tlb, &self.gathers);
        let changed = self.with_entry(address, Level::Pte, pfn, |leaf| {
            let (old, new) = leaf.change(&mut gather, |pte| cleaned(self.platform(), pte));
            if old.flags().contains(PteFlags::DIRTY) {
                keep_dirty(self.platform(), pfn, &mut gather);
            }
            old != new
        });
        gather.finish();
        changed == Some(true)
    }

    /// Whether the entry at `address` maps `pfn` and was used; from now on it was not.
    fn take_accessed(&self, address: VirtAddr, pfn: Pfn) -> bool {
        if let Some(table) = self.table.pmd_table(self.platform(), address) {
            // A huge page is not split for a question.
            let is_huge = |pte: Pte<P::Format>| match pte.kind(Level::Pmd) {
                Kind::Leaf { pfn: first, .. } => first.add(address.frame_in_leaf(Level::Pmd)) == pfn,
                Kind::None | Kind::Table { .. } | Kind::Marker { .. } => false,
            };
            if is_huge(table.peek(address)) {
                let mut guard = table.lock();
                if is_huge(guard.get(address)) {
                    // Not flushed, here and below: see `Engine::referenced`.
                    return was_accessed(
                        guard.change(address, &mut NotCached, |pte| unused(pte, Level::Pmd)),
                    );
                }
            }
        }
        let Some(table) = self.table.pte_table(self.platform(), address) else { return false };
        let mut guard = table.lock();
        match guard.get(address).kind(Level::Pte) {
            Kind::Leaf { pfn: found, .. } if found == pfn => {
                was_accessed(guard.change(address, &mut NotCached, |pte| unused(pte, Level::Pte)))
            }
            _ => false,
        }
    }
}

fn unused<F: freehold_pagetable::Format>(pte: Pte<F>, level: Level) -> Pte<F> {
    pte.with_flags(level, pte.flags() - PteFlags::ACCESSED)
}

fn was_accessed<F: freehold_pagetable::Format>((old, _): (Pte<F>, Pte<F>)) -> bool {
    old.flags().contains(PteFlags::ACCESSED)
}
