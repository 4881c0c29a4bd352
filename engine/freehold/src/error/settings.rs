//! Errors of calls that configure engines and address spaces: settings that nothing could keep to.

use super::{Errno, NoMemory};
use freehold_sync::Killed;

unkillable_error! {
    /// Why an engine was not made.
    EngineError {
        /// The lowest address that may be mapped lies beyond user space.
        ///
        /// See [`Config::mmap_min_addr`](crate::engine::Config::mmap_min_addr).
        LowestAddress => EINVAL,
        /// There is no memory left.
        OutOfMemory => ENOMEM,
    }
}

unkillable_error! {
    /// Why an address space was not made.
    SpaceError {
        /// The base of mappings lies inside a page, or beyond the addresses that are given without a hint.
        ///
        /// See [`SpaceConfig::mmap_base`](crate::space::SpaceConfig::mmap_base) and
        /// [`DEFAULT_MAP_WINDOW`](crate::space::DEFAULT_MAP_WINDOW).
        MmapBase => EINVAL,
        /// The start of the heap lies beyond user space.
        ///
        /// See [`SpaceConfig::brk`](crate::space::SpaceConfig::brk).
        Heap => EINVAL,
        /// The range of the program's data ends before it begins, or beyond user space.
        ///
        /// See [`SpaceConfig::data`](crate::space::SpaceConfig::data).
        Data => EINVAL,
        /// The setting that denies memory to be written and executed is invalid.
        ///
        /// See [`SpaceConfig::mdwe`](crate::space::SpaceConfig::mdwe).
        Mdwe => EINVAL,
        /// There is no memory for records or the root table.
        OutOfMemory => ENOMEM,
    }
}

plain_error! {
    /// Why an address space did not deny itself what it was to.
    MdweError {
        /// The bits are unknown, or say only that children do not inherit the setting.
        Invalid => EINVAL,
        /// The setting differs from one that was made before, and that is final.
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
        /// The heap would lie beyond user space.
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
