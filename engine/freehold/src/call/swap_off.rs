//! Swapoff: takes a swap device out of use, after all its pages came back to memory.
//!
//! Pages of shared memory come back to their files, of which the engine has a list (`file/swapped.rs`). The
//! engine keeps no list of address spaces, so the caller names them. Each space is walked for entries of the
//! device. The page of each entry is brought into the swap cache with no lock held, and mapped as by a fault,
//! but without regard to the rights of the VMA. A fork may copy entries to a space that was not named yet, so
//! the spaces are named again until the device has no page.
//!
//! Every step leaves a page either in memory or on the device, so a call that fails has lost nothing; the
//! device is then open again. `tests/swapped/off.rs` and `shuttle_engine/swapped.rs` test swapoff.

use crate::{
    VirtAddr,
    counted::Counted,
    engine::Engine,
    error::{AccessError, FillError, SwapOffError},
    fault::{Access, FaultOutcome},
    platform::Platform,
    remote::AccessMode,
    space::{AddressSpace, change::vma_ranges::VmaRanges},
    swap::{SwapEntry, SwapId},
    wait::Rounds,
};
use freehold_vmspace::SwapMark;

/// Number of visits of all address spaces that may find no page although the device has some. The pages are
/// then on their way: in the hands of another task for a few steps, or being written.
const IDLE_VISITS: u32 = 64;

impl<P: Platform> Engine<P> {
    /// Takes a swap device out of use. Brings all its pages back to memory first; during that time, no page
    /// is swapped out to it. `spaces` returns all address spaces that may have pages on the device, and is
    /// called again until the device has no page.
    ///
    /// # Errors
    ///
    /// Fails if the device does not exist, if another task is removing it, if there is no memory for a page,
    /// if the device cannot read a page, if pages are left, or if a fatal signal arrives; see
    /// [`SwapOffError`]. The device is then in use again, and no page is lost.
    ///
    /// # Locks
    ///
    /// The locks of a fault, for one page at a time. No lock is held during a read. The caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, reclaim::ReclaimRequest, remote::AccessMode, space::*};
    /// # use freehold_machine::MemorySwap;
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let id = engine.swap_on(MemorySwap::new(64), 0).unwrap();
    /// space.write_memory(at, b"swapped", AccessMode::Plain).unwrap();
    /// engine.reclaim(&ReclaimRequest::pages(1));
    /// assert_eq!(space.rss().swap, 1);
    /// engine.swap_off(id, || [space.clone()]).unwrap();
    /// assert_eq!((space.rss().swap, engine.swap_usage(id)), (0, None));
    /// ```
    pub fn swap_off<I>(&self, id: SwapId, spaces: impl FnMut() -> I) -> Result<(), SwapOffError>
    where
        I: IntoIterator<Item = Counted<AddressSpace<P>>>,
    {
        let swap = self.swap();
        if !swap.close(id) {
            return Err(if swap.usage(id).is_some() {
                SwapOffError::NotClosed
            } else {
                SwapOffError::NotFound
            });
        }
        let removed = self.empty_device(id, spaces).and_then(|()| swap.remove(id));
        if removed.is_err() {
            swap.reopen(id);
        }
        removed
    }

    /// Brings all pages of a closed device back.
    fn empty_device<I>(&self, id: SwapId, mut spaces: impl FnMut() -> I) -> Result<(), SwapOffError>
    where
        I: IntoIterator<Item = Counted<AddressSpace<P>>>,
    {
        let (mut rounds, mut idle) = (Rounds::new(), 0);
        while !self.swap().is_empty(id) {
            rounds.again::<P>()?;
            let mut back = self.files().leave_device(id).map_err(file_failure)?;
            for space in spaces() {
                back += space.leave_device(id)?;
            }
            idle = if back > 0 { 0 } else { idle + 1 };
            if idle > IDLE_VISITS {
                return Err(SwapOffError::InUse);
            }
        }
        Ok(())
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Brings back all pages of this space that are on a device. Returns their number.
    fn leave_device(&self, id: SwapId) -> Result<u64, SwapOffError> {
        let (mut at, mut back, mut rounds) = (0, 0, Rounds::new());
        let is_of = |slot| SwapEntry::from_payload(slot).device() == id;
        loop {
            rounds.again::<P>()?;
            let guard = self.read_killable()?;
            let Some((_, part)) = guard.next_part(at) else { return Ok(back) };
            let found = self.vm.next_swap_entry(part, is_of);
            drop(guard);
            match found {
                None => at = part.end(),
                Some((address, mark)) => {
                    at = address.get();
                    self.bring_back(at, mark)?;
                    back += 1;
                }
            }
        }
    }

    /// Maps the page of this swap entry at `page`, if the entry is still there.
    fn bring_back(&self, page: u64, mark: SwapMark) -> Result<(), SwapOffError> {
        // The caller keeps the VMA unchanged, and so its tables.
        let is_same = || {
            let (pte, _) = self.vm.read_entry(VirtAddr::new(page));
            SwapMark::of_entry(pte).is_some_and(|now| now.slot == mark.slot)
        };
        let access = Access { user: false, ..Access::READ };
        let done = self.with_vma(page, AccessMode::Plain, |vma, held| match is_same() {
            true => self.resolve(vma, page, access, held),
            false => FaultOutcome::Done,
        });
        match done {
            Ok(()) => Ok(()),
            Err(AccessError::OutOfMemory) => Err(SwapOffError::OutOfMemory),
            Err(AccessError::Killed) => Err(SwapOffError::Killed),
            // The page could not be read, or the VMA is gone.
            Err(_) => {
                let guard = self.read_killable()?;
                let is_left = guard.find(page).is_some() && is_same();
                if is_left { Err(SwapOffError::Io) } else { Ok(()) }
            }
        }
    }
}

/// Converts the error of a page of a file that could not come back.
fn file_failure(error: FillError) -> SwapOffError {
    match error {
        FillError::Killed => SwapOffError::Killed,
        FillError::NoMemory => SwapOffError::OutOfMemory,
        _ => SwapOffError::Io,
    }
}
