//! The device that pages are swapped to: the trait [`SwapDevice`], which the embedder implements.
//!
//! `requests.rs` has the requests that a device gets. A device is called without any lock of the engine,
//! except for `discard`. A new function of the trait needs a default body, because embedders implement the
//! trait. `tests/swap.rs` tests devices that fail, complete requests later, or never.

use super::requests::{SwapRead, SwapWrite};
use crate::platform::Platform;

/// A device that pages are swapped to: a number of slots, each with room for a page.
///
/// The engine never reads a slot that was not written, and has at most one request under way for a slot.
/// It writes a slot again only after it has passed the slot to
/// [`discard`](Self::discard). After a failed write it does not use the slot any more.
///
/// # Examples
///
/// A device in memory:
///
/// ```
/// # use freehold::{PAGE_SIZE, platform::Platform, swap::{SwapDevice, SwapRead, SwapWrite}};
/// # use std::{collections::HashMap, sync::Mutex};
/// # let engine = freehold_machine::example_engine(1 << 20);
/// #[derive(Default)]
/// struct Ram(Mutex<HashMap<u64, Vec<u8>>>);
/// impl<P: Platform> SwapDevice<P> for Ram {
///     fn slots(&self) -> u64 {
///         1024
///     }
///     fn read(&self, mut request: SwapRead<P>) {
///         while let Some((slot, frame)) = request.next_page() {
///             request.platform().write_frame(frame, 0, &self.0.lock().unwrap()[&slot]);
///             request.complete(slot, Ok(()));
///         }
///     }
///     fn write(&self, mut request: SwapWrite<P>) {
///         while let Some((slot, frame)) = request.next_page() {
///             let mut page = vec![0; PAGE_SIZE as usize];
///             request.platform().read_frame(frame, 0, &mut page);
///             self.0.lock().unwrap().insert(slot, page);
///             request.complete(slot, Ok(()));
///         }
///     }
///     fn discard(&self, slot: u64) {
///         self.0.lock().unwrap().remove(&slot);
///     }
/// }
/// let id = engine.swap_on(Ram::default(), 0).unwrap();
/// assert_eq!(engine.swap_usage(id).unwrap().slots, 1024);
/// ```
pub trait SwapDevice<P: Platform>: Send + Sync + 'static {
    /// Returns the number of slots. Called once.
    fn slots(&self) -> u64;

    /// Returns true if requests may have several pages, in consecutive slots. Called once. The default is
    /// true.
    fn can_merge(&self) -> bool {
        true
    }

    /// Reads pages: fills the frames of the request and completes its pages, at once or later, on any CPU and
    /// in any order. A task that needs one of the pages waits with no lock held, and a fatal signal ends its
    /// wait. A read that never ends leaves all other slots usable. Pages that are not complete when the
    /// request is dropped fail.
    ///
    /// # Locks
    ///
    /// None. The device may sleep.
    fn read(&self, request: SwapRead<P>);

    /// Writes pages: stores the contents of the frames and completes the pages, like [`read`](Self::read).
    ///
    /// Programs may change the contents of a frame during the write, if no program needs the stored page any
    /// more. The engine then discards the slot after the write. So a device that compresses or encrypts must
    /// not rely on two reads of a frame giving the same bytes.
    ///
    /// # Locks
    ///
    /// None. The device may sleep.
    fn write(&self, request: SwapWrite<P>);

    /// Hears that the contents of a slot are not needed any more. The slot may not have been written. The
    /// default does nothing.
    ///
    /// # Locks
    ///
    /// The locks of page tables, which are spin locks: the device must not sleep here, wake tasks or use the
    /// engine.
    fn discard(&self, slot: u64) {
        let _ = slot;
    }
}
