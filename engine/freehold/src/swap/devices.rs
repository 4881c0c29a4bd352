//! All swap devices of an engine: [`Swap`].
//!
//! The devices are in a list of fixed length (`list.rs`). A task reads the list inside a read section of RCU
//! and without a lock, so a swap-in writes no cache line that all CPUs write. A device is added by
//! compare-and-swap. A device that is closed and has no slot in use is [removed](Swap::remove) from the list,
//! and freed after a grace period, when the last read section that found it has ended. `state.rs` has the
//! states of a device, and says why no allocation uses a slot of a removed device.
//!
//! A request keeps its device by a lease (`area.rs`). Each function of this file that gets a [`SwapEntry`]
//! may be called with an entry that is out of date: it then finds that the slot is not in use. An entry that
//! the caller keeps, for example under the lock of its table, keeps the slot, and so the device.
//!
//! Slots are allocated on the device with the highest priority that has free slots. Devices of the same
//! priority take turns, counted per CPU. `tests/swap.rs` tests priorities and removal.
#![expect(unsafe_code, reason = "devices are linked by atomic pointers")]

use super::{
    area::{Area, Lease, SwapTurns},
    device::SwapDevice,
    entry::{MAX_DEVICES, SwapEntry, SwapId},
    list::{DeviceList, Entry},
    requests::{SwapRead, SwapWrite},
    slot::{DuplicateError, Lookup, Slot},
    table::Batch,
    word::Shadow,
};
use crate::{
    Pfn,
    counted::Counted,
    error::{NoMemory, SwapOffError, SwapOnError},
    platform::Platform,
    wait::grace_period,
};
use core::ptr::{NonNull, null_mut};
use freehold_sync::{
    Killed, PerCpu,
    atomic::{AtomicU32, Ordering::Relaxed},
    rank,
};
use freehold_vmspace::Memory;

/// Number of slots that a search looks at in one read section.
const LOOKS: u64 = 1 << 12;

/// Numbers of slots of a device, and its priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapUsage {
    /// Number of slots, bad ones included.
    pub slots: u64,
    /// Number of slots that have a page or are about to get one.
    pub used: u64,
    /// Number of slots that are not used any more, because a write has failed.
    pub bad: u64,
    /// The priority: devices with a higher one are filled first.
    pub priority: i16,
}

freehold_sync::error_enum! {
    /// Reason why no slot was allocated.
    pub enum NoSlot {
        /// All swap devices are full.
        Full,
        /// There is no memory for the table of a cluster.
        OutOfMemory,
    }
}

freehold_sync::error_enum! {
    /// Reason why a page could not be read from a swap device.
    pub enum SwapReadError {
        /// The device could not read the page.
        Io,
        /// A fatal signal arrived during the wait.
        Killed,
    }
}

impl From<Killed> for SwapReadError {
    fn from(_: Killed) -> Self {
        SwapReadError::Killed
    }
}

/// A page whose swap entry was dropped by the task that uses the page.
#[doc(hidden)]
#[must_use = "the caller drops the reference"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// True if the page belongs to the caller: no other swap entry names it, no write of it is under way, and
    /// the caller has the only reference to the frame. Otherwise a store to the page must make a copy.
    pub is_exclusive: bool,
    /// A reference to another frame, which the caller drops once it holds no lock of a page table.
    pub frame: Option<Pfn>,
}

/// The swap devices of an engine.
#[doc(hidden)]
pub struct Swap<P: Platform> {
    /// The devices. The memory has another reference, for swap entries in page tables.
    list: Counted<DeviceList<P>>,
    /// Number of allocations of each CPU. Each CPU writes only its own number.
    rotation: PerCpu<AtomicU32, P>,
    turns: Counted<SwapTurns>,
    /// The last field, because the drop of a device may free frames.
    memory: Counted<Memory<P>>,
}

impl<P: Platform> Drop for Swap<P> {
    fn drop(&mut self) {
        // Breaks the cycle of references: devices have references to the memory, and the memory to the list.
        // SAFETY: the files of the engine own this value, and every address space has a reference to them. So
        // no page table has a swap entry any more, and no other task can reach the list.
        unsafe { self.list.remove_all() };
    }
}

impl<P: Platform> Swap<P> {
    /// Creates the state of an engine without devices. `memory` has been created with the slots of `list`.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub(crate) fn try_new(
        list: Counted<DeviceList<P>>,
        memory: Counted<Memory<P>>,
    ) -> Result<Self, NoMemory> {
        Ok(Swap {
            list,
            rotation: PerCpu::try_new(|_| AtomicU32::new(0))?,
            turns: Counted::try_new(SwapTurns::new())?,
            memory,
        })
    }

    /// Returns the frames.
    pub(crate) fn memory(&self) -> &Counted<Memory<P>> {
        &self.memory
    }

    /// Adds a device, from which slots are allocated from now on.
    ///
    /// # Errors
    ///
    /// Fails if the device has too many slots or none, if there are too many devices, or if there is no
    /// memory.
    pub(crate) fn swap_on(&self, device: impl SwapDevice<P>, priority: i16) -> Result<SwapId, SwapOnError> {
        let area = Area::try_new(device, self.turns.clone(), self.memory.clone())?;
        let entry = Counted::into_raw(Entry::try_new(area, priority)?);
        for (number, place) in self.list.entries.iter().enumerate() {
            if place.publish_first(entry.as_ptr()).is_ok() {
                return Ok(SwapId::new(number));
            }
        }
        // SAFETY: from `into_raw`, and not linked.
        drop(unsafe { Counted::from_raw(entry) });
        Err(SwapOnError::TooManyDevices)
    }

    /// Allocates no more slots from a device. Returns false if the device does not exist, or is closed
    /// already.
    pub fn close(&self, id: SwapId) -> bool {
        self.list.with(id, |entry| entry.state.close()).unwrap_or(false)
    }

    /// Allocates slots again from a device that was closed.
    pub fn reopen(&self, id: SwapId) {
        self.list.with(id, |entry| entry.state.reopen());
    }

    /// Returns true if no slot of the device seems to be in use. A closed device that is empty stays empty,
    /// except that an allocation that had begun before may be about to be cancelled.
    pub fn is_empty(&self, id: SwapId) -> bool {
        self.list.with(id, |entry| entry.area.table.used() == 0).unwrap_or(true)
    }

    /// Removes a device that is closed and empty.
    ///
    /// # Errors
    ///
    /// Fails if the device does not exist, is not closed, or has slots in use.
    ///
    /// # Locks
    ///
    /// None. Waits for a grace period. The caller holds no lock, because the device may be dropped.
    pub fn remove(&self, id: SwapId) -> Result<(), SwapOffError> {
        rank::holds_none::<P>();
        let removed = self.list.with(id, |entry| {
            if !entry.state.begin_removal() {
                return Err(SwapOffError::NotClosed);
            }
            if !entry.area.table.is_unused() {
                entry.state.keep();
                return Err(SwapOffError::InUse);
            }
            // Only this task began the removal, so the pointer is still that of the device.
            Ok(self.list.entries[id.number()].replace(null_mut()))
        });
        let entry = removed.ok_or(SwapOffError::NotFound)??;
        // Every task that has found the pointer has left its read section afterwards.
        grace_period::<P>();
        if let Some(entry) = NonNull::new(entry) {
            // SAFETY: from `into_raw`, and unlinked by this task.
            drop(unsafe { Counted::from_raw(entry) });
        }
        Ok(())
    }

    /// Returns the number of slots of a device, or `None` if it does not exist.
    pub fn slots(&self, id: SwapId) -> Option<u64> {
        self.list.with(id, |entry| entry.area.table.slots())
    }

    /// Returns the numbers of a device, or `None` if it does not exist. Reads a counter of each CPU.
    pub fn usage(&self, id: SwapId) -> Option<SwapUsage> {
        self.list.with(id, |entry| {
            let table = &entry.area.table;
            SwapUsage { slots: table.slots(), used: table.used(), bad: table.bad(), priority: entry.priority }
        })
    }

    /// Returns the devices in use, in the order of their numbers.
    pub fn ids(&self) -> impl Iterator<Item = SwapId> + '_ {
        let ids = (0..MAX_DEVICES).map(SwapId::new);
        ids.filter(|id| !self.list.entries[id.number()].is_null())
    }

    /// Allocates up to `pages` consecutive slots.
    ///
    /// # Errors
    ///
    /// Fails if no device has free slots, or if there is no memory.
    pub fn allocate(&self, pages: u32) -> Result<SlotRun<P>, NoSlot> {
        let turn = self.rotation.with(|turn| {
            let now = turn.load(Relaxed);
            turn.store(now.wrapping_add(1), Relaxed);
            now
        });
        let (mut below, mut error) = (None, NoSlot::Full);
        while let Some((priority, devices)) = self.next_priority(below) {
            below = Some(priority);
            for number in rotated(devices, turn) {
                match self.allocate_on(SwapId::new(number), pages) {
                    Ok(Some(run)) => return Ok(run),
                    Ok(None) => {}
                    Err(NoMemory) => error = NoSlot::OutOfMemory,
                }
            }
        }
        Err(error)
    }

    /// Allocates slots on a device.
    fn allocate_on(&self, id: SwapId, pages: u32) -> Result<Option<SlotRun<P>>, NoMemory> {
        // The table may allocate memory, which must not happen in the read section.
        let lease = self.list.with(id, |entry| entry.state.is_open().then(|| entry.lease())).flatten();
        let Some(lease) = lease else { return Ok(None) };
        let Some(batch) = lease.area().table.allocate(pages)? else { return Ok(None) };
        let run = SlotRun { id, batch, lease };
        let is_still = |entry: &Entry<P>| {
            entry.state.is_open_after_allocation() && core::ptr::eq(&*entry.area, run.lease.area())
        };
        Ok(self.list.with(id, is_still).unwrap_or(false).then_some(run))
    }

    /// Returns the highest priority below `below`, and the set of open devices with that priority.
    fn next_priority(&self, below: Option<i16>) -> Option<(i16, u32)> {
        let mut found: Option<(i16, u32)> = None;
        for number in 0..MAX_DEVICES {
            let open = |entry: &Entry<P>| entry.state.is_open().then_some(entry.priority);
            let Some(priority) = self.list.with(SwapId::new(number), open).flatten() else { continue };
            if below.is_some_and(|below| priority >= below) {
                continue;
            }
            let bit = 1 << number;
            match &mut found {
                Some((highest, devices)) if *highest == priority => *devices |= bit,
                Some((highest, _)) if *highest > priority => {}
                _ => found = Some((priority, bit)),
            }
        }
        found
    }

    /// Counts another swap entry for the slot. The caller has an entry that stays during the call. For fork.
    ///
    /// # Errors
    ///
    /// Fails if too many entries name the slot.
    pub fn duplicate(&self, entry: SwapEntry) -> Result<(), DuplicateError> {
        let duplicated = self.list.with(entry.device(), |device| device.area.duplicate(entry.slot()));
        duplicated.unwrap_or(Err(DuplicateError::NotInUse))
    }

    /// Drops a swap entry. Returns a reference to a frame, which the caller drops
    /// ([`Memory::put_frame`]) once it holds no lock of a page table. May be called under such a lock.
    #[must_use = "the caller drops the reference"]
    pub fn release(&self, entry: SwapEntry) -> Option<Pfn> {
        self.list.with(entry.device(), |device| device.area.release(entry.slot()))?.1
    }

    /// Drops the caller's swap entry for a page in the frame, to which the caller has a reference from a
    /// lookup or a read. The reference stays. May be called under the lock of the page table that has the
    /// entry.
    ///
    /// The page may have left the cache since the lookup, and may have been read into another frame. The
    /// frame of the caller still has the contents of the page.
    pub fn take(&self, entry: SwapEntry, pfn: Pfn) -> Taken {
        let released = self.list.with(entry.device(), |device| device.area.release(entry.slot()));
        let (is_last, mut frame) = released.unwrap_or((false, None));
        let record = self.memory.platform().frame(pfn);
        if frame == Some(pfn) {
            // Not the last: the caller has a reference.
            let last = record.put();
            debug_assert!(!last, "the caller has no reference");
            frame = None;
        }
        Taken { is_exclusive: is_last && record.refs() == 1, frame }
    }

    /// Finds the page of a slot. The caller holds no lock of a page table, and is in no read section.
    pub fn lookup(&self, entry: SwapEntry) -> Lookup {
        loop {
            match self.list.with(entry.device(), |device| device.area.lookup(entry.slot())) {
                None => return Lookup::NotInUse,
                Some(Ok(found)) => return found,
                Some(Err(stale)) => self.memory.put_frame(stale),
            }
        }
    }

    /// Finds the page of a slot like [`lookup`](Self::lookup), under the lock of the page table that has the
    /// entry. The entry and the table's lock keep the slot, so the page that is found is that of the entry.
    ///
    /// # Errors
    ///
    /// Fails with a frame if the page has left the cache in between. The caller drops a reference to the
    /// frame once it holds no lock of a page table, and tries again.
    pub fn lookup_locked(&self, entry: SwapEntry) -> Result<Lookup, Pfn> {
        let found = self.list.with(entry.device(), |device| device.area.lookup(entry.slot()));
        found.unwrap_or(Ok(Lookup::NotInUse))
    }

    /// Returns true if the page is on the device only. The caller has a swap entry.
    pub fn is_stored(&self, entry: SwapEntry) -> bool {
        self.list.with(entry.device(), |device| device.area.is_stored(entry.slot())) == Some(true)
    }

    /// Returns true if the page of a slot is in a frame and was read.
    pub fn is_cached(&self, entry: SwapEntry) -> bool {
        self.list.with(entry.device(), |device| device.area.is_cached(entry.slot())) == Some(true)
    }

    /// Returns true if slots may be allocated on a device. A hint.
    pub fn has_open_device(&self) -> bool {
        (0..MAX_DEVICES)
            .any(|id| self.list.with(SwapId::new(id), |entry| entry.state.is_open()) == Some(true))
    }

    /// Begins a read of a stored page into a frame, of which the caller has the only reference and keeps it.
    /// Returns `None` if the page is not stored; another task may have begun a read. The caller passes the
    /// request to [`send_read`](Self::send_read), and then [waits](Self::wait_for_read).
    pub fn begin_read(&self, entry: SwapEntry, pfn: Pfn) -> Option<SwapRead<P>> {
        let slot = entry.slot();
        let begin = |device: &Entry<P>| {
            let shadow = device.area.begin_read(slot, pfn)?;
            Some(SwapRead::new(device.lease(), slot, pfn, shadow))
        };
        self.list.with(entry.device(), begin).flatten()
    }

    /// Passes a request to the device. The caller holds no lock.
    pub fn send_read(&self, request: SwapRead<P>) {
        let lease = request.lease().clone();
        lease.area().send_read(request);
    }

    /// Waits until the read of the page into this frame has ended. The caller has a reference to the frame,
    /// from the lookup or from before the read began.
    ///
    /// # Errors
    ///
    /// Fails if the device could not read the page, or if a fatal signal ends the wait.
    ///
    /// # Locks
    ///
    /// None. The caller holds no lock.
    pub fn wait_for_read(&self, entry: SwapEntry, pfn: Pfn) -> Result<(), SwapReadError> {
        rank::holds_none::<P>();
        let (id, slot) = (entry.device(), entry.slot());
        // Without the device, the read has ended.
        if let Some(key) = self.list.with(id, |device| device.area.key()) {
            let is_reading = || self.list.with(id, |device| device.area.watch(slot, pfn)).unwrap_or(false);
            self.turns.of(key, slot).wait_while::<P>(is_reading)?;
        }
        if self.memory.platform().frame(pfn).is_unread() { Err(SwapReadError::Io) } else { Ok(()) }
    }

    /// Begins a write of a page that was not written before. The shadow is stored with the page. Returns
    /// `None` if the page is not new. The caller has a swap entry, no entry maps the page writable, and all
    /// TLBs know that. It passes the request to [`send_write`](Self::send_write).
    pub fn begin_write(&self, entry: SwapEntry, shadow: Shadow) -> Option<SwapWrite<P>> {
        let (pfn, mut request) = (self.mark_written(entry)?, None);
        let full = self.add_written(&mut request, entry, pfn, shadow);
        debug_assert!(full.is_none(), "a new request is full");
        request
    }

    /// Begins a write like [`begin_write`](Self::begin_write), without a request. Returns the frame, to which
    /// the write has a reference. May be called under locks. The caller then adds the page to a request.
    pub fn mark_written(&self, entry: SwapEntry) -> Option<Pfn> {
        self.list.with(entry.device(), |device| device.area.begin_write(entry.slot())).flatten()
    }

    /// Adds a page whose write has begun to a request, or makes another request. Returns the request that can
    /// have no more pages, which the caller sends.
    pub fn add_written(
        &self,
        request: &mut Option<SwapWrite<P>>,
        entry: SwapEntry,
        pfn: Pfn,
        shadow: Shadow,
    ) -> Option<SwapWrite<P>> {
        let add = |device: &Entry<P>| {
            if let Some(request) = request
                && core::ptr::eq(request.lease().area(), &*device.area)
                && request.append(entry.slot(), pfn, shadow)
            {
                return None;
            }
            request.replace(SwapWrite::new(device.lease(), entry.slot(), pfn, shadow))
        };
        // The write that has begun keeps the slot, and so the device.
        let added = self.list.with(entry.device(), add);
        debug_assert!(added.is_some(), "a device went while a page was written to it");
        added.flatten()
    }

    /// Passes a request to the device. The caller holds no lock.
    pub fn send_write(&self, request: SwapWrite<P>) {
        let lease = request.lease().clone();
        lease.area().send_write(request);
    }

    /// Drops a clean page from the swap cache, so that it is on the device only. Returns false if the page is
    /// not in the cache or not clean. The caller holds no lock of a page table, and is in no read section.
    pub fn drop_clean(&self, entry: SwapEntry, shadow: Shadow) -> bool {
        let dropped = self.list.with(entry.device(), |device| device.area.drop_clean(entry.slot(), shadow));
        dropped.flatten().inspect(|pfn| self.memory.put_frame(*pfn)).is_some()
    }

    /// Returns the swap entry of the page that is in a frame of the swap cache, for a failure of memory.
    /// Looks at all slots. The caller has locked the frame, so that no page enters the swap cache there.
    pub fn entry_of(&self, pfn: Pfn) -> Option<SwapEntry> {
        let is_there = |slot: Slot<'_>| slot.state().frame().is_some_and(|(found, _)| found == pfn);
        self.ids().find_map(|id| {
            let mut at = 0;
            // A read section for each part, because a device may have many slots.
            let look = |from, device: &Entry<P>| {
                let (found, next) = device.area.table.next_that(from, LOOKS, is_there);
                (found, next, next >= device.area.table.slots())
            };
            while let Some((found, next, is_end)) = self.list.with(id, |device| look(at, device)) {
                if found.is_some() || is_end {
                    return found.map(|slot| SwapEntry::new(id, slot));
                }
                at = next;
                P::cond_resched();
            }
            None
        })
    }

    /// Returns true if the page is being read. The caller has a swap entry.
    pub fn is_reading(&self, entry: SwapEntry) -> bool {
        self.list.with(entry.device(), |device| device.area.is_reading(entry.slot())) == Some(true)
    }

    /// Returns the first slot of the device from `from` on whose page is clean in the swap cache, among at
    /// most `most` slots, and the slot at which the caller continues; beyond the last slot, at 0.
    pub fn next_clean(&self, id: SwapId, from: u64, most: u64) -> (Option<SwapEntry>, u64) {
        let next = |device: &Entry<P>| {
            let table = &device.area.table;
            let (found, next) = table.next_clean(from, most);
            let entry = found.map(|slot| SwapEntry::new(id, slot));
            (entry, if next < table.slots() { next } else { 0 })
        };
        self.list.with(id, next).unwrap_or((None, 0))
    }
}

/// Returns the numbers of a set, in ascending order, but beginning with another one each turn.
fn rotated(set: u32, turn: u32) -> impl Iterator<Item = usize> {
    let numbers = (0..MAX_DEVICES).filter(move |number| set >> number & 1 != 0);
    let count = set.count_ones().max(1) as usize;
    let skipped = turn as usize % count;
    numbers.clone().skip(skipped).chain(numbers.take(skipped))
}

/// Slots that one call has allocated. Slots that get no page are freed when the run is dropped.
#[doc(hidden)]
#[must_use = "the slots are freed when the run is dropped"]
pub struct SlotRun<P: Platform> {
    id: SwapId,
    /// The slots that are reserved.
    batch: Batch,
    lease: Lease<P>,
}

impl<P: Platform> SlotRun<P> {
    /// Returns the number of slots that are left.
    pub fn len(&self) -> u32 {
        self.batch.count
    }

    /// Returns true if no slot is left.
    pub fn is_empty(&self) -> bool {
        self.batch.count == 0
    }

    /// Puts a page into the swap cache of the next slot. The caller has a reference to the frame, and keeps
    /// it. Returns the swap entry, which counts once and belongs to the caller: it
    /// [duplicates](Swap::duplicate) the entry for each entry of a page table that it replaces, and
    /// [releases](Swap::release) its own at the end. Returns `None` if no slot is left, or if the frame is in
    /// a cache already.
    pub fn insert(&mut self, pfn: Pfn) -> Option<SwapEntry> {
        let slot = self.batch.first;
        if self.is_empty() || !self.lease.area().insert(slot, pfn) {
            return None;
        }
        self.batch = Batch { first: slot + 1, count: self.batch.count - 1 };
        Some(SwapEntry::new(self.id, slot))
    }
}

impl<P: Platform> Drop for SlotRun<P> {
    fn drop(&mut self) {
        (self.batch.first..).take(self.batch.count as usize).for_each(|slot| self.lease.area().cancel(slot));
    }
}
