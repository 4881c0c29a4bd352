//! Taking pages out of a cache that nobody uses and that the store behind the file has as well.
//!
//! ```text
//! mark      pages with no reference but the cache's, and clean, are marked as leaving: a look from now on does not find them
//! wait      a grace period: a task that had found one has a reference by now, or has given up
//! settle    still no other reference, and clean? it goes. Else it is shown again
//! ```
//!
//! As in `truncate.rs`, but nothing is zapped: an entry that maps a page holds a reference, so such a page
//! stays, and so does one that is pinned, locked or being written back. The frame says whether the page was
//! written, and is believed once no other reference is left: a store, by whatever way, has one until the
//! frame is marked as dirty.
//!
//! All under the invalidate lock held for writing, which is tried for: pagers run with it held for reading. A
//! fault that wants a hidden page waits for it, for one grace period, and then finds the page, or reads it
//! again.

use super::{
    Mapping,
    radix::Stay,
    truncate::grace_period,
    word::{LEAVING, Word},
};
use crate::{Pfn, platform::Platform};
use arrayvec::ArrayVec;
use core::ops::ControlFlow;
use freehold_sync::{
    RwSemWriteGuard,
    atomic::{
        CHECKED,
        Ordering::{Relaxed, Release},
    },
};
use freehold_vmspace::{PageIndex, PageRange};

/// Pages that wait for one grace period together: a fault that wants to fill a page waits no longer than that
/// takes.
const BATCH: u64 = if CHECKED { 2 } else { 1 << 12 };
/// Pages looked at in one hold of the lock.
const LOOKS: u64 = 8 * BATCH;

/// Frames given back together.
type Free = ArrayVec<Pfn, 64>;

impl<P: Platform> Mapping<P> {
    /// Takes pages of this range out of the cache that need not be there: clean, mapped nowhere, and used by
    /// nobody. The next access reads them from the store again. Returns how many went. What
    /// POSIX_FADV_DONTNEED and /proc/sys/vm/drop_caches do.
    ///
    /// Nothing goes of shared memory, which has no other copy, nor of a file whose pages are the storage
    /// itself. When somebody is just reading or writing back pages of this file the rest of the range stays:
    /// nobody waits here for a pager.
    ///
    /// # Locks
    ///
    /// The invalidate lock for writing, tried, and let go of after some thousand pages; with it held, a grace
    /// period each time. The caller holds no lock of the engine and is in no read section.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageRange, engine::{Config, Engine}, object::{Mapping, Zeroes}};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// let file = Mapping::new(&engine, Zeroes, 8 * PAGE_SIZE, false).unwrap();
    /// file.read_at(0, &mut [0; 3 * PAGE_SIZE as usize]).unwrap();
    /// file.write_at(PAGE_SIZE, b"new").unwrap();
    ///
    /// // What was only read goes; what was written stays until it is written back.
    /// assert_eq!(file.drop_clean(PageRange::ALL), 2);
    /// file.write_back(PageRange::ALL).unwrap();
    /// assert_eq!(file.drop_clean(PageRange::ALL), 1);
    /// ```
    pub fn drop_clean(&self, pages: PageRange) -> u64 {
        self.drop_clean_up_to(u64::MAX, pages)
    }

    /// As [`drop_clean`](Self::drop_clean), but no more than `most` pages.
    pub(crate) fn drop_clean_up_to(&self, most: u64, pages: PageRange) -> u64 {
        let (mut at, mut dropped) = (pages.start, 0);
        while at < pages.end && dropped < most && self.has_store() {
            let Some(pages_go) = self.invalidate.try_write() else { break };
            let (marked, end) =
                self.mark_unused(&pages_go, PageRange::new(at, pages.end), BATCH.min(most - dropped));
            if marked {
                grace_period::<P>();
                dropped += self.drop_unused(&pages_go, PageRange::new(at, end));
                self.prune(&pages_go, PageRange::new(at, end));
            }
            at = end;
        }
        dropped
    }

    /// Hides up to `most` pages from lookups that nobody seems to use; returns whether there was any, and how
    /// far it has looked. Under `invalidate` held for writing.
    fn mark_unused(
        &self,
        pages_go: &RwSemWriteGuard<'_, P>,
        pages: PageRange,
        most: u64,
    ) -> (bool, PageIndex) {
        let (mut marked, mut looks) = (0, 0);
        let end = self.cache.each(Stay::locked(pages_go), pages, |index, word| {
            if marked == most || looks == LOOKS {
                return ControlFlow::Break(index);
            }
            looks += 1;
            // Relaxed, both: as in `mark_leaving`.
            if Word(word.load(Relaxed)).visible().is_some_and(|pfn| self.is_unused(pfn)) {
                word.fetch_or(LEAVING, Relaxed);
                marked += 1;
            }
            ControlFlow::Continue(())
        });
        (marked > 0, end.break_value().unwrap_or(pages.end))
    }

    /// Whether nobody but the cache has the page, and it is clean. Lasts only for a page that nobody can
    /// find.
    fn is_unused(&self, pfn: Pfn) -> bool {
        let frame = self.engine().platform().frame(pfn);
        // The references first, with acquire: earlier holders have marked the page as dirty if they wrote it.
        frame.refs() == 1 && !frame.is_dirty()
    }

    /// Drops the marked pages of `pages` that are unused still, and shows the others again; returns how many
    /// went. After the grace period, in the same hold of `invalidate`.
    fn drop_unused(&self, pages_go: &RwSemWriteGuard<'_, P>, pages: PageRange) -> u64 {
        let (mut count, mut free) = (0, Free::new());
        let _: ControlFlow<()> = self.cache.each(Stay::locked(pages_go), pages, |_, word| {
            // Relaxed: as in `drop_leaving`.
            let old = Word(word.load(Relaxed));
            let Some(pfn) = old.hidden() else { return ControlFlow::Continue(()) };
            if self.is_unused(pfn) {
                word.store(0, Relaxed);
                let frame = self.engine().platform().frame(pfn);
                frame.leave_home();
                if frame.put() {
                    free.push(pfn);
                }
                count += 1;
            } else {
                // Release pairs with the acquire of lookups.
                word.store(Word::present(pfn).0, Release);
            }
            if free.is_full() {
                self.engine().memory().free_frames(&mut free);
            }
            ControlFlow::Continue(())
        });
        self.engine().memory().free_frames(&mut free);
        count
    }
}
