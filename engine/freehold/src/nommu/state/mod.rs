//! Regions of machines without an MMU: runs of frames that mappings have, or share. See
//! [`nommu`](crate::nommu).

pub(crate) mod locked;
pub(crate) mod region;
mod regions;

pub(crate) use regions::FileRegions;
pub use regions::{RegionCounts, Regions};
