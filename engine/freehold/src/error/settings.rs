//! Errors of calls that configure engines and address spaces: their creation, the break, and the settings
//! that Linux has in prctl. `mod.rs` describes the macros and the messages. The checks that return these
//! errors are in `engine/mod.rs`, in `space/`, and in `call/brk.rs` and `call/ksm.rs`.

use super::{Errno, NoMemory};
use freehold_sync::Killed;

unkillable_error! {
    /// Reason why an engine could not be created.
    EngineError {
        /// The lowest address that may be mapped lies beyond user space.
        ///
        /// See [`Config::mmap_min_addr`](crate::engine::Config::mmap_min_addr).
        LowestAddress => EINVAL,
        /// There is no memory left.
        OutOfMemory => ENOMEM,
    }
}

plain_error! {
    /// Reason why the soft-dirty bits of an address space were not all cleared.
    SoftDirtyError {
        /// The format of the page tables has no soft-dirty bit.
        ///
        /// See [`Format::FLAGS`](crate::platform::Format::FLAGS). Every page counts as written.
        NotSupported => EINVAL,
        /// A fatal signal arrived, and the bits of only some VMAs are cleared.
        Killed => EINTR,
    }
}

impl From<Killed> for SoftDirtyError {
    fn from(_: Killed) -> Self {
        Self::Killed
    }
}

unkillable_error! {
    /// Reason why an address space could not be created.
    SpaceError {
        /// The base of mappings is not page-aligned, or lies above the addresses that are chosen without a
        /// hint.
        ///
        /// See [`SpaceConfig::mmap_base`](crate::space::SpaceConfig::mmap_base) and
        /// [`MAP_WINDOW_END`](crate::space::AddressSpace::MAP_WINDOW_END).
        MmapBase => EINVAL,
        /// The start of the heap lies beyond user space.
        ///
        /// See [`SpaceConfig::brk`](crate::space::SpaceConfig::brk).
        Heap => EINVAL,
        /// The range of the program's data ends before it begins, or beyond user space.
        ///
        /// See [`SpaceConfig::data`](crate::space::SpaceConfig::data).
        Data => EINVAL,
        /// The setting for memory that is both writable and executable is invalid.
        ///
        /// See [`SpaceConfig::mdwe`](crate::space::SpaceConfig::mdwe).
        Mdwe => EINVAL,
        /// There is no memory for records or the root table.
        OutOfMemory => ENOMEM,
    }
}

plain_error! {
    /// Reason why memory that is both writable and executable was not forbidden.
    MdweError {
        /// A bit is unknown, or the bits exempt children from the restriction without requesting the
        /// restriction.
        Invalid => EINVAL,
        /// An earlier call made a different setting, which cannot be changed any more.
        NotPermitted => EPERM,
    }
}

plain_error! {
    /// Reason why the change between mergeable and ordinary memory did not reach all VMAs.
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
    /// Reason why the break was not reported or moved.
    BrkError {
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

impl From<Killed> for BrkError {
    fn from(_: Killed) -> Self {
        BrkError::Killed
    }
}

plain_error! {
    /// Reason why the heap was not moved to another place.
    HeapError {
        /// The heap would end before it begins, or lie beyond user space.
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

unkillable_error! {
    /// Reason why a swap device was not added.
    SwapOnError {
        /// The device has no slots, or too many.
        Invalid => EINVAL,
        /// The maximum number of swap devices is in use.
        TooManyDevices => EPERM,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
    }
}

verb_error! {
    /// Reason why a swap device was not removed.
    SwapOffError {
        /// The swap device does not exist.
        NotFound => EINVAL,
        /// Slots of the swap device may still be allocated.
        NotClosed => EINVAL,
        /// The swap device still has pages: writes of these pages are under way, or page tables of an address
        /// space that the caller did not name need them.
        InUse => EBUSY,
        /// The swap device could not read a page.
        Io => EIO,
        /// There is no memory for a page.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived.
        Killed => EINTR,
    }
}
