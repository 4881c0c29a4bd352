//! Errors of userfaultfd: of registration, of the operations of the pager, and of reading messages. `uffd/`
//! returns these errors. `mod.rs` describes the macros and the messages. The tests are those of `tests/uffd`.

use super::{Errno, NoMemory};
use freehold_sync::Killed;

verb_error! {
    /// Reason why memory was not registered with a userfaultfd or not unregistered.
    UffdRegisterError {
        /// The range is not page-aligned or leaves user space, the mode is unknown, or the memory or the
        /// format of page tables does not allow this.
        ///
        /// See [`RegisterMode::supported`](crate::uffd::RegisterMode::supported).
        Invalid => EINVAL,
        /// The memory can never be written.
        NotPermitted => EPERM,
        /// The memory is registered with another userfaultfd.
        Busy => EBUSY,
        /// The limit on VMAs would be exceeded by splitting one.
        TooManyVmas => ENOMEM,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
        /// The address space no longer exists.
        SpaceGone => ENOMEM,
        /// The userfaultfd is closed.
        Closed => EBADF,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why pages were not supplied, protected or moved through a userfaultfd. The pages below the
    /// cause of the error may already have been processed.
    UffdError {
        /// The range is not page-aligned or leaves user space, the mode is unknown, or the VMAs do not allow
        /// this.
        Invalid => EINVAL,
        /// The range does not lie in one VMA that is registered with this userfaultfd.
        NotRegistered => ENOENT,
        /// A page is there already.
        Present => EEXIST,
        /// The mappings are changing, and the message about the change is unread.
        Changing => EAGAIN,
        /// The page lies beyond the end of its file, is not in its cache, or is lost.
        BadAddress => EFAULT,
        /// There is no page at the source of the move.
        SourceHole => ENOENT,
        /// The page to be moved is also in use elsewhere.
        Busy => EBUSY,
        /// The address space no longer exists.
        SpaceGone => ESRCH,
        /// There is no memory for a page or page table.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for a lock.
        Killed => EINTR,
    }
}

freehold_sync::error_enum! {
    /// Reason why a userfaultfd has no message.
    #[non_exhaustive]
    pub enum UffdReadError {
        /// The userfaultfd is closed.
        Closed,
        /// A signal arrived while waiting for a message.
        Interrupted,
    }
}

impl UffdReadError {
    /// Returns the number that a system call returns for this error.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::error::{Errno, UffdReadError};
    /// assert_eq!(UffdReadError::Closed.errno(), Errno::EBADF);
    /// assert_eq!(UffdReadError::Interrupted.errno(), Errno::EINTR);
    /// ```
    pub fn errno(self) -> Errno {
        match self {
            UffdReadError::Closed => Errno::EBADF,
            UffdReadError::Interrupted => Errno::EINTR,
        }
    }
}
