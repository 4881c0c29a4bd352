//! MADV_PAGEOUT, and the removal of discardable pages for an embedder that is short of memory.
//!
//! Four kinds of pages can be taken away. Pages that MADV_FREE freed and the program has not written since,
//! and pages of droppable memory, are *discardable*: the next read finds zeroes. Other pages of anonymous
//! memory, and private copies of pages of files, are swapped out, if there is a swap device. A page of a file
//! is unmapped. It leaves the cache if the backing store has the same contents. Otherwise a write begins, and
//! the page goes in a later call. As on Linux, pages that more than one entry maps stay.
//!
//! `freehold-vmspace/src/evict.rs` checks and removes entries under the lock of their table. Reclaim then
//! takes the unmapped pages of files away, and swaps anonymous pages out (`reclaim/evict.rs`), while no lock
//! of the address space is held. Reclaim finds a page by its frame. If the program has freed the frame in
//! between, the page that is there now may be swapped out instead.
//! As on Linux, the cache of a file stays unchanged unless the program owns the file or may write to it
//! ([`FileAccess::shows_cache`](crate::file::FileAccess::shows_cache)). `tests/pageout.rs` has the tests.

use super::{
    advice::{Advice, fail_on_hole},
    pages::may_advise,
};
use crate::{
    Pfn,
    error::MadviseError,
    file::{File, Object},
    platform::Platform,
    space::{AddressSpace, change::vma_ranges::VmaRanges},
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use arrayvec::ArrayVec;
use freehold_sync::atomic::CHECKED;
use freehold_vmspace::{Discardable, PAGE_SIZE, PageRange, UserRange};

/// Maximum number of runs of file pages that are unmapped in one hold of the lock.
const RUNS: usize = if CHECKED { 2 } else { 32 };
/// Maximum number of bytes of file pages that are unmapped in one hold of the lock.
const FILE_BYTES: u64 = if CHECKED { 4 * PAGE_SIZE } else { 32 << 20 };

/// Maximum number of pages that are swapped out after one hold of the lock.
const SWAPPED: usize = if CHECKED { 2 } else { 32 };

/// Returns true if private pages of the VMA can be swapped out.
fn may_swap<P: Platform>(vma: &Vma<P>) -> bool {
    let stays = VmFlags::SHARED | VmFlags::LOCKED | VmFlags::DROPPABLE | VmFlags::HUGETLB;
    let is_memory = vma.is_anonymous() || vma.object().file().is_some();
    is_memory && !vma.flags().intersects(stays)
}

/// Returns true if MADV_PAGEOUT changes the cache of a file.
fn shows_cache<P: Platform>(file: &File<P>) -> bool {
    let mapping = file.mapping();
    file.access().shows_cache && !mapping.is_direct() && mapping.huge_page_size().is_none()
}

impl<P: Platform> AddressSpace<P> {
    /// Applies MADV_PAGEOUT to the VMAs in `range`, one part after the other. The mmap lock is held for one
    /// part at a time. Each part is looked up again, and no earlier result is used again (hazard C-69).
    pub(super) fn page_out(&self, mut range: UserRange) -> Result<(), MadviseError> {
        let (mut no_holes, mut rounds) = (true, Rounds::new());
        // The private pages before this address were visited.
        let mut visited = 0;
        while !range.is_empty() {
            rounds.again::<P>()?;
            let guard = self.read_killable()?;
            let Some((vma, part)) = guard.first_range(range) else {
                no_holes = false;
                break;
            };
            no_holes &= part.start() == range.start();
            may_advise(self.platform(), vma, Advice::PageOut)?;
            let visits = self.engine.swap().has_open_device() && may_swap(vma);
            if visits && visited <= part.start() {
                let mut pages = ArrayVec::<Pfn, SWAPPED>::new();
                visited = self.vm.unshared_pages(part, &mut pages);
                drop(guard);
                self.engine.swap_out_unshared(&pages);
                continue;
            }
            let part = if visits { part.with_end(part.end().min(visited)) } else { part };
            let next = match vma.object() {
                Object::File(file) if shows_cache(file) => {
                    let mut runs = ArrayVec::<UserRange, RUNS>::new();
                    let part = part.with_end(part.end().min(part.start() + FILE_BYTES));
                    let next = self.vm.evict_cached(part, vma.keeps_wp(), &mut runs);
                    let (file, first) = (file.clone(), vma.pgoff_of(part.start()));
                    drop(guard);
                    for run in &runs {
                        let index = first + (run.start() - part.start()) / PAGE_SIZE;
                        self.engine.evict_unmapped(file.mapping(), PageRange::at(index, run.pages()));
                    }
                    next
                }
                _ => {
                    self.discard_unneeded(vma, part);
                    part.end()
                }
            };
            range = range.with_start(next);
        }
        fail_on_hole(no_holes)
    }

    /// Frees the discardable pages of `part` of `vma`, if it has any. Returns their number. The caller holds
    /// the mmap lock.
    fn discard_unneeded(&self, vma: &Vma<P>, part: UserRange) -> u64 {
        if !vma.is_anonymous() || vma.flags().contains(VmFlags::LOCKED) {
            return 0;
        }
        let which = match vma.flags().contains(VmFlags::DROPPABLE) {
            true => Discardable::All,
            false => Discardable::LazilyFreed,
        };
        self.vm.evict_discardable(part, which)
    }

    /// Frees all discardable pages: pages that MADV_FREE freed and the program has not written since, and
    /// pages of droppable memory (MAP_DROPPABLE). The next read of such a page finds zeroes. Returns the
    /// number of freed pages. Pages of locked memory, pinned pages and pages that a forked process also maps
    /// stay.
    ///
    /// For an embedder that is short of memory. MADV_PAGEOUT frees the same pages in a range. Some of the
    /// freed frames may stay on the free list of the calling CPU; see
    /// [`Engine::trim`](crate::engine::Engine::trim).
    ///
    /// # Locks
    ///
    /// The mmap lock for reading, for at most 1 GiB of addresses at a time. The call never waits for the
    /// lock: if a task holds it for writing, the rest of the pages stay. The caller holds no lock of the
    /// engine.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::Advice, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// for page in 0..3 {
    ///     space.write_memory(at + page * PAGE_SIZE, b"kept", AccessMode::Plain).unwrap();
    /// }
    /// space.madvise(at, 2 * PAGE_SIZE, Advice::Free).unwrap();
    /// space.write_memory(at, b"new", AccessMode::Plain).unwrap();
    /// assert_eq!(space.drop_discardable(), 1, "the first page was written again");
    /// assert_eq!(space.rss().anon, 2);
    /// ```
    ///
    /// A platform may call this function when memory is short:
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::Advice, fault::Access, platform::*, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 400 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let discardable = space.clone();
    /// // `Platform::memory_short` of this machine calls the function.
    /// let answer = move |_: &MemoryShortage<'_, _>| match discardable.drop_discardable() {
    ///     0 => ShortageAnswer::Fail,
    ///     _ => ShortageAnswer::Retry,
    /// };
    /// engine.platform().set_memory_short(Some(std::sync::Arc::new(answer)));
    /// space.madvise(at, 200 * PAGE_SIZE, Advice::PopulateWrite).unwrap();
    /// space.madvise(at, 200 * PAGE_SIZE, Advice::Free).unwrap();
    /// // The machine has 256 frames.
    /// space.madvise(at + 200 * PAGE_SIZE, 200 * PAGE_SIZE, Advice::PopulateWrite).unwrap();
    /// assert_eq!(space.rss().anon, 200);
    /// # engine.platform().set_memory_short(None);
    /// ```
    pub fn drop_discardable(&self) -> u64 {
        let (mut at, mut dropped) = (0, 0);
        loop {
            let Some(guard) = self.try_read() else { return dropped };
            let Some((vma, part)) = guard.next_part(at) else { return dropped };
            dropped += self.discard_unneeded(vma, part);
            at = part.end();
            P::cond_resched();
        }
    }
}
