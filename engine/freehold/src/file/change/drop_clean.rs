//! Taking pages out of a cache that nobody uses and that the store behind the file has as well.
//!
//! ```text
//! mark      a page that seems unused is marked as leaving: a look from now on does not find it
//! alone?    the cache gives its reference up, if that is the only one: no lookup raises the count any more
//! clean?    then it goes. Else it is shown again
//! ```
//!
//! Nothing is zapped, and nothing waited for: an entry that maps a page holds a reference, so such a page
//! stays, and so does one that is pinned, locked or being written back. A lookup that has just found the page
//! either has raised the count, or finds by that that the page is gone. The frame says whether the page was
//! written, and is believed once no other reference is left: a store, by whatever way, has one until the
//! frame is marked as dirty.
//!
//! All under the invalidate lock held for writing, which is tried for: pagers run with it held for reading. A
//! fault that comes to a page in between waits for it, and then finds the page, or reads it again.

use crate::{
    Pfn,
    file::{
        Mapping,
        cache::{
            entry::{LEAVING, Word},
            radix::Stay,
        },
    },
    platform::Platform,
};
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

/// Pages looked at in one hold of the lock: a fault that wants to fill a page waits no longer than that
/// takes.
const LOOKS: u64 = if CHECKED { 2 } else { 1 << 12 };

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
    /// The invalidate lock for writing, tried, and let go of after some thousand pages. The caller holds no
    /// lock of the engine and is in no read section.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageRange, engine::{Config, Engine}, file::{Mapping, Zeroes}};
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
            let (gone, end) = self.drop_some(&pages_go, PageRange::new(at, pages.end), most - dropped);
            if gone > 0 {
                self.prune(&pages_go, PageRange::new(at, end));
            }
            (dropped, at) = (dropped + gone, end);
        }
        dropped
    }

    /// Drops up to `most` pages that nobody uses; returns how many went, and how far it has looked. Under
    /// `invalidate` held for writing.
    fn drop_some(&self, pages_go: &RwSemWriteGuard<'_, P>, pages: PageRange, most: u64) -> (u64, PageIndex) {
        let (mut count, mut looks, mut free) = (0, 0, Free::new());
        let end = self.cache.each(Stay::locked(pages_go), pages, |index, word| {
            if count == most || looks == LOOKS {
                return ControlFlow::Break(index);
            }
            looks += 1;
            // Relaxed, here and below: words change under the lock.
            let shown = word.load(Relaxed);
            let Some(pfn) = Word(shown).visible().filter(|pfn| self.seems_unused(*pfn)) else {
                return ControlFlow::Continue(());
            };
            // First: a fault that does not get the page waits for the lock, and does not look in vain.
            word.store(shown | LEAVING, Relaxed);
            if !self.take_unused(pfn) {
                // Release pairs with the acquire of lookups.
                word.store(shown, Release);
                return ControlFlow::Continue(());
            }
            word.store(0, Relaxed);
            count += 1;
            if self.files().platform().frame(pfn).put() {
                free.push(pfn);
            }
            if free.is_full() {
                self.files().memory().free_frames(&mut free);
            }
            ControlFlow::Continue(())
        });
        self.files().memory().free_frames(&mut free);
        self.pages_went(count);
        (count, end.break_value().unwrap_or(pages.end))
    }

    /// Whether nobody but the cache has the page, and it is clean. A hint: lookups find it.
    fn seems_unused(&self, pfn: Pfn) -> bool {
        let frame = self.files().platform().frame(pfn);
        frame.refs() == 1 && !frame.is_dirty()
    }

    /// Takes the cache's reference to a page that nobody else has, and that is clean.
    fn take_unused(&self, pfn: Pfn) -> bool {
        let frame = self.files().platform().frame(pfn);
        if !frame.try_leave_cache() {
            return false;
        }
        // Earlier holders have marked the page as dirty if they wrote it, and there can be no later ones.
        if frame.is_dirty() {
            frame.enter_cache();
            return false;
        }
        frame.clear_rmap();
        true
    }
}
