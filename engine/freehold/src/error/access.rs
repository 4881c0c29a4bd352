//! Errors of calls that access the memory of another process, report about an address space, set the bounds
//! of its arguments, move the stack, or pin pages. `remote/`, `report/`, `space/arguments.rs` and
//! `call/stack_move.rs` return these errors. `mod.rs` describes the macros and the messages. A new variant of
//! [`AccessError`] also needs an arm in the conversion to [`PinError`] below, and in the conversion to
//! `MadviseError` (`call/madvise/failure.rs`).

use super::{Errno, NoMemory};
use freehold_sync::Killed;

verb_error! {
    /// Reason why the memory of another process could not be read or written. No byte was transferred.
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
    /// Reason why no VMA was found.
    QueryError {
        /// The flags are unknown.
        Invalid => EINVAL,
        /// No VMA there matches the flags.
        NotFound => ENOENT,
    }
}

plain_error! {
    /// Reason why the bounds of the arguments were not set.
    ArgumentsError {
        /// The bounds are not ranges of user addresses.
        Invalid => EINVAL,
    }
}

verb_error! {
    /// Reason why a stack could not be moved.
    StackMoveError {
        /// No stack starts there, the distance is not a whole number of pages, or the new place lies below
        /// the lowest address.
        Invalid => EINVAL,
        /// Another mapping lies between the new place and the old one.
        Occupied => EFAULT,
        /// There is no memory for page tables or the engine's records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why no page could be pinned.
    PinError {
        /// Nothing is mapped there, the mapping or the pin does not allow the access, or the page is not
        /// available.
        BadAddress => EFAULT,
        /// A long-term pin for writing would keep the file from being notified of every write to its pages.
        Tracked => EFAULT,
        /// The frames are the file's storage and cannot be pinned for long.
        Direct => EOPNOTSUPP,
        /// The page is pinned more often than the pin count can represent.
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
