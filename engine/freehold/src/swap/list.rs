//! The list of swap devices, which a task reads without a lock. `devices.rs` has its protocol.
//!
//! The memory of the engine has a reference to the list, because swap entries in page tables count slots
//! ([`SwapSlots`]). A device has a reference to the memory in turn. The end of [`Swap`](super::Swap) empties
//! the list, which breaks this cycle.
#![expect(unsafe_code, reason = "devices are linked by atomic pointers")]

use super::{
    area::{Area, Lease, Share},
    entry::{MAX_DEVICES, SwapEntry, SwapId},
    state::DeviceState,
};
use crate::{
    Pfn,
    counted::{Counted, Shared},
    error::NoMemory,
    platform::Platform,
};
use core::ptr::{NonNull, null_mut};
use freehold_sync::{PerCpu, publish::Published};
use freehold_vmspace::SwapSlots;

/// A device in the list.
pub(super) struct Entry<P: Platform> {
    pub state: DeviceState,
    /// Devices with a higher priority are filled first. Never changes.
    pub priority: i16,
    pub area: Counted<Area<P>>,
    /// The lease that requests of each CPU clone. Never changes.
    shares: PerCpu<Lease<P>, P>,
}

impl<P: Platform> Shared for Entry<P> {}

impl<P: Platform> Entry<P> {
    pub fn try_new(area: Counted<Area<P>>, priority: i16) -> Result<Counted<Self>, NoMemory> {
        let (first, mut failed) = (Share::try_new(&area)?, None);
        let shares = PerCpu::try_new(|_| {
            Share::try_new(&area).unwrap_or_else(|error| {
                failed = Some(error);
                first.clone()
            })
        })?;
        failed.map_or(Ok(()), Err)?;
        Ok(Counted::try_new(Entry { state: DeviceState::new(), priority, area, shares })?)
    }

    pub fn lease(&self) -> Lease<P> {
        self.shares.with(Counted::clone)
    }
}

/// The swap devices of an engine.
pub(crate) struct DeviceList<P: Platform> {
    /// Null, or a reference to a device from `Counted::into_raw`; see `devices.rs`.
    pub(super) entries: [Published<Entry<P>>; MAX_DEVICES],
}

impl<P: Platform> Shared for DeviceList<P> {}

impl<P: Platform> DeviceList<P> {
    /// Creates a list without devices.
    pub fn new() -> Self {
        DeviceList { entries: core::array::from_fn(|_| Published::new()) }
    }

    /// Runs `f` on a device, inside a read section. `f` does not sleep. Returns `None` if the device does not
    /// exist.
    pub(super) fn with<R>(&self, id: SwapId, f: impl FnOnce(&Entry<P>) -> R) -> Option<R> {
        let _rcu = P::rcu_read();
        let entry = NonNull::new(self.entries.get(id.number())?.get())?;
        // SAFETY: the list has a reference to each device in it. `remove` drops that reference after a grace
        // period, which this read section delays. `remove_all` is called when no task uses the list.
        Some(f(unsafe { entry.as_ref() }))
    }

    /// Removes all devices.
    ///
    /// # Safety
    ///
    /// No task uses the list at the same time.
    pub(super) unsafe fn remove_all(&self) {
        for place in &self.entries {
            if let Some(entry) = NonNull::new(place.replace(null_mut())) {
                // SAFETY: from `into_raw`, and linked until now. The caller promises that no task uses it.
                drop(unsafe { Counted::from_raw(entry) });
            }
        }
    }
}

/// The slots, for the swap entries in page tables.
pub(crate) struct Slots<P: Platform>(pub Counted<DeviceList<P>>);

impl<P: Platform> SwapSlots for Slots<P> {
    fn duplicate(&self, slot: u64) -> bool {
        let entry = SwapEntry::from_payload(slot);
        self.0.with(entry.device(), |device| device.area.duplicate(entry.slot()).is_ok()) == Some(true)
    }

    fn release(&self, slot: u64) -> Option<Pfn> {
        let entry = SwapEntry::from_payload(slot);
        self.0.with(entry.device(), |device| device.area.release(entry.slot()).1).flatten()
    }

    fn is_cached(&self, slot: u64) -> bool {
        let entry = SwapEntry::from_payload(slot);
        self.0.with(entry.device(), |device| device.area.is_cached(entry.slot())) == Some(true)
    }

    fn entries(&self, slot: u64) -> u32 {
        let entry = SwapEntry::from_payload(slot);
        self.0.with(entry.device(), |device| device.area.entries_of(entry.slot())).unwrap_or(0)
    }
}
