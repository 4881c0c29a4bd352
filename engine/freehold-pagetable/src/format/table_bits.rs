//! The size of tables. Every other size and index follows from [`TABLE_BITS`], which is smaller under loom.

/// The base-2 logarithm of the number of entries of a table. Under loom a table has two entries: two are
/// enough to try every interleaving at neighbouring entries, and loom needs too long for more.
pub const TABLE_BITS: u32 = if cfg!(loom) { 1 } else { 9 };
