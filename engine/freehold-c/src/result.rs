//! Results as C sees them: 0 or a value, or a negative errno number.

use core::ffi::c_int;
use freehold::error::{Errno, ToErrno};

/// Success of a call without a value.
pub(crate) const OK: c_int = 0;

/// Returns the result of a call that has failed.
pub fn failure(errno: Errno) -> c_int {
    -errno.number()
}

/// Returns the result of a call without a value.
pub fn status(result: Result<(), impl ToErrno>) -> c_int {
    result.map_or_else(|error| failure(error.to_errno()), |()| OK)
}

/// Returns the result of a call with a value: an address, or a number of bytes.
pub fn value(result: Result<u64, impl ToErrno>) -> i64 {
    result.map_or_else(|error| i64::from(failure(error.to_errno())), |value| value as i64)
}
