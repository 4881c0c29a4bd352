//! Swap: the devices that anonymous and shared pages are stored on when memory is short, and the table that
//! says where each page is.
//!
//! | file | contents |
//! | --- | --- |
//! | `entry.rs` | [`SwapId`] and [`SwapEntry`]: the names of devices and slots |
//! | `word.rs`, `slot.rs` | the word of a slot: its encoding, and the protocol of its changes |
//! | `cluster.rs`, `table.rs` | which slots of a device are free |
//! | `device.rs`, `requests.rs` | [`SwapDevice`], which the embedder implements, and the requests that it gets |
//! | `area.rs`, `state.rs` | a device in use, and its state |
//! | `list.rs`, `devices.rs` | the list of devices; all devices of an engine ([`Swap`]) |
//!
//! # Life of a page
//!
//! ```text
//! allocate -> insert -> entries of page tables are replaced (duplicate) -> begin_write -> end_write: stored
//! fault: lookup -> stored: begin_read, send_read; being read: wait_for_read -> take: mapped again
//! ```
//!
//! While the page is in a frame, the word of the slot names the frame (the *swap cache*), and lookups take a
//! reference to it without a lock. No lock is held while a device works. A page whose write is under way can
//! be mapped again or freed at any time; its slot becomes free when the write ends.
//!
//! This folder is a layer below files and address spaces: it knows devices, slots and frames. Unmapping the
//! pages, swap entries in page tables, and the choice of the pages belong to layers above. `slot.rs` has the
//! table of all states.

mod area;
mod cluster;
mod device;
mod devices;
mod entry;
mod list;
mod requests;
mod slot;
mod state;
mod table;
mod window;
mod word;

pub use device::SwapDevice;
pub use devices::SwapUsage;
#[doc(hidden)]
pub use devices::{NoSlot, SlotRun, Swap, SwapReadError, Taken};
#[doc(hidden)]
pub use entry::SwapEntry;
pub use entry::SwapId;
pub(crate) use list::{DeviceList, Slots};
pub use requests::{SwapRead, SwapWrite};
#[doc(hidden)]
pub use slot::{DuplicateError, Lookup};
#[doc(hidden)]
pub(crate) use window::SwapWindows;
pub use word::Shadow;
