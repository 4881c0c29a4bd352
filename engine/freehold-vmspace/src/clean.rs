//! Removing the right to write from entries of shared file mappings, so that the next store faults and is
//! recorded. `file/change/write_back.rs` of `freehold` cleans the mappings of a file in this way before it
//! writes the dirty pages to the backing store. `entry.rs` cleans single entries that the reverse map found.
//!
//! No store may be lost. A dirty entry makes the record of its frame dirty twice. The first time is before
//! the flush, for a write-back that finds the entry clean. The second time is after the flush: until then
//! processors may store through a cached translation, and a concurrent write-back may have cleared the
//! record's bit. `tests/files/cached_translations.rs` of `freehold` tests both.

use crate::{PAGE_SIZE, Pfn, UserRange, VirtAddr, VmGather, VmSpace, platform::Platform};
use core::ops::ControlFlow;
use freehold_pagetable::{
    ENTRIES, Kind, LeafGuard, Level, Pte, PteFlags, PteGuard, UnmappedFrame, VaRange, Visitor,
};

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Clears the right to write and the dirty bit of every entry of `range`, and flushes. The frames' dirty
    /// bits then say which pages were written.
    ///
    /// For a single page, the entry is first read without its table's lock. A walk over all mappings of a
    /// page usually finds no entry to clean, and concurrent walks then only read shared cache lines.
    pub fn clean(&self, range: UserRange) {
        let stores = PteFlags::WRITE | PteFlags::DIRTY;
        let at = VirtAddr::new(range.start());
        if range.len() == PAGE_SIZE && self.flush_unless(at, |pte| pte.flags().intersects(stores)) {
            return;
        }
        self.clean_locked(range);
    }

    /// Like [`clean`](Self::clean), but reads every entry under the lock of its table. A fault that is about
    /// to make an entry writable under this lock then either has done so, or has not examined yet whether it
    /// may.
    pub fn clean_locked(&self, range: UserRange) {
        let mut cleaner = Cleaner { platform: self.platform(), gather: self.gather(range.va()) };
        let walked = self.walk(range.va(), &mut cleaner);
        debug_assert!(walked.is_ok(), "file mappings have no large leaves to split");
        cleaner.gather.finish();
    }
}

/// Returns the entry without the right to write and without the dirty bit, so that the next store faults. If
/// the entry is dirty, sets the frame's dirty bit now, for a write-back that finds the entry clean. The
/// caller sets the bit [again](keep_dirty) after the flush.
pub(crate) fn cleaned<P: Platform>(platform: &P, pte: Pte<P::Format>) -> Pte<P::Format> {
    let Kind::Leaf { pfn, flags } = pte.kind(Level::Pte) else { return pte };
    if flags.contains(PteFlags::DIRTY) {
        platform.frame(pfn).set_dirty();
    }
    pte.with_flags(Level::Pte, flags - (PteFlags::WRITE | PteFlags::DIRTY))
}

/// Makes `gather` set the dirty bit of a frame again after its flush, for an entry that was dirty and was
/// [cleaned](cleaned). Until that flush, processors may store through cached translations, even after a
/// concurrent write-back. The caller holds the table's lock.
pub(crate) fn keep_dirty<P: Platform, const N: usize>(
    platform: &P,
    pfn: Pfn,
    gather: &mut VmGather<'_, P, N>,
) {
    platform.frame(pfn).get();
    gather.add_unmapped(UnmappedFrame::new(pfn, Level::Pte).dirty());
}

/// A visitor that removes the right to write and the dirty bit.
struct Cleaner<'s, P: Platform> {
    platform: &'s P,
    gather: VmGather<'s, P>,
}

impl<P: Platform> Visitor<P::Format, P> for Cleaner<'_, P> {
    fn unlocked(&mut self, _: VaRange) {
        self.gather.make_capacity(ENTRIES);
    }

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let platform = self.platform;
        // One bit for each entry. `change_each` may call the closure twice for an entry.
        let mut written = [0u64; ENTRIES.div_ceil(64)];
        table.change_each(range, &mut self.gather, |address, pte| {
            if pte.is_leaf(Level::Pte) && pte.flags().contains(PteFlags::DIRTY) {
                let index = address.index(Level::Pte);
                written[index / 64] |= 1 << (index % 64);
            }
            cleaned(platform, pte)
        });
        for (word, bits) in written.iter_mut().enumerate() {
            while *bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                let address = VirtAddr::new(table.span().start().get() + index as u64 * PAGE_SIZE);
                keep_dirty(platform, table.get(address).pfn(), &mut self.gather);
            }
        }
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        // Only a marker above the lowest level can be here: large leaves do not map files.
        ControlFlow::Continue(())
    }
}
