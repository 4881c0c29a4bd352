//! What files know of the regions of machines without an MMU. See [`nommu`](crate::nommu).

pub(crate) mod file_regions;
pub(crate) mod locked;

pub(crate) use file_regions::FileRegions;
