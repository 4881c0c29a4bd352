//! Mappings with rules of the embedder (`src/file/kinds/special.rs`, `src/file/kinds/driver.rs`,
//! `src/fault/special.rs`): device memory, a crash dump, the vdso. The embedder's *hooks* (`Driver`, `VmOps`)
//! choose the frames, and are called when a VMA is opened, closed, split or moved.
//!
//! Most tests use the board of `support/board.rs`. A test configures the driver of the board, and the board
//! counts the calls of the hooks. At the end of most tests, `Board::assert_closed` checks that every opened
//! VMA was closed and that all private data was dropped.
//! `lab/freehold-machine/tests/shuttle_engine/special.rs` explores concurrent cases.
//!
//! The subjects of the files: device memory (`mapping.rs`), revoked frames (`revoke.rs`), hooks that fail or
//! call the engine (`hooks.rs`), the vdso (`vdso.rs`), a crash dump (`vmcore.rs`), random calls
//! (`random.rs`), and failed allocations (`oom.rs`).

mod hooks;
mod mapping;
mod oom;
mod random;
mod revoke;
mod vdso;
mod vmcore;

use crate::support::{self, *};
use board::*;

/// Flags of a mapping whose stores reach the device.
pub const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED);
/// Flags of a mapping whose stores go to copies.
pub const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::FIXED);
