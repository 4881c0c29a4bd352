//! Dropping clean pages from the swap cache: pages that were read from a device, and that other swap entries
//! still name there.
//!
//! Such a page needs no write: its word becomes *stored* again (`swap/slot.rs`). Entries that map the page
//! keep it, and it is then an ordinary page. A page that was read in the meantime counts as accessed once, so
//! the task that has read it finds it in the cache. The slots are visited in a cycle that all calls share.
//! `tests/swapped/` tests this file.

use crate::{
    engine::Engine,
    platform::Platform,
    swap::{Lookup, Shadow, SwapEntry},
};

/// Maximum number of slots of a device that a call visits.
const VISITS: u64 = 512;

impl<P: Platform> Engine<P> {
    /// Drops pages from the swap cache that are on their device too, and that were not accessed lately, until
    /// `target` frames are free. Visits some slots of each device. Returns the number of freed frames.
    pub(super) fn drop_clean_swapped(&self, target: u64) -> u64 {
        let (swap, state, mut freed) = (self.swap(), &self.files().reclaim, 0);
        for id in swap.ids() {
            let (mut at, mut left) = (state.next_slots(VISITS), VISITS);
            at %= swap.slots(id).map_or(1, |slots| slots.max(1));
            while left > 0 && freed < target {
                let (found, next) = swap.next_clean(id, at, left);
                left = left.saturating_sub(next.saturating_sub(at).max(1));
                at = next;
                if let Some(entry) = found {
                    freed += u64::from(self.drop_swapped(entry));
                }
                // Each slot is visited at most once, so a page that counts as accessed stays.
                if next == 0 {
                    break;
                }
            }
        }
        freed
    }

    /// Drops a clean page from the swap cache. Returns true if its frame is free.
    fn drop_swapped(&self, entry: SwapEntry) -> bool {
        let swap = self.swap();
        let pfn = match swap.lookup(entry) {
            Lookup::Cached(pfn) => pfn,
            Lookup::Reading(pfn) => {
                self.memory().put_frame(pfn);
                return false;
            }
            Lookup::Stored(_) | Lookup::NotInUse => return false,
        };
        let frame = self.platform().frame(pfn);
        let shadow = Shadow::new(self.files().reclaim.evicted());
        let dropped = !frame.take_mark() && swap.drop_clean(entry, shadow);
        // If this is the last reference, the frame is free afterwards.
        let freed = dropped && frame.refs() == 1;
        self.memory().put_frame(pfn);
        freed
    }
}
