//! The size of tables.

/// log2 of the number of entries of a table. Two entries are enough to try every interleaving of
/// neighbours, and more than the exhaustive checker could get through.
pub const TABLE_BITS: u32 = if cfg!(loom) { 1 } else { 9 };
