//! Errors of calls that use the memory of a process on its behalf, or ask about it.

use super::{Errno, NoMemory};
use core::fmt;
use freehold_sync::Killed;

verb_error! {
    /// Why another's memory could not be read or written; nothing was.
    AccessError {
        /// Nothing is mapped there, it does not allow this, or its page could not be had.
        BadAddress => EFAULT,
        /// The lengths add up to more than a call can report.
        TooLong => EINVAL,
        /// The two address spaces belong to different engines.
        OtherEngine => EXDEV,
        /// No memory.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for a lock.
        Killed => EINTR,
    }
}

plain_error! {
    /// Why no VMA was found.
    QueryError {
        /// Flags that nobody knows.
        Invalid => EINVAL,
        /// None is there that is as wanted.
        NotFound => ENOENT,
    }
}

plain_error! {
    /// Why the bounds of arguments were not set.
    ArgumentsError {
        /// They are no ranges of user addresses.
        Invalid => EINVAL,
    }
}

verb_error! {
    /// Why a stack could not be moved.
    StackMoveError {
        /// No stack starts there; or a distance that is no multiple of a page, or leads below the lowest
        /// address.
        Invalid => EINVAL,
        /// Something is mapped between the new place and the old.
        Occupied => EFAULT,
        /// No memory for page tables or the engine's own records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why no page could be pinned.
    PinError {
        /// Nothing is mapped there, it does not allow this, or its page could not be had; or bytes beyond
        /// what is pinned, or stores
        /// to what is not pinned for them.
        BadAddress => EFAULT,
        /// For long, and for stores to a file that has to know when its pages are written.
        Tracked => EFAULT,
        /// For long, and the frames are the file's storage.
        Direct => EOPNOTSUPP,
        /// The page is pinned more often than can be counted.
        TooMany => ENOMEM,
        /// No memory.
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
