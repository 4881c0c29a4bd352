//! Lengths of files in bytes. The engine needs a size for each file, and a recording does not show every
//! length.
//!
//! A file of unknown length gets the size [`MAX_SIZE`], so that every page lies within the file for the
//! engine. [`known`] returns `None` for such a file. `refused.rs` counts answers that depend on the end of
//! such a file as not checked. No file of known length may therefore have this size.

use freehold::file::Mapping;
use freehold_machine::Machine;

/// Largest file size. Also the size of a file whose length is not known.
pub(super) const MAX_SIZE: u64 = 1 << 46;

/// Returns the size to give to the engine for a length in bytes, which may be unknown.
pub(super) fn to_size(bytes: Option<u64>) -> u64 {
    bytes.unwrap_or(MAX_SIZE)
}

/// Returns the length of a file in bytes, if known.
pub(super) fn known(mapping: &Mapping<Machine>) -> Option<u64> {
    Some(mapping.size()).filter(|bytes| *bytes != MAX_SIZE)
}
