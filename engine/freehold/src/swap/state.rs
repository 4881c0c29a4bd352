//! The state of a swap device: whether slots are allocated, and whether the device is about to be removed.
//!
//! | state | set by | effect |
//! | --- | --- | --- |
//! | open | [`new`](DeviceState::new), [`reopen`](DeviceState::reopen) | slots are allocated |
//! | closed | [`close`](DeviceState::close), [`keep`](DeviceState::keep) | no slot is allocated. The pages stay; swapoff reads them back |
//! | going | [`begin_removal`](DeviceState::begin_removal) from *closed* | if no slot is in use, the device leaves the list. Otherwise it is closed again |
//!
//! An allocation writes the words of its slots and then examines the state. A removal changes the state and
//! then examines the words. Each has a fence in between, so the allocation sees the change and is cancelled,
//! or the removal sees the slots. `state_loom_tests.rs` tests this, and the mutations `swap-device-*` remove
//! the fences.

use freehold_sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, SeqCst},
    fence,
};

const OPEN: u32 = 0;
const CLOSED: u32 = 1;
const GOING: u32 = 2;

/// The state of a swap device.
pub(super) struct DeviceState(AtomicU32);

impl DeviceState {
    /// Returns the state *open*.
    pub fn new() -> Self {
        DeviceState(AtomicU32::new(OPEN))
    }

    /// Returns true if slots are allocated. The result is a hint; an allocation calls
    /// [`is_open_after_allocation`](Self::is_open_after_allocation) before it uses its slots.
    pub fn is_open(&self) -> bool {
        // Relaxed, here and below: the two fences of this file order the accesses that must be ordered.
        self.0.load(Relaxed) == OPEN
    }

    /// Returns true if an allocation may use the slots that it has reserved.
    pub fn is_open_after_allocation(&self) -> bool {
        // Pairs with the fence in `begin_removal`.
        fence(SeqCst);
        self.is_open()
    }

    /// Closes an open device. Returns false if the device is not open.
    pub fn close(&self) -> bool {
        self.change(OPEN, CLOSED)
    }

    /// Opens a closed device. Does nothing if the device is not closed.
    pub fn reopen(&self) {
        self.change(CLOSED, OPEN);
    }

    /// Begins the removal of a closed device. Returns false if the device is not closed. Otherwise the caller
    /// examines the slots, and then removes or [keeps](Self::keep) the device.
    pub fn begin_removal(&self) -> bool {
        let begins = self.change(CLOSED, GOING);
        // Pairs with the fence in `is_open_after_allocation`.
        fence(SeqCst);
        begins
    }

    /// Ends a removal that has found slots in use. The device stays closed.
    pub fn keep(&self) {
        self.0.store(CLOSED, Relaxed);
    }

    fn change(&self, old: u32, new: u32) -> bool {
        self.0.compare_exchange(old, new, Relaxed, Relaxed).is_ok()
    }
}

#[cfg(all(test, loom))]
#[path = "state_loom_tests.rs"]
mod loom_tests;
