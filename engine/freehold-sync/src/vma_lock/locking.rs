//! The design of the locks of the VMAs of one address space, and where their readers may be counted.

use crate::atomic::const_unless_loom;
use crate::counted::Counted;
use crate::host::Host;
use crate::reader_slots::{ReaderSlots, Slot};

/// The first lock that a fault tries, and so does every other look at one VMA: readers of maps, access on
/// behalf of others. [`MmapLock`](crate::MmapLock) alone asks which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FaultLock {
    /// The mmap lock for reading (Linux before 6.4).
    MmapLock,
    /// The VMA's own lock, a reader/writer lock in an object beside it (Linux 6.4 to 6.14).
    VmaRwsem,
    /// The VMA's own lock, a count of its readers inside it (step 4, Linux from 6.15 on).
    VmaCount,
    /// The same, with a slot per CPU for readers that meet often in one VMA.
    #[default]
    VmaPerCpu,
}

impl FaultLock {
    /// Each of them.
    pub const ALL: [FaultLock; 4] =
        [FaultLock::MmapLock, FaultLock::VmaRwsem, FaultLock::VmaCount, FaultLock::VmaPerCpu];
}

/// The part of an mmap lock that the locks of its VMAs read. It stands below the mmap lock, whose gate is
/// such a lock.
pub(crate) struct VmaLocking<H: Host> {
    /// Where readers of the VMAs may stand: those of this space, or late ones of another.
    slots: Option<Counted<ReaderSlots<H>>>,
    fault: FaultLock,
    /// Stands for the external rwsem of a VMA. Every mmap lock has one: a late reader may come to a VMA that
    /// has such a lock in another space by now.
    external: Slot,
}

impl<H: Host> VmaLocking<H> {
    const_unless_loom! {
        /// The default design, without slots.
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

    /// Returns true if a look at one VMA tries the lock of that VMA before the mmap lock.
    #[inline]
    pub(crate) fn tries_vma_locks(&self) -> bool {
        self.fault != FaultLock::MmapLock
    }

    /// Returns true if VMAs are locked by external rwsems.
    #[inline]
    pub(crate) fn uses_rwsems(&self) -> bool {
        self.fault == FaultLock::VmaRwsem
    }

    /// Where a reader is counted that has the external rwsem of its VMA.
    pub(super) fn external_slot(&self) -> &Slot {
        &self.external
    }

    /// Where readers of the VMAs may stand.
    #[inline]
    pub(super) fn slots(&self) -> Option<&ReaderSlots<H>> {
        self.slots.as_deref()
    }

    /// The same for a reader of this space.
    #[inline]
    pub(super) fn slots_to_enter(&self) -> Option<&ReaderSlots<H>> {
        if self.fault == FaultLock::VmaCount { None } else { self.slots() }
    }
}
