//! Mappings with rules of the embedder: device memory, a crash dump, the vdso. Numbers such as C-31 refer to
//! the list of hazards.

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
