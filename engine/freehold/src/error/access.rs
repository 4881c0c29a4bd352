//! Errors of calls that use the memory of a process on its behalf, or ask about it.

use super::{Errno, NoMemory};
use freehold_sync::Killed;

verb_error! {
    /// Why another's memory could not be read or written; nothing was.
    AccessError {
        /// Nothing is mapped there, the mapping does not allow the access, or its page is not available.
        BadAddress => EFAULT,
        /// The lengths add up to more than a call can report.
        TooLong => EINVAL,
        /// The two address spaces belong to different engines.
        OtherEngine => EXDEV,
        /// There is no memory left.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for a lock.
        Killed => EINTR,
    }
}

plain_error! {
    /// Why no VMA was found.
    QueryError {
        /// The flags are unknown.
        Invalid => EINVAL,
        /// No VMA is there that is as wanted.
        NotFound => ENOENT,
    }
}

plain_error! {
    /// Why the bounds of arguments were not set.
    ArgumentsError {
        /// The bounds are no ranges of user addresses.
        Invalid => EINVAL,
    }
}

verb_error! {
    /// Why a stack could not be moved.
    StackMoveError {
        /// No stack starts there, or the distance is no multiple of a page or leads below the lowest address.
        Invalid => EINVAL,
        /// Another mapping lies between the new place and the old.
        Occupied => EFAULT,
        /// There is no memory for page tables or the engine's records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why no page could be pinned.
    PinError {
        /// Nothing is mapped there, the mapping or the pin does not allow the access, or the page is not
        /// available.
        BadAddress => EFAULT,
        /// The file has to know when its pages are written, which a long pin for stores would prevent.
        Tracked => EFAULT,
        /// The frames are the file's storage and cannot be pinned for long.
        Direct => EOPNOTSUPP,
        /// The page is pinned more often than can be counted.
        TooMany => ENOMEM,
        /// There is no memory left.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for a lock.
        Killed => EINTR,
    }
}

impl From<AccessError> for PinError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::BadAddress | AccessError::TooLong | AccessError::OtherEngine => PinError::BadAddress,
            AccessError::OutOfMemory => PinError::OutOfMemory,
            AccessError::Killed => PinError::Killed,
        }
    }
}
