//! Mappings by an embedder's own rules: a device's memory, a crash dump, the vdso. Numbers such as C-31 are
//! those of the list of hazards.

mod hooks;
mod mapping;
mod oom;
mod random;
mod revoke;
mod vdso;
mod vmcore;

use crate::support::{self, *};
use board::*;

/// Stores reach the device.
pub const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED);
/// Stores go to copies.
pub const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::FIXED);
