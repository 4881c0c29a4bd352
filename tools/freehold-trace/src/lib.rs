//! What real programs did to their memory: recordings in, a replay plan out.
//!
//! A recording is a stream of [`Event`]s in the order in which the kernel applied them, the files that were
//! mapped, and [`Snapshot`]s: the kernel's own lists of VMAs and present pages. Its text formats are
//! described in `docs/trace-format.md`.
#![deny(unsafe_code)]

mod addresses;
mod ahead;
mod descriptor;
mod error;
mod event;
mod fields;
mod files;
mod input;
mod limits;
mod lines;
mod numbers;
pub mod operation;
pub mod plan;
mod recording;
mod snap;
mod snapshot;
mod strace;
mod thp;
mod tmpfs;
mod trace;
mod unread;
mod write;

pub use error::{Place, ReadError};
pub use event::{Beside, Call, CallName, Cost, Event, FaultCode, FileInfo, Kind, Returned, Transfer, Why};
pub use input::without_suffix;
pub use limits::{KnownLimits, Limits};
pub use recording::{Format, Recording};
pub use snapshot::{Area, Pages, Snapshot};
pub use thp::{Thp, shown_thp};
pub use tmpfs::TmpfsHuge;
pub use unread::Unread;
pub use write::{SnapWriter, TraceWriter};
