//! Errors of calls that configure engines and address spaces: settings that nothing could keep to.

use super::{Errno, NoMemory};
use core::fmt;
use freehold_sync::Killed;

unkillable_error! {
    /// Why an engine was not made.
    EngineError {
        /// The lowest address that may be mapped
        /// ([`Config::mmap_min_addr`](crate::engine::Config::mmap_min_addr)) lies beyond user space.
        LowestAddress => EINVAL,
        /// No memory.
        OutOfMemory => ENOMEM,
    }
}

unkillable_error! {
    /// Why an address space was not made.
    SpaceError {
        /// [`SpaceConfig::mmap_base`](crate::space::SpaceConfig::mmap_base) lies inside a page, or beyond
        /// what is [given to everybody](crate::space::DEFAULT_MAP_WINDOW).
        MmapBase => EINVAL,
        /// [`SpaceConfig::brk`](crate::space::SpaceConfig::brk) lies beyond user space.
        Heap => EINVAL,
        /// [`SpaceConfig::data`](crate::space::SpaceConfig::data) ends before it begins, or beyond user
        /// space.
        Data => EINVAL,
        /// [`SpaceConfig::mdwe`](crate::space::SpaceConfig::mdwe) could not be asked for.
        Mdwe => EINVAL,
        /// No memory for records or the root table.
        OutOfMemory => ENOMEM,
    }
}

plain_error! {
    /// Why an address space did not deny itself what it was to.
    MdweError {
        /// Unknown bits, or only that nobody inherits it.
        Invalid => EINVAL,
        /// Something else was denied before, and for good.
        NotPermitted => EPERM,
    }
}

plain_error! {
    /// Why not all memory became mergeable, or ceased to be.
    MergeError {
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

impl From<Killed> for MergeError {
    fn from(_: Killed) -> Self {
        MergeError::Killed
    }
}

plain_error! {
    /// Why the heap was not put somewhere else.
    HeapError {
        /// Beyond user space.
        Invalid => EINVAL,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

impl From<Killed> for HeapError {
    fn from(_: Killed) -> Self {
        HeapError::Killed
    }
}
