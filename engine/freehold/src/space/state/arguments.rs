//! Where a program's arguments and environment lie.

use core::ops::Range;

/// Where they lie: addresses of this space, which need not be mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The arguments, each with a zero at its end.
    pub args: Range<u64>,
    /// The environment, in the same form.
    pub env: Range<u64>,
}
