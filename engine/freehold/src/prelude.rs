//! The names that most users of this crate need: `use freehold::prelude::*;`.
//!
//! A platform needs other names, which are all in [`platform`](crate::platform). The errors of single
//! operations are in [`error`](crate::error).

pub use crate::{
    PAGE_SIZE, PageCount, PageIndex, PageRange, Pfn, PhysAddr, UserRange, VirtAddr,
    call::{Advice, LockFlags, RemapFlags, SyncFlags},
    counted::Counted,
    engine::{Config, Engine},
    error::{Errno, ToErrno},
    fault::{Access, FaultError, SegvCode, Signal},
    file::{File, FileAccess, IoError, Mapping, Pager},
    platform::Platform,
    space::{AddressSpace, Limits, MapFlags, Prot, SpaceConfig},
};
