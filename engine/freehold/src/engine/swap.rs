//! Adding swap devices to an engine. `swap/` has the devices and their pages.

use super::Engine;
use crate::{
    error::SwapOnError,
    platform::Platform,
    swap::{Swap, SwapDevice, SwapId, SwapUsage},
};

impl<P: Platform> Engine<P> {
    /// Adds a device that pages are swapped to. Devices with a higher priority are filled first. Devices of
    /// the same priority take turns.
    ///
    /// # Errors
    ///
    /// Fails if the device has no slots or more than 2<sup>40</sup>, if 32 devices are in use, or if there is
    /// no memory. The table of the device needs 64 bytes for every 512 slots now, and 4 KiB more when the
    /// first of these slots is used.
    ///
    /// # Examples
    ///
    /// See [`SwapDevice`].
    pub fn swap_on(&self, device: impl SwapDevice<P>, priority: i16) -> Result<SwapId, SwapOnError> {
        self.swap().swap_on(device, priority)
    }

    /// Returns the numbers of slots of a swap device, or `None` if it does not exist. The numbers are exact
    /// if no task swaps pages concurrently.
    ///
    /// # Examples
    ///
    /// See [`SwapDevice`].
    pub fn swap_usage(&self, id: SwapId) -> Option<SwapUsage> {
        self.swap().usage(id)
    }

    /// Returns the swap devices, for tests.
    #[doc(hidden)]
    pub fn swap(&self) -> &Swap<P> {
        &self.files().swap
    }
}
