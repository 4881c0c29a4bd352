//! Recordings of the memory operations of real programs, and replay plans made of recordings.
//!
//! A recording is a stream of [`Event`]s in the order in which they took effect in the kernel, the list of
//! files that were mapped, and [`Snapshot`]s: the kernel's VMA lists and present pages.
//! `docs/reference/trace-format.md` describes the text formats: `NAME.trace` with `NAME.snap`, and strace
//! output.
//!
//! The path of the data: `input.rs` opens a file, `lines.rs` splits it into lines, `trace.rs` or `strace/`
//! makes events of the lines, and `snap.rs` reads snapshots. `recording.rs` combines these readers in a
//! [`Recording`], from which `plan/` makes the plan that `freehold-replay` runs. `freehold-record` writes
//! recordings with `write.rs`.
//!
//! The readers must accept any bytes: a damaged or hostile file gives an error with a place, never a panic,
//! and memory stays bounded. `tests/mutations.rs` checks this. The fuzz targets `recording` and `snapshots`
//! (`cargo xtask fuzz`) check it with random files.
//!
//! A new fact in recordings belongs in `trace.rs`, `write.rs` and `docs/reference/trace-format.md`;
//! `event.rs` says what a new call needs. How a fact affects the order of a replay belongs in `plan/`.
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
