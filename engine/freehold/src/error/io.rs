//! The error of a read or write of a backing store: a file's, or a swap device.

use core::fmt;

/// Error of a failed read or write of the backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError;

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("input or output failed")
    }
}

impl core::error::Error for IoError {}
