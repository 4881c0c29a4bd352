//! What real programs did to their memory: recordings in, a replay plan out.
//!
//! A recording is a stream of [`Event`]s in the order in which the kernel applied them, the files that were mapped, and
//! [`Snapshot`]s: the kernel's own lists of VMAs and present pages. Its text formats are described in `docs/trace-format.md`.
#![deny(unsafe_code)]

mod event;
mod snapshot;

pub use event::{Call, CallName, Cost, Event, FaultCode, FileInfo, Kind, Returned, Transfer, Why};
pub use snapshot::{Area, Pages, Snapshot};
