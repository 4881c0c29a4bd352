//! Blocks of shared memory: pages that enter the cache together, and that are mapped together until a part of
//! the block is removed.
//!
//! ```text
//! no page of the block is cached  -> every page inside the file enters the cache; each word holds the order
//! part of the block is cut off    -> smaller blocks remain, unmapped until a fault maps them
//! ```
//!
//! Linux keeps a block in one piece (a large folio). Here each page has its own word and record, and code
//! that removes, copies or moves a page does not need to know about blocks. The order in a word is a hint for
//! a fault that maps the block: pages of the block may be missing.
//!
//! `fault/shmem_mthp.rs` decides which sizes a fault requests ([`Wanted`]), and `change/truncate.rs` splits
//! blocks. A block is added under the invalidate lock held for writing, so that no other task adds a page of
//! the block in the meantime. `in_place.rs` uses [`add_run`](Mapping::add_run) for files without an MMU.
//! `tests/huge/shared.rs` has the tests.

use super::{
    entry::Word,
    radix::{Locked, Stay},
};
use crate::{
    file::{
        kinds::shmem_huge::{SharedBlocks, Sizes, largest_first},
        mapping::{FillError, Mapping},
        read::RunReads,
        readahead::AccessOrder,
    },
    platform::Platform,
};
use core::ops::ControlFlow;
use freehold_sync::{
    RwSemWriteGuard,
    atomic::Ordering::{Acquire, Relaxed, Release},
};

use freehold_vmspace::{PageCount, PageIndex, PageRange, Run};

/// Number of pages in the largest block.
const MAX_BLOCK: PageCount = PageCount::of_bytes(SharedBlocks::LARGEST);

/// A page that is to be added to its file's cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The index of the page.
    pub index: PageIndex,
    /// The sizes of blocks that are allowed around the page.
    pub sizes: Sizes,
    /// The order of access that was announced for the mapping.
    pub order: AccessOrder,
    /// The need of the fault.
    pub need: Need,
    /// The NUMA policy of the mapping, which decides about pages of pools. 0 is the policy of the task.
    pub policy: u64,
}

/// The need of a fault that cannot map its page yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The page is not in the cache.
    Page,
    /// The page is in the cache and has the mark of readahead: the next window must be read.
    NextWindow,
    /// The page is in the cache, and the pager has not permitted changes of it.
    Permission,
}

impl Wanted {
    /// Requests a single page without a block.
    pub fn alone(index: PageIndex) -> Self {
        Wanted::new(index, Sizes::default())
    }

    /// Requests a page. Blocks of these sizes are allowed around the page.
    pub fn new(index: PageIndex, sizes: Sizes) -> Self {
        Wanted { index, sizes, order: AccessOrder::Any, need: Need::Page, policy: 0 }
    }

    /// Iterates over the blocks that are allowed in a file that ends at `end`, largest first.
    pub fn blocks(self, end: PageIndex) -> impl Iterator<Item = PageRange> {
        let Wanted { index, sizes, .. } = self;
        let huge = block_around(index, MAX_BLOCK).end <= end;
        largest_first(sizes.all()).filter_map(move |bytes| {
            let block = block_around(index, PageCount::of_bytes(bytes));
            let within = sizes.within & bytes != 0 && block.end <= end;
            let within_huge = sizes.within_huge & bytes != 0 && huge;
            (sizes.always & bytes != 0 || within || within_huge).then_some(block)
        })
    }
}

/// Returns the aligned block of `pages` pages that contains the page `index`.
pub(crate) fn block_around(index: PageIndex, pages: PageCount) -> PageRange {
    PageRange::at(PageIndex::new(index.get() & !(pages.get() - 1)), pages)
}

impl<P: Platform> Mapping<P> {
    /// Brings a page inside the file into the cache, unless the page is already there. Adds the largest
    /// allowed block around the page that has no page in the cache yet.
    ///
    /// # Errors
    ///
    /// Fails like [`fill`](Self::fill). Without memory for a block, adds a smaller block or a single page
    /// instead.
    ///
    /// # Locks
    ///
    /// The locks of `fill`. If a block is allowed, first the invalidate lock for writing.
    pub(crate) fn fill_wanted(&self, wanted: Wanted) -> Result<(), FillError> {
        let might = |block| self.is_absent(Stay::within::<P>(&P::rcu_read()), block);
        if !wanted.blocks(self.end()).any(might) || !self.fill_block(wanted)? {
            self.fill_by(wanted.index, wanted.policy)?;
        }
        Ok(())
    }

    /// Adds the largest allowed block. Returns false if none was added.
    fn fill_block(&self, wanted: Wanted) -> Result<bool, FillError> {
        let pages_stay = self.invalidate.write_killable()?;
        let end = self.end();
        let absent = |block: &PageRange| {
            self.is_absent(Stay::locked(&pages_stay), *block) && !self.is_discarding(*block)
        };
        let blocks = wanted.blocks(end).filter(|_| wanted.index < end).filter(absent);
        for block in blocks {
            let inside = PageRange::new(block.start, block.end.min(end));
            let Ok(added) = self.add_run(&pages_stay, inside, block.len().get().ilog2(), wanted.policy)
            else {
                continue;
            };
            drop(pages_stay);
            // If a page could not be read, the caller fills the single page.
            return Ok(added.is_none_or(|reads| self.finish_run(reads).is_ok()));
        }
        Ok(false)
    }

    /// Adds pages in contiguous frames to the cache, as part of a block of this order. None of the pages may
    /// be in the cache. The frames come from the nodes of the NUMA policy of a mapping. Returns `None` if the
    /// pages are there, or their reads, which the caller passes to [`finish_run`](Self::finish_run) after it
    /// has released the lock.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory, or no contiguous memory. The cache is then unchanged.
    pub(in crate::file) fn add_run(
        &self,
        pages_go: &RwSemWriteGuard<'_, P>,
        pages: PageRange,
        order: u32,
        policy: u64,
    ) -> Result<Option<RunReads<P>>, FillError> {
        let charge = self.charge_pages(pages.len())?;
        let run =
            Run::alloc_cache(self.files().memory(), self.cache_page(), pages.start, pages.len(), policy)?;
        if !self.pager().reads_zeroes() {
            let reads = self.start_run(pages_go, pages, run, order)?;
            charge.keep();
            return Ok(Some(reads));
        }
        let made = pages.into_iter().try_for_each(|index| self.cache_word(pages_go, index).map(drop));
        if made.is_err() {
            self.prune(pages_go, pages);
            made?;
        }
        run.zero();
        charge.keep();
        for (pfn, index) in run.into_frames().zip(pages) {
            let word = self.cache_word(pages_go, index);
            debug_assert!(word.is_ok(), "no word for a page, although it was made above");
            if let Ok(word) = word {
                self.invalidate.came(1);
                self.files().platform().frame(pfn).enter_cache();
                // Release pairs with the acquire in `find`, as for single pages. The lock is held for
                // writing, so no other task changes the word.
                word.store(Word::present(pfn).in_block(order).0, Release);
            }
        }
        Ok(None)
    }

    /// Returns the block that a page in the cache is part of. The block of a single page is the page itself.
    /// Returns `None` if the page is not in the cache.
    pub(crate) fn block_of(&self, rcu: &P::RcuGuard, index: PageIndex) -> Option<PageRange> {
        // Acquire pairs with the release that published the page, as in `find`.
        let word = Word(self.cache.get(Stay::within::<P>(rcu), index)?.load(Acquire));
        word.visible().map(|_| block_around(index, PageCount::block(word.order())))
    }

    /// Splits the block that the page `at` is part of, because the pages `cut` are being removed. Does not
    /// unmap the block. Returns the block, or `None` if there is nothing to split.
    pub(crate) fn split_block(
        &self,
        pages_go: &impl Locked,
        at: PageIndex,
        cut: PageRange,
    ) -> Option<PageRange> {
        // Relaxed, here and below: words change under the lock, which is held for writing. A reader without
        // the lock sees the old block or the new one.
        let block = block_around(at, PageCount::block(Word(self.word(pages_go, at)?.load(Relaxed)).order()));
        if cut.start <= block.start && block.end <= cut.end {
            return None;
        }
        let before = PageRange::new(block.start, cut.start.max(block.start));
        let parts = [before, PageRange::new(cut.end.min(block.end), block.end)];
        let _: ControlFlow<()> = self.cache.each(Stay::locked(pages_go), block, |index, word| {
            let order =
                parts.iter().find(|part| part.contains(index)).map_or(0, |part| largest(index, *part));
            let old = Word(word.load(Relaxed));
            if old.held().is_some() {
                word.store(old.in_block(order).0, Relaxed);
            }
            ControlFlow::Continue(())
        });
        Some(block)
    }
}

/// Returns the order of the largest block around `index` that lies in `part`.
fn largest(index: PageIndex, part: PageRange) -> u32 {
    let fits = |order: &u32| {
        let block = block_around(index, PageCount::block(*order));
        part.start <= block.start && block.end <= part.end
    };
    (0..=MAX_BLOCK.get().ilog2()).rev().find(fits).unwrap_or(0)
}
