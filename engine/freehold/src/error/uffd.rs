//! Errors of userfaultfd.

use super::{Errno, NoMemory};
use freehold_sync::Killed;

verb_error! {
    /// Why memory was not registered with a userfaultfd, or stayed registered.
    UffdRegisterError {
        /// The range is not whole pages of user space, the mode is unknown, or the memory there cannot be
        /// registered or unregistered like this.
        Invalid => EINVAL,
        /// The memory can never be written.
        NotPermitted => EPERM,
        /// The memory is registered with another userfaultfd.
        Busy => EBUSY,
        /// The limit on VMAs would be exceeded by cutting one.
        TooManyVmas => ENOMEM,
        /// There is no memory for the engine's records.
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
        /// The range is not whole pages of user space, the mode is unknown, or the VMAs there do not allow
        /// this.
        Invalid => EINVAL,
        /// The range does not lie in one VMA that is registered with this userfaultfd.
        NotRegistered => ENOENT,
        /// A page is there already.
        Present => EEXIST,
        /// The mappings are changing, and the message about that is unread.
        Changing => EAGAIN,
        /// The page lies beyond the end of its file, is not in its cache, or is lost.
        BadAddress => EFAULT,
        /// There is no page to be moved.
        SourceHole => ENOENT,
        /// The page to be moved is in use elsewhere.
        Busy => EBUSY,
        /// The address space is gone.
        SpaceGone => ESRCH,
        /// There is no memory for a page or page table.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for a lock.
        Killed => EINTR,
    }
}

freehold_sync::error_enum! {
    /// Why a userfaultfd has no message.
    #[non_exhaustive]
    pub enum UffdReadError {
        /// The userfaultfd is closed.
        Closed,
        /// A signal arrived while waiting for a message.
        Interrupted,
    }
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
