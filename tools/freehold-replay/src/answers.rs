//! Converts answers of the engine to the form that recordings use.

use freehold::error::Errno;
use freehold_trace::Returned;

/// Returns the result of a call of the engine as a recorded answer.
pub(super) fn returned(result: Result<u64, Errno>) -> Returned {
    match result {
        Ok(value) => Returned::Value(value),
        Err(Errno(number)) => Returned::Error(number as u16),
    }
}
