//! The keys on which threads sleep, and the places of sleepers in the lists of `wait.rs`. `thread.rs` records the
//! place to which a sleeper was moved. This file has no state. The program `jobs.c` of the tests checks that
//! moved sleepers are found.

/// The object on which threads sleep.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// An address space, a file, or 0 for the kernel.
    pub of: u64,
    /// An address or an offset in that object.
    pub at: u64,
}

impl Key {
    /// Returns the key of a kernel object, by its address.
    pub fn kernel(at: u64) -> Self {
        Key { of: 0, at }
    }
}

/// The place of a sleeper in its list. The sleepers of a key are consecutive, in the order of their arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub key: Key,
    /// A number that is unique in all lists and larger than all numbers before.
    pub order: u64,
}
