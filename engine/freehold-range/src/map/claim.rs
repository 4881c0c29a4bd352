//! Claims: which entries belong to one of several writers.
//!
//! The lowest six bits of a value are the map's as soon as there are [claim writers](super::claim_writer);
//! its user keeps them clear, but for [`RESERVED`].
//!
//! | bits | set | meaning |
//! | --- | --- | --- |
//! | 0, [`RESERVED`] | by the user | a *reservation*: nothing is there, and nobody else may put anything there |
//! | 1, [`CLAIMED`] | by a claim | the entry belongs to one claim writer, which alone changes or removes it |
//! | 2, [`HAS_WAITERS`] | by a refused writer | the end of the claim is to be told |
//! | 3 to 5 | by a claim | slots of the leaf that are promised to the claim's owner |
//!
//! All of them change with the leaf latched, and mean nothing to readers.

use core::num::NonZeroU64;

/// The entry is a reservation: it goes when it is released.
pub const RESERVED: u64 = 1;

/// The entry belongs to a claim writer.
pub const CLAIMED: u64 = 2;

/// Its end is to be told.
pub const HAS_WAITERS: u64 = 4;
const PROMISED_SLOTS: u64 = 0o70;
const PROMISED_SHIFT: u32 = 3;

/// Of a reservation: it stands until the exclusive writer takes it out. Nobody waits for its end. The bit
/// is the user's: an entry that is no reservation may have it.
pub const PERMANENT: u64 = 1 << 6;

/// All bits of a value that are not its user's.
pub const MARKS: u64 = RESERVED | CLAIMED | HAS_WAITERS | PROMISED_SLOTS;

/// The value of a reservation that its owner has claimed.
pub(super) const CLAIMED_RESERVATION: NonZeroU64 = NonZeroU64::new(RESERVED | CLAIMED).unwrap();

/// Slots that a claim promises where its owner says that entries may come: those that the two cuts at the
/// ends of a range add.
pub(super) const SLOTS_FOR_CUTS: usize = 2;

/// A claim covers so many entries at most: their leaves may all be latched meanwhile.
pub(super) const MAX_CLAIM_ENTRIES: usize = 8;

freehold_sync::error_enum! {
    /// Why nothing was claimed.
    pub enum ClaimError {
        /// Another writer has an entry that is needed, or the entry is a reservation.
        ///
        /// The end of that writer's claim will be told:
        /// [`ClaimWriter::had_waiters`](super::claim_writer::ClaimWriter::had_waiters).
        Contended,
        /// The hole to be filled is filled already.
        NotAHole,
        /// The entries are too many, or have a hole or a standing reservation between them.
        ///
        /// It takes the exclusive writer. See [`PERMANENT`].
        NeedsExclusive,
        /// The host has no memory left.
        NoMemory,
    }
}

/// The bits of a value.
#[derive(Clone, Copy)]
pub(super) struct Mark(u64);

impl Mark {
    #[inline]
    pub(super) fn of(value: u64) -> Self {
        Mark(value & MARKS)
    }

    #[inline]
    pub(super) fn is_reservation(self) -> bool {
        self.0 & RESERVED != 0
    }

    #[inline]
    pub(super) fn is_claimed(self) -> bool {
        self.0 & CLAIMED != 0
    }

    #[inline]
    pub(super) fn has_waiters(self) -> bool {
        self.0 & HAS_WAITERS != 0
    }

    /// Slots promised beyond the entry's own.
    #[inline]
    pub(super) fn promised_slots(self) -> usize {
        ((self.0 & PROMISED_SLOTS) >> PROMISED_SHIFT) as usize
    }
}

/// The value of an entry that is claimed from now on.
#[inline]
pub(super) fn with_claim(value: u64, slots: usize) -> u64 {
    value | CLAIMED | ((slots as u64) << PROMISED_SHIFT)
}

/// The same, of which somebody waits for the end.
#[inline]
pub(super) fn with_waiters(value: u64) -> u64 {
    value | HAS_WAITERS
}

/// The value of a claimed entry with so many slots promised, or as many as can be noted.
#[inline]
pub(super) fn with_promised_slots(value: u64, slots: usize) -> u64 {
    let slots = (slots as u64).min(PROMISED_SLOTS >> PROMISED_SHIFT);
    value & !PROMISED_SLOTS | slots << PROMISED_SHIFT
}

/// The value without marks; of a reservation, which is not claimed, what says so.
#[inline]
pub(super) fn unmarked(value: NonZeroU64) -> NonZeroU64 {
    NonZeroU64::new(without_claim(value.get())).unwrap_or(NonZeroU64::MIN)
}

/// The value of an entry that belongs to nobody any more.
#[inline]
pub(super) fn without_claim(value: u64) -> u64 {
    value & !(MARKS ^ RESERVED)
}
