//! The part of the regions of machines without an MMU that files use. See [`nommu`](crate::nommu).

pub(crate) mod file_regions;
pub(crate) mod locked;

pub(crate) use file_regions::FileRegions;
