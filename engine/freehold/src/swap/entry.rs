//! The names of swap devices and of their slots.

use freehold_pagetable::PAYLOAD_BITS;

/// Maximum number of swap devices in use.
pub(super) const MAX_DEVICES: usize = 32;

/// A swap device in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwapId(u8);

impl SwapId {
    /// Returns the device with this number, which is below `MAX_DEVICES`.
    pub(super) fn new(number: usize) -> Self {
        debug_assert!(number < MAX_DEVICES);
        SwapId(number as u8)
    }

    /// Returns the number, which is below 32. A device that was removed leaves its number to a later device.
    pub fn number(self) -> usize {
        self.0.into()
    }
}

/// The name of a slot: a device, and the slot's number on the device.
///
/// It fits into 45 bits, so the payload of a page-table marker has 5 more bits for the state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwapEntry(u64);

impl SwapEntry {
    /// Number of bits of the number of a slot.
    const SLOT_BITS: u32 = 40;
    /// Number of bits of an entry.
    pub const BITS: u32 = Self::SLOT_BITS + MAX_DEVICES.ilog2();
    /// Maximum number of slots of a device.
    pub const MAX_SLOTS: u64 = 1 << Self::SLOT_BITS;

    /// Returns the name of a slot, whose number is below [`MAX_SLOTS`](Self::MAX_SLOTS).
    pub fn new(device: SwapId, slot: u64) -> Self {
        debug_assert!(slot < Self::MAX_SLOTS);
        SwapEntry(u64::from(device.0) << Self::SLOT_BITS | slot)
    }

    /// Returns the entry with this payload. Bits beyond [`BITS`](Self::BITS) are ignored.
    pub const fn from_payload(payload: u64) -> Self {
        SwapEntry(payload & ((1 << Self::BITS) - 1))
    }

    /// Returns the entry as the payload of a marker, below 2<sup>[`BITS`](Self::BITS)</sup>.
    pub fn payload(self) -> u64 {
        self.0
    }

    /// Returns the device.
    pub fn device(self) -> SwapId {
        SwapId((self.0 >> Self::SLOT_BITS) as u8)
    }

    /// Returns the number of the slot on its device.
    pub fn slot(self) -> u64 {
        self.0 & (Self::MAX_SLOTS - 1)
    }
}

const _: () = assert!(SwapEntry::BITS <= PAYLOAD_BITS, "a marker has room for a swap entry");
