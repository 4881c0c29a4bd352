//! Blocks of shared memory: pages that come into the cache together, and are mapped together as long as they
//! are whole.
//!
//! ```text
//! nothing in the block   -> a frame for each of its pages, as far as the file goes; each word says how many pages the block has
//! cut off, punched       -> what is left of it: smaller blocks, mapped nowhere until somebody asks for them
//! ```
//!
//! Linux has a block in one piece (a large folio). Here each page has a word and a record of its own, and
//! what takes, copies or moves a page needs to know of no block. What a word says of its block is a hint for
//! a fault that maps it: pages of it may be missing.

use super::{
    entry::Word,
    radix::{Locked, Stay},
};
use crate::{
    file::{
        kinds::shmem_huge::{SharedBlocks, Sizes, largest_first},
        mapping::{FillError, Mapping},
    },
    platform::Platform,
};
use core::ops::ControlFlow;
use freehold_sync::{
    RwSemWriteGuard,
    atomic::Ordering::{Acquire, Relaxed, Release},
};

use freehold_vmspace::{PageCount, PageIndex, PageRange, Run};

/// Pages of the largest block.
const MOST: PageCount = PageCount::of_bytes(SharedBlocks::LARGEST);

/// A page that is to come into its file's cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Its number.
    pub index: PageIndex,
    /// The blocks that may come with it.
    pub sizes: Sizes,
}

impl Wanted {
    /// The page alone.
    pub fn alone(index: PageIndex) -> Self {
        Wanted { index, sizes: Sizes::default() }
    }

    /// The blocks, largest first, that may come into a file that ends at `end`.
    pub fn blocks(self, end: PageIndex) -> impl Iterator<Item = PageRange> {
        let Wanted { index, sizes } = self;
        let huge = block_around(index, MOST).end <= end;
        largest_first(sizes.all()).filter_map(move |bytes| {
            let block = block_around(index, PageCount::of_bytes(bytes));
            let within = sizes.within & bytes != 0 && block.end <= end;
            let within_huge = sizes.within_huge & bytes != 0 && huge;
            (sizes.always & bytes != 0 || within || within_huge).then_some(block)
        })
    }
}

/// The block of so many pages that a page lies in.
pub(crate) fn block_around(index: PageIndex, pages: PageCount) -> PageRange {
    PageRange::at(PageIndex::new(index.get() & !(pages.get() - 1)), pages)
}

impl<P: Platform> Mapping<P> {
    /// Brings a page inside the file into the cache, unless it is there, and the largest block with it that
    /// may come and has room.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill). Without memory for a block a smaller one comes, or the page alone.
    ///
    /// # Locks
    ///
    /// As `fill`; where a block may come, the invalidate lock for writing before.
    pub(crate) fn fill_wanted(&self, wanted: Wanted) -> Result<(), FillError> {
        let might = |block| self.is_absent(Stay::within::<P>(&P::rcu_read()), block);
        if !wanted.blocks(self.end()).any(might) || !self.fill_block(wanted)? {
            self.fill(wanted.index)?;
        }
        Ok(())
    }

    /// False: none came.
    fn fill_block(&self, wanted: Wanted) -> Result<bool, FillError> {
        let pages_stay = self.invalidate.write_killable()?;
        let end = self.end();
        let absent = |block: &PageRange| self.is_absent(Stay::locked(&pages_stay), *block);
        let mut blocks = wanted.blocks(end).filter(|_| wanted.index < end).filter(absent);
        Ok(blocks.any(|block| {
            let inside = PageRange::new(block.start, block.end.min(end));
            self.add_run(&pages_stay, inside, block.len().get().ilog2()).is_ok()
        }))
    }

    /// Puts pages, of which none is there, into the cache, in frames that follow each other, as their store
    /// has them; as part of a block of this order.
    ///
    /// # Errors
    ///
    /// No memory, or none in one piece, or a page could not be read; nothing happened.
    pub(in crate::file) fn add_run(
        &self,
        pages_go: &RwSemWriteGuard<'_, P>,
        pages: PageRange,
        order: u32,
    ) -> Result<(), FillError> {
        let charge = self.charge_pages(pages.len())?;
        let run = Run::alloc_cache(self.files().memory(), self.cache_page(), pages.start, pages.len())?;
        let read = run.frames().zip(pages).try_for_each(|(pfn, index)| {
            self.cache_word(pages_go, index)?;
            self.read(pages_go, index, pfn)
        });
        if read.is_err() {
            self.prune(pages_go, pages);
            return read;
        }
        charge.keep();
        for (pfn, index) in run.into_frames().zip(pages) {
            let word = self.cache_word(pages_go, index);
            debug_assert!(word.is_ok(), "the word was made above");
            if let Ok(word) = word {
                self.invalidate.came(1);
                self.files().platform().frame(pfn).enter_cache();
                // Release pairs with the acquire in `find`, as where single pages come. Nobody else changes
                // the word: the lock is held for writing.
                word.store(Word::present(pfn).in_block(order).0, Release);
            }
        }
        Ok(())
    }

    /// As [`has_page`](Self::has_page), with the block that the page is part of, which may be the page alone.
    pub(crate) fn block_of(&self, rcu: &P::RcuGuard, index: PageIndex) -> Option<PageRange> {
        // Acquire: as in `find`.
        let word = Word(self.cache.get(Stay::within::<P>(rcu), index)?.load(Acquire));
        word.visible().map(|_| block_around(index, PageCount::block(word.order())))
    }

    /// As for all of them, for the block that page `at` is part of, and without a look at the VMAs that map
    /// it. None: there is nothing to split.
    pub(crate) fn split_block(
        &self,
        pages_go: &impl Locked,
        at: PageIndex,
        cut: PageRange,
    ) -> Option<PageRange> {
        // Relaxed, here and below: words change under the lock, which is held for writing; a look without it
        // finds the old block or the new one.
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

/// The order of the largest block around `index` that lies in `part`.
fn largest(index: PageIndex, part: PageRange) -> u32 {
    let fits = |order: &u32| {
        let block = block_around(index, PageCount::block(*order));
        part.start <= block.start && block.end <= part.end
    };
    (0..=MOST.get().ilog2()).rev().find(fits).unwrap_or(0)
}
