//! A test of the removal of a swap device under loom, which tries all schedules and the results that the
//! memory model allows.

use super::{
    super::{slot::Unused, table::SwapTable},
    *,
};
use freehold_sync::testing::{LoomHost, model_bounded};
use loom::{sync::Arc, thread};

struct Device {
    state: DeviceState,
    table: SwapTable<LoomHost>,
}

/// An allocation that has found the device open reserves a slot while the device is closed and removed.
#[test]
fn removal_finds_the_slot_or_the_allocation_is_cancelled() {
    model_bounded(3, || {
        let table = SwapTable::try_new(1).unwrap();
        // The table of the cluster exists.
        let first = table.allocate(1).unwrap().unwrap();
        table.free(first.first, Unused::Free);
        let device = Arc::new(Device { state: DeviceState::new(), table });
        let allocation = {
            let device = device.clone();
            thread::spawn(move || {
                let found = device.table.allocate(1).unwrap();
                found.is_some() && device.state.is_open_after_allocation()
            })
        };
        assert!(device.state.close() && device.state.begin_removal());
        let is_removed = device.table.is_unused();
        assert!(!(allocation.join().unwrap() && is_removed), "a slot of a removed device is used");
    });
}
