//! How long files are: the engine wants a size of each, and a recording does not tell all of them.

use freehold::file::Mapping;
use freehold_machine::Machine;

/// No file is taken to be longer. The size of one of which it is not known how long it is.
pub(super) const MOST: u64 = 1 << 46;

/// The size that the engine is given for a length in bytes, if that is known.
pub(super) fn to_size(bytes: Option<u64>) -> u64 {
    bytes.unwrap_or(MOST)
}

/// The length of a file in bytes, if that is known.
pub(super) fn known(mapping: &Mapping<Machine>) -> Option<u64> {
    Some(mapping.size()).filter(|bytes| *bytes != MOST)
}
