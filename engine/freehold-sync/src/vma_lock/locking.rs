//! The locking design of the VMAs of one address space, [`FaultLock`], and the slots of their readers.
//!
//! Each mmap lock contains a [`VmaLocking`] and passes it to the functions in `read.rs` and `write.rs`. The
//! values are set while the mmap lock is constructed and never change afterwards, so no lock guards them. The
//! values of `FaultLock` are the designs that Linux has had, and the design of Freehold; tests and benchmarks
//! compare these designs. The code of a new value belongs in `read.rs` and `write.rs`, and its tests
//! belong in `tests/loom_vma/`.

use crate::atomic::const_unless_loom;
use crate::counted::Counted;
use crate::host::Host;
use crate::reader_slots::{ReaderSlots, Slot};

/// The first lock that a fault tries. All other lookups of one VMA also try this lock first: lookups for
/// reports of mappings, and for access on behalf of other tasks. Only [`MmapLock`](crate::MmapLock)
/// distinguishes the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FaultLock {
    /// The mmap lock for reading (Linux before 6.4).
    MmapLock,
    /// The VMA's own lock, a reader/writer lock in a separate object (Linux 6.4 to 6.14).
    VmaRwsem,
    /// The VMA's own lock, a count of readers inside the VMA (step 4; Linux since 6.15).
    VmaCount,
    /// The count of `VmaCount`, and a slot per CPU for readers that often contend on one VMA.
    #[default]
    VmaPerCpu,
}

impl FaultLock {
    /// All values.
    pub const ALL: [FaultLock; 4] =
        [FaultLock::MmapLock, FaultLock::VmaRwsem, FaultLock::VmaCount, FaultLock::VmaPerCpu];
}

/// The part of an mmap lock that the locks of its VMAs read. It is a type of this module, not of `mmap_lock`,
/// because the gate of an mmap lock is also a VMA lock and uses this type.
pub(crate) struct VmaLocking<H: Host> {
    /// The slots that may hold readers of this address space, and late readers of another address space (see
    /// "A reader may be late" in the [module above](super)).
    slots: Option<Counted<ReaderSlots<H>>>,
    fault: FaultLock,
    /// Represents the external rwsem of a VMA. Every mmap lock has this slot, because a late reader may reach
    /// a VMA that now has an external rwsem in another address space.
    external: Slot,
}

impl<H: Host> VmaLocking<H> {
    const_unless_loom! {
        /// Creates the default design, without slots.
        pub fn new() -> Self {
            VmaLocking { slots: None, fault: FaultLock::VmaPerCpu, external: Slot::external() }
        }
    }

    pub(crate) fn set_slots(&mut self, slots: Counted<ReaderSlots<H>>) {
        self.slots = Some(slots);
    }

    pub(crate) fn set_fault_lock(&mut self, fault: FaultLock) {
        self.fault = fault;
    }

    /// Returns true if a lookup of one VMA tries the lock of that VMA before the mmap lock.
    #[inline]
    pub(crate) fn tries_vma_locks(&self) -> bool {
        self.fault != FaultLock::MmapLock
    }

    /// Returns true if VMAs are locked with external rwsems.
    #[inline]
    pub(crate) fn uses_rwsems(&self) -> bool {
        self.fault == FaultLock::VmaRwsem
    }

    /// Returns the slot that represents the external rwsem of a VMA.
    pub(super) fn external_slot(&self) -> &Slot {
        &self.external
    }

    /// Returns the slots that may hold readers of the VMAs, including late readers of another address space.
    #[inline]
    pub(super) fn slots(&self) -> Option<&ReaderSlots<H>> {
        self.slots.as_deref()
    }

    /// Returns the slots that a reader of this address space may enter.
    #[inline]
    pub(super) fn slots_to_enter(&self) -> Option<&ReaderSlots<H>> {
        if self.fault == FaultLock::VmaCount { None } else { self.slots() }
    }
}
