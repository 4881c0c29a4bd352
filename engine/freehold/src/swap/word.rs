//! The encoding of a slot's state in one word. `slot.rs` has the meaning of the states and the changes.
//!
//! | bits | contents |
//! | --- | --- |
//! | 0, 1 | kind: 0 unused, 1 stored, 2 cached, 3 being read |
//! | 2, 3 | a detail of the kind: free, reserved or bad; new, being written, clean or failed; a task waits |
//! | 4 to 23 | number of swap entries that name the slot |
//! | 24 to 63 | number of the frame; for a stored page, the shadow |
//!
//! The word 0 is a free slot, so a zeroed table is an empty table. The round trip of each state is tested in
//! `slot_tests.rs`.

use crate::Pfn;

/// Number of bits of a frame number and of a shadow.
pub(super) const VALUE_BITS: u32 = 40;
/// Number of bits of the count of swap entries.
const COUNT_BITS: u32 = 20;
/// Maximum number of swap entries that name a slot.
pub(super) const MAX_COUNT: u32 = (1 << COUNT_BITS) - 1;

const DETAIL_SHIFT: u32 = 2;
const COUNT_SHIFT: u32 = 4;
const VALUE_SHIFT: u32 = COUNT_SHIFT + COUNT_BITS;

const UNUSED: u64 = 0;
const STORED: u64 = 1;
const CACHED: u64 = 2;
const READING: u64 = 3;

const _: () = assert!(VALUE_SHIFT + VALUE_BITS == u64::BITS, "the word has no spare bits");

/// The time of an eviction on the clock of evictions, which a slot keeps while its page is stored. The
/// difference to the time of the next access is the refault distance. Only the low 40 bits are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shadow(u64);

impl Shadow {
    /// Returns the low 40 bits of a time.
    pub const fn new(time: u64) -> Self {
        Shadow(time & ((1 << VALUE_BITS) - 1))
    }

    /// Returns the low 40 bits of the time.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The relation between a page in the swap cache and the contents of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copy {
    /// The slot has not been written.
    New,
    /// The page is being written to the slot.
    Writing,
    /// The slot has the contents of the page.
    Clean,
    /// The write has failed. The slot becomes bad when it is not used any more.
    Failed,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not in use.
    Free,
    /// Taken by a task that is about to put a page there.
    Reserved,
    /// Never used again, because a write has failed.
    Bad,
    /// The contents are on the device only.
    Stored { shadow: Shadow, count: u32 },
    /// The page is in a frame. The count is zero only during a write that no entry needs any more.
    Cached { pfn: Pfn, count: u32, copy: Copy },
    /// The page is being read into a frame. The count is zero only if no entry needs the page any more.
    Reading { pfn: Pfn, count: u32, waited: bool },
}

impl State {
    /// Returns the word of the state.
    pub fn word(self) -> u64 {
        let pack = |kind: u64, detail: u64, count: u32, value: u64| {
            debug_assert!(value >> VALUE_BITS == 0 && count <= MAX_COUNT);
            kind | detail << DETAIL_SHIFT | u64::from(count) << COUNT_SHIFT | value << VALUE_SHIFT
        };
        match self {
            State::Free => pack(UNUSED, 0, 0, 0),
            State::Reserved => pack(UNUSED, 1, 0, 0),
            State::Bad => pack(UNUSED, 2, 0, 0),
            State::Stored { shadow, count } => pack(STORED, 0, count, shadow.get()),
            State::Cached { pfn, count, copy } => {
                let detail = match copy {
                    Copy::New => 0,
                    Copy::Writing => 1,
                    Copy::Clean => 2,
                    Copy::Failed => 3,
                };
                pack(CACHED, detail, count, pfn.get())
            }
            State::Reading { pfn, count, waited } => pack(READING, waited.into(), count, pfn.get()),
        }
    }

    /// Returns the state that [`word`](Self::word) encoded.
    pub fn of(word: u64) -> Self {
        let detail = word >> DETAIL_SHIFT & 3;
        let count = (word >> COUNT_SHIFT) as u32 & MAX_COUNT;
        let value = word >> VALUE_SHIFT;
        let pfn = Pfn::new(value);
        match (word & 3, detail) {
            (UNUSED, 0) => State::Free,
            (UNUSED, 1) => State::Reserved,
            (UNUSED, _) => State::Bad,
            (STORED, _) => State::Stored { shadow: Shadow::new(value), count },
            (CACHED, 0) => State::Cached { pfn, count, copy: Copy::New },
            (CACHED, 1) => State::Cached { pfn, count, copy: Copy::Writing },
            (CACHED, 2) => State::Cached { pfn, count, copy: Copy::Clean },
            (CACHED, _) => State::Cached { pfn, count, copy: Copy::Failed },
            (_, detail) => State::Reading { pfn, count, waited: detail != 0 },
        }
    }

    /// Returns the number of swap entries that name the slot.
    pub fn count(self) -> u32 {
        match self {
            State::Free | State::Reserved | State::Bad => 0,
            State::Stored { count, .. } | State::Cached { count, .. } | State::Reading { count, .. } => count,
        }
    }

    /// Returns the state with another count of swap entries. The state has a count.
    pub fn with_count(self, count: u32) -> Self {
        match self {
            State::Stored { shadow, .. } => State::Stored { shadow, count },
            State::Cached { pfn, copy, .. } => State::Cached { pfn, count, copy },
            State::Reading { pfn, waited, .. } => State::Reading { pfn, count, waited },
            unused => unused,
        }
    }

    /// Returns the frame that lookups find, and true if the frame is being read into.
    pub fn frame(self) -> Option<(Pfn, bool)> {
        match self {
            State::Cached { pfn, count: 1.., .. } => Some((pfn, false)),
            State::Reading { pfn, count: 1.., .. } => Some((pfn, true)),
            _ => None,
        }
    }
}
