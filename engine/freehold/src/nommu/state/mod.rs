//! The part of the regions of machines without an MMU that files use: the tree of regions that each file has,
//! and `Locked`, a lock that owns the value that it guards. [`nommu`](crate::nommu) explains regions.
//!
//! This folder is a layer below files, because a file checks its tree before it loses pages; everything else
//! is one folder up.

pub(crate) mod file_regions;
pub(crate) mod locked;

pub(crate) use file_regions::FileRegions;
