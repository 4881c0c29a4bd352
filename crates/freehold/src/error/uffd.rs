//! Errors of userfaultfd.

use super::{Errno, NoMemory};
use core::fmt;
use freehold_sync::Killed;

verb_error! {
    /// Why memory was not registered with a userfaultfd, or stayed registered.
    UffdRegisterError {
        /// Not whole pages of user space, no mode or an unknown one, nothing mapped, memory that cannot be
        /// registered like this, or, to be
        /// taken back, memory of another userfaultfd.
        Invalid => EINVAL,
        /// Memory that can never be written.
        NotPermitted => EPERM,
        /// Registered with another userfaultfd.
        Busy => EBUSY,
        /// Cutting a VMA would exceed the limit on VMAs.
        TooManyVmas => ENOMEM,
        /// No memory for the engine's own records.
        OutOfMemory => ENOMEM,
        /// The address space is gone.
        SpaceGone => ENOMEM,
        /// The userfaultfd is closed.
        Closed => EBADF,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why a userfaultfd's pages were not supplied, protected or moved; nothing was, or what lies left of the
    /// cause.
    UffdError {
        /// Not whole pages of user space, an unknown mode, or VMAs for which this cannot be done.
        Invalid => EINVAL,
        /// The range does not lie in one VMA that is registered with this userfaultfd.
        NotRegistered => ENOENT,
        /// Something is there already.
        Present => EEXIST,
        /// What is mapped is changing, and the message was not read yet.
        Changing => EAGAIN,
        /// Beyond the end of the file, not in its cache, or a page to be moved is lost.
        BadAddress => EFAULT,
        /// There is no page to be moved.
        SourceHole => ENOENT,
        /// Somebody else has the page that is to be moved.
        Busy => EBUSY,
        /// The address space is gone.
        SpaceGone => ESRCH,
        /// No memory for a page or table.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for a lock.
        Killed => EINTR,
    }
}

/// Why a userfaultfd has no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UffdReadError {
    /// It is closed.
    Closed,
    /// A signal arrived while one was waited for.
    Interrupted,
}

impl UffdReadError {
    /// The number a system call would return for this error.
    pub fn errno(self) -> Errno {
        match self {
            UffdReadError::Closed => Errno::EBADF,
            UffdReadError::Interrupted => Errno::EINTR,
        }
    }
}

impl fmt::Display for UffdReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl core::error::Error for UffdReadError {}
