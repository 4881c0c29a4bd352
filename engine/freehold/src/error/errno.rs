//! Errno numbers ([`Errno`]), and the trait of all errors that have an errno number ([`ToErrno`]).
//!
//! The errors themselves, with the number of each variant, are in the other files of this folder. A number
//! that no error has used so far needs a line in `errnos!`; `Display` prints the text of that line.

use core::fmt;
use freehold_sync::{Interrupted, Killed, error::write_message};
use freehold_vmspace::NoMemory;

/// A Linux errno number, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Returns the positive number. A system call returns the negated number.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::error::{Errno, MmapError};
    /// assert_eq!(MmapError::Invalid.errno().number(), 22);
    /// assert_eq!(Errno::ENOMEM.number(), 12);
    /// ```
    pub const fn number(self) -> i32 {
        self.0
    }
}

macro_rules! errnos {
    ($($name:ident = $number:literal, $what:literal;)*) => {
        impl Errno { $(#[doc = $what] pub const $name: Errno = Errno($number);)* }

        impl fmt::Display for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Errno::$name => write_message(f, $what)?,)*
                    _ => f.write_str("error")?,
                }
                write!(f, " (errno {})", self.0)
            }
        }

        impl core::error::Error for Errno {}
    };
}

errnos! {
    EPERM = 1, "Operation not permitted";
    ENOENT = 2, "Not found";
    ESRCH = 3, "The process has exited";
    EINTR = 4, "Interrupted by a signal";
    EIO = 5, "Input or output failed";
    EBADF = 9, "Bad file descriptor";
    EAGAIN = 11, "Try again";
    ENOMEM = 12, "Out of memory, a limit, or a hole in the range";
    EACCES = 13, "Permission denied";
    EFAULT = 14, "Bad address";
    EBUSY = 16, "Busy";
    EEXIST = 17, "The place is occupied";
    EXDEV = 18, "The object belongs to another engine";
    ENODEV = 19, "The file cannot be mapped";
    EINVAL = 22, "Invalid argument";
    ETXTBSY = 26, "Text file busy";
    EFBIG = 27, "File too large";
    ENOSPC = 28, "No space or resource left";
    EIDRM = 43, "Identifier removed";
    EOVERFLOW = 75, "Offset too large";
    EOPNOTSUPP = 95, "Not supported";
    EHWPOISON = 133, "The memory failed";
}

/// The errno number of an error, for code that is generic over the operation. Every error of an operation of
/// this crate implements this trait.
///
/// # Examples
///
/// ```
/// use freehold::error::{Errno, MmapError, MunmapError, ToErrno};
///
/// /// Returns the result of a system call as Linux does: a negative number is an error.
/// fn result_of(call: Result<u64, impl ToErrno>) -> i64 {
///     call.map_or_else(|error| -i64::from(error.to_errno().0), |value| value as i64)
/// }
///
/// assert_eq!(result_of(Ok::<_, MmapError>(0x7000)), 0x7000);
/// assert_eq!(result_of(Err(MunmapError::Sealed)), -i64::from(Errno::EPERM.0));
/// ```
pub trait ToErrno: core::error::Error {
    /// Returns the number that a system call returns for this error.
    fn to_errno(&self) -> Errno;
}

impl ToErrno for Errno {
    fn to_errno(&self) -> Errno {
        *self
    }
}

impl ToErrno for Killed {
    fn to_errno(&self) -> Errno {
        Errno::EINTR
    }
}

impl ToErrno for Interrupted {
    fn to_errno(&self) -> Errno {
        Errno::EINTR
    }
}

impl ToErrno for NoMemory {
    fn to_errno(&self) -> Errno {
        Errno::ENOMEM
    }
}
