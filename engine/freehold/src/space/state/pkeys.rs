//! The record of the protection keys in use. `space/pkeys.rs` explains protection keys and has the operations
//! on this record.

use freehold_sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The protection keys that one address space uses.
///
/// pkey_alloc, pkey_free and fork write this record under the space's mmap lock held for writing. The first
/// request for `EXEC` without other rights also writes it, as a range writer if the design has range writers.
/// Two range writers may make that request concurrently. The whole record is one atomic word, and range
/// writers make no other change, so both store the same word. All accesses are Relaxed, because no other data
/// depends on this word.
pub(crate) struct Pkeys {
    /// A [`PkeySet`].
    word: AtomicU32,
}

/// The keys in use at one moment.
///
/// | bits | content |
/// | --- | --- |
/// | 0 to 15 | one bit for each allocated key, including the execute-only key |
/// | 16 to 19 | the execute-only key; 0 if none is allocated yet |
#[derive(Clone, Copy)]
pub(in crate::space) struct PkeySet(u32);

impl PkeySet {
    /// The number of protection keys, and of bits for them.
    const KEYS: u8 = 16;

    /// Returns true if `pkey` is allocated or is the execute-only key.
    pub fn contains(self, pkey: u8) -> bool {
        pkey < Self::KEYS && self.0 & (1 << pkey) != 0
    }

    /// Returns the execute-only key.
    pub fn execute_only(self) -> Option<u8> {
        let pkey = (self.0 >> Self::KEYS) as u8;
        (pkey != 0).then_some(pkey)
    }

    /// Returns the lowest free key.
    pub fn lowest_free(self) -> Option<u8> {
        let pkey = self.0.trailing_ones() as u8;
        (pkey < Self::KEYS).then_some(pkey)
    }

    /// Adds an allocated key.
    pub fn with(self, pkey: u8) -> Self {
        PkeySet(self.0 | 1 << pkey)
    }

    /// Removes a key.
    pub fn without(self, pkey: u8) -> Self {
        PkeySet(self.0 & !(1 << pkey))
    }

    /// Adds the execute-only key. The set must not have one, so bits 16 to 19 are 0.
    pub fn with_execute_only(self, pkey: u8) -> Self {
        PkeySet(self.with(pkey).0 | u32::from(pkey) << Self::KEYS)
    }
}

impl Pkeys {
    pub fn new() -> Self {
        Pkeys { word: AtomicU32::new(1) }
    }

    /// Returns the keys in use.
    pub(in crate::space) fn set(&self) -> PkeySet {
        PkeySet(self.word.load(Relaxed))
    }

    /// Replaces the record.
    pub(in crate::space) fn replace(&self, set: PkeySet) {
        self.word.store(set.0, Relaxed);
    }
}
