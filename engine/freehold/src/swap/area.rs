//! One device in use: the device itself, its table, and the leases by which requests keep both.
//!
//! A request may end long after the task that made it, on another CPU. It has a [`Lease`], which is a counted
//! reference. One count would be a cache line that every CPU writes at each swap-in, so each CPU has a count
//! of its own ([`Share`]), and each of these counts has one reference to the [`Area`].

use super::{
    device::SwapDevice,
    entry::SwapEntry,
    requests::{SwapRead, SwapWrite},
    slot::{DuplicateError, Frames, Lookup, Rest, Slot},
    table::SwapTable,
    word::{Shadow, State},
};
use crate::{
    Pfn,
    counted::{Counted, Shared},
    error::{IoError, NoMemory, SwapOnError},
    platform::Platform,
    wait::{Turn, Turns},
};
use allocator_api2::{boxed::Box, unsize_box};
use freehold_sync::rank;
use freehold_vmspace::{Memory, frame::Frame};

/// The counters that tasks sleep on until a read of a page from a swap device ends. All devices share them,
/// and a task that sleeps keeps no device.
pub(super) struct SwapTurns(Turns);

impl SwapTurns {
    pub fn new() -> Self {
        SwapTurns(Turns::new())
    }

    /// Returns the counter for a slot. `area` is the address of the device's area.
    pub fn of(&self, area: usize, slot: u64) -> Turn<'_> {
        self.0.of(area, slot)
    }
}

impl Shared for SwapTurns {}

/// A device in use.
pub(super) struct Area<P: Platform> {
    device: Box<dyn SwapDevice<P>>,
    /// True if requests may have several pages. Never changes.
    can_merge: bool,
    /// Atomic, without a lock.
    pub table: SwapTable<P>,
    turns: Counted<SwapTurns>,
    /// The last field, because the drop of the device may drop requests, whose frames are freed.
    memory: Counted<Memory<P>>,
}

/// A counted reference to an [`Area`], with one count for each CPU.
pub(super) struct Share<P: Platform>(Counted<Area<P>>);

/// A reference that keeps a device and its table.
pub(super) type Lease<P> = Counted<Share<P>>;

impl<P: Platform> Shared for Area<P> {}
impl<P: Platform> Shared for Share<P> {}

impl<P: Platform> Share<P> {
    /// Creates a share, with a count of its own.
    pub fn try_new(area: &Counted<Area<P>>) -> Result<Lease<P>, NoMemory> {
        Ok(Counted::try_new(Share(area.clone()))?)
    }

    /// Returns the device.
    pub fn area(&self) -> &Area<P> {
        &self.0
    }
}

impl<P: Platform> Drop for Area<P> {
    fn drop(&mut self) {
        debug_assert!(self.table.is_unused(), "a swap device ends with pages");
    }
}

impl<P: Platform> Frames for Memory<P> {
    fn frame(&self, pfn: Pfn) -> &Frame {
        self.platform().frame(pfn)
    }
}

impl<P: Platform> Area<P> {
    /// Creates the state of a device, all of whose slots are free.
    ///
    /// # Errors
    ///
    /// Fails if the device has no slots or too many, or if there is no memory.
    pub fn try_new(
        device: impl SwapDevice<P>,
        turns: Counted<SwapTurns>,
        memory: Counted<Memory<P>>,
    ) -> Result<Counted<Self>, SwapOnError> {
        let (slots, can_merge) = (device.slots(), device.can_merge());
        if !(1..=SwapEntry::MAX_SLOTS).contains(&slots) {
            return Err(SwapOnError::Invalid);
        }
        let table = SwapTable::try_new(slots)?;
        let device: Box<dyn SwapDevice<P>> = unsize_box!(Box::try_new(device).map_err(NoMemory::from)?);
        let area = Area { device, can_merge, table, turns, memory };
        Ok(Counted::try_new(area).map_err(NoMemory::from)?)
    }

    /// Returns true if requests may have several pages.
    pub fn can_merge(&self) -> bool {
        self.can_merge
    }

    /// Returns the frames.
    pub fn memory(&self) -> &Counted<Memory<P>> {
        &self.memory
    }

    /// Returns a number that identifies the area among those in use.
    pub fn key(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Passes a request to the device. The caller holds no lock.
    pub fn send_read(&self, request: SwapRead<P>) {
        rank::holds_none::<P>();
        self.device.read(request);
    }

    /// Passes a request to the device. The caller holds no lock.
    pub fn send_write(&self, request: SwapWrite<P>) {
        rank::holds_none::<P>();
        self.device.write(request);
    }

    /// Frees a slot that is reserved and was not used.
    pub fn cancel(&self, slot: u64) {
        self.table.free(slot, super::slot::Unused::Free);
    }

    /// Puts a page into a reserved slot; see [`Slot::insert`].
    pub fn insert(&self, slot: u64, pfn: Pfn) -> bool {
        self.slot(slot).is_some_and(|word| word.insert(pfn, &*self.memory))
    }

    /// Counts another swap entry; see [`Slot::duplicate`].
    pub fn duplicate(&self, slot: u64) -> Result<(), DuplicateError> {
        self.slot(slot).ok_or(DuplicateError::NotInUse)?.duplicate()
    }

    /// Drops a swap entry; see [`Slot::release`]. Returns true if it was the last, and a reference that the
    /// caller drops.
    pub fn release(&self, slot: u64) -> (bool, Option<Pfn>) {
        let Some(word) = self.slot(slot) else { return (false, None) };
        let (is_last, rest) = word.release(&*self.memory);
        (is_last, self.settle(slot, rest))
    }

    /// Finds the page of a slot; see [`Slot::lookup`].
    pub fn lookup(&self, slot: u64) -> Result<Lookup, Pfn> {
        self.slot(slot).map_or(Ok(Lookup::NotInUse), |word| word.lookup(&*self.memory))
    }

    /// Begins a read; see [`Slot::begin_read`].
    pub fn begin_read(&self, slot: u64, pfn: Pfn) -> Option<Shadow> {
        self.slot(slot)?.begin_read(pfn, &*self.memory)
    }

    /// Ends a read, and wakes the tasks that wait for it.
    pub fn end_read(&self, slot: u64, pfn: Pfn, read: Result<(), IoError>, shadow: Shadow) {
        let rest = self.slot(slot).map(|word| word.end_read(pfn, read, shadow, &*self.memory));
        self.settle_and_put(slot, rest);
    }

    /// Begins a write; see [`Slot::begin_write`].
    pub fn begin_write(&self, slot: u64) -> Option<Pfn> {
        self.slot(slot)?.begin_write(&*self.memory)
    }

    /// Ends a write.
    pub fn end_write(&self, slot: u64, pfn: Pfn, written: Result<(), IoError>, shadow: Shadow) {
        let rest = self.slot(slot).map(|word| word.end_write(pfn, written, shadow, &*self.memory));
        self.settle_and_put(slot, rest);
    }

    /// Drops a clean page from the cache, and returns a reference that the caller drops; see
    /// [`Slot::drop_clean`].
    pub fn drop_clean(&self, slot: u64, shadow: Shadow) -> Option<Pfn> {
        self.slot(slot)?.drop_clean(shadow, &*self.memory)
    }

    /// Returns true if the slot is being read into this frame; see [`Slot::watch`].
    pub fn watch(&self, slot: u64, pfn: Pfn) -> bool {
        self.slot(slot).is_some_and(|word| word.watch(pfn))
    }

    /// Returns true if the page is in a frame and was read.
    pub fn is_cached(&self, slot: u64) -> bool {
        self.slot(slot).is_some_and(|word| matches!(word.state().frame(), Some((_, false))))
    }

    /// Returns true if the page is being read.
    pub fn is_reading(&self, slot: u64) -> bool {
        self.slot(slot).is_some_and(|word| matches!(word.state(), State::Reading { .. }))
    }

    /// Returns true if the page is on the device only.
    pub fn is_stored(&self, slot: u64) -> bool {
        self.slot(slot).is_some_and(|word| matches!(word.state(), State::Stored { .. }))
    }

    /// Returns the number of swap entries of the slot.
    pub fn entries_of(&self, slot: u64) -> u32 {
        self.slot(slot).map_or(0, |word| word.state().count())
    }

    fn slot(&self, slot: u64) -> Option<Slot<'_>> {
        self.table.slot(slot)
    }

    /// Does what a change of a word has left to do. Returns a reference that the caller drops.
    fn settle(&self, slot: u64, rest: Rest) -> Option<Pfn> {
        if rest.wake {
            self.turns.of(self.key(), slot).wake::<P>();
        }
        if let Some(unused) = rest.unused {
            // Before the slot may be allocated again.
            self.device.discard(slot);
            self.table.free(slot, unused);
        }
        rest.frame
    }

    /// Does what a change of a word has left to do. The caller holds no lock of a page table, and is in no
    /// read section.
    fn settle_and_put(&self, slot: u64, rest: Option<Rest>) {
        if let Some(pfn) = rest.and_then(|rest| self.settle(slot, rest)) {
            self.memory.put_frame(pfn);
        }
    }
}
