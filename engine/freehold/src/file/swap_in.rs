//! Bringing pages into the swap cache, for faults of anonymous memory (`fault/swap.rs`) and for pages of
//! shared memory (`swapped.rs`).
//!
//! N tasks that need a page cause one read: the first one makes the slot *being read*, and the others wait.
//! No lock is held during a read. The caller looks at its swap entry again afterwards, because another task
//! may have brought the page back, or may have freed it. `tests/swapped/` has the tests.

use crate::{
    Pfn,
    error::NoMemory,
    file::{Files, FillError},
    platform::{PageOwner, Platform},
    swap::{Lookup, Shadow, SwapEntry, SwapId, SwapRead, SwapReadError, SwapWindows},
};
use arrayvec::ArrayVec;
use freehold_sync::Killed;

/// Entries that are read together.
pub(crate) type SwapWindow = ArrayVec<SwapEntry, { SwapWindows::LARGEST as usize }>;

/// Reason why a page did not come into the swap cache.
pub(crate) enum SwapInError {
    /// There is no memory.
    NoMemory,
    /// A fatal signal arrived.
    Killed,
    /// The device could not read the page.
    Io,
    /// The memory of the only copy of the page failed.
    Lost,
}

impl From<NoMemory> for SwapInError {
    fn from(_: NoMemory) -> Self {
        SwapInError::NoMemory
    }
}

impl From<Killed> for SwapInError {
    fn from(_: Killed) -> Self {
        SwapInError::Killed
    }
}

impl<P: Platform> Files<P> {
    /// Brings the page of a swap entry into the swap cache. The entry may be out of date; nothing is wrong
    /// then, and an error has no meaning. If the page must be read, also begins reads of the entries that
    /// `window` returns, ordered by slots, and does not wait for them.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory, if a fatal signal ends the wait, or if the page cannot be read.
    ///
    /// # Locks
    ///
    /// None. The caller holds no lock.
    pub(crate) fn swap_in(
        &self,
        entry: SwapEntry,
        owner: PageOwner<'_, P::Mmu>,
        window: impl FnOnce() -> Result<SwapWindow, Killed>,
    ) -> Result<(), SwapInError> {
        let (swap, memory) = (&self.swap, self.memory());
        let pfn = match swap.lookup(entry) {
            Lookup::NotInUse => return Ok(()),
            Lookup::Cached(pfn) => {
                // If the memory of the frame failed, the page is lost only if the device does not have it.
                let is_lost = self.platform().frame(pfn).has_failed() && self.is_lost(entry, pfn);
                memory.put_frame(pfn);
                return if is_lost { Err(SwapInError::Lost) } else { Ok(()) };
            }
            Lookup::Reading(pfn) => pfn,
            Lookup::Stored(shadow) => {
                let ahead = window()?;
                let pfn = memory.alloc_swap(owner)?;
                let frame = self.platform().frame(pfn);
                // Twice, so that the page counts as accessed: reclaim does not drop it from the cache at
                // once.
                (0..2).for_each(|_| frame.mark_accessed());
                frame.set_first_age(self.reclaim.swapped_in(shadow.get()).byte());
                let Some(request) = swap.begin_read(entry, pfn) else {
                    memory.put_frame(pfn);
                    return Ok(());
                };
                self.read_ahead(request, entry, owner, &ahead);
                pfn
            }
        };
        let read = swap.wait_for_read(entry, pfn);
        memory.put_frame(pfn);
        read.map_err(|error| match error {
            SwapReadError::Killed => SwapInError::Killed,
            SwapReadError::Io => SwapInError::Io,
        })
    }

    /// Sends a request whose last page is that of `last`, and begins reads of the entries of a window. The
    /// caller holds no lock.
    pub(super) fn read_ahead(
        &self,
        mut request: SwapRead<P>,
        mut last: SwapEntry,
        owner: PageOwner<'_, P::Mmu>,
        ahead: &[SwapEntry],
    ) {
        let (entry, swap, memory) = (last, &self.swap, self.memory());
        for next in ahead.iter().filter(|next| **next != entry) {
            // Without memory, no page is read ahead.
            let Ok(pfn) = memory.alloc_swap(owner) else { break };
            let follows = last.device() == next.device() && last.slot() + 1 == next.slot();
            if follows && request.extend(pfn) {
                last = *next;
            } else if let Some(another) = swap.begin_read(*next, pfn) {
                swap.send_read(core::mem::replace(&mut request, another));
                last = *next;
            }
            // The cache has a reference if the read has begun.
            memory.put_frame(pfn);
        }
        swap.send_read(request);
    }

    /// Takes `pfn`, whose memory failed, out of the swap cache. Returns true if the device does not have the
    /// page.
    fn is_lost(&self, entry: SwapEntry, pfn: Pfn) -> bool {
        if self.swap.drop_clean(entry, Shadow::new(self.reclaim.evicted())) {
            return false;
        }
        // Another task may have taken the frame out of the cache since it was found there.
        match self.swap.lookup(entry) {
            Lookup::Cached(found) | Lookup::Reading(found) => {
                self.memory().put_frame(found);
                found == pfn
            }
            Lookup::Stored(_) | Lookup::NotInUse => false,
        }
    }

    /// Brings all pages of files back that are on a device, for swapoff. Returns their number.
    ///
    /// # Errors
    ///
    /// Fails if a page that is still on the device cannot come back, or if a fatal signal arrives.
    ///
    /// # Locks
    ///
    /// The locks of [`Mapping::fill`].
    pub(crate) fn leave_device(&self, id: SwapId) -> Result<u64, FillError> {
        let mut back = 0;
        for _ in 0..self.swapped.len() {
            if let Some(file) = self.swapped.next() {
                back += file.leave_device(id)?;
            }
        }
        Ok(back)
    }
}
