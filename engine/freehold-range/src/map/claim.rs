//! Claims: the bits that give an entry to one of several writers.
//!
//! Once there are [claim writers](super::claim_writer), the lowest six bits of a value belong to the map. The
//! user of the map keeps these bits clear, except [`RESERVED`].
//!
//! | bits | set by | meaning |
//! | --- | --- | --- |
//! | 0, [`RESERVED`] | the user | the entry is a *reservation*: the range is empty, and only the owner may put an entry there |
//! | 1, [`CLAIMED`] | a claim | the entry belongs to one claim writer; only that writer changes or removes it |
//! | 2, [`HAS_WAITERS`] | a refused writer | the owner must notify waiters when the claim ends |
//! | 3 to 5 | a claim | number of slots of the leaf that are promised to the owner of the claim |
//!
//! These bits change only while the leaf is latched. Readers ignore the bits.
//!
//! This file only computes with values. `claim_writer.rs` and `hole_claim.rs` make claims; `publish.rs` and
//! `release.rs` end claims. The values of an address space are addresses of VMAs, whose alignment leaves the
//! six bits clear.

use core::num::NonZeroU64;

/// Marks a reservation. The entry is removed when it is released.
pub const RESERVED: u64 = 1;

/// Marks an entry that belongs to a claim writer.
pub const CLAIMED: u64 = 2;

/// Marks a claimed entry whose owner must notify waiters when the claim ends.
pub const HAS_WAITERS: u64 = 4;
const PROMISED_SLOTS: u64 = 0o70;
const PROMISED_SHIFT: u32 = 3;

/// Marks a permanent reservation. Such a reservation stays until the exclusive writer removes it, and no task
/// waits for its end. The bit belongs to the user: an entry that is not a reservation may also have it set.
pub const PERMANENT: u64 = 1 << 6;

/// All bits of a value that belong to the map.
pub const MARKS: u64 = RESERVED | CLAIMED | HAS_WAITERS | PROMISED_SLOTS;

/// The value of a reservation that its owner has claimed.
pub(super) const CLAIMED_RESERVATION: NonZeroU64 = NonZeroU64::new(RESERVED | CLAIMED).unwrap();

/// Number of slots promised by a claim that allows cuts: the two cuts at the ends of a range add at most two
/// entries.
pub(super) const SLOTS_FOR_CUTS: usize = 2;

/// Maximum number of entries of one claim. The leaves of all these entries may be latched at the same time.
pub(super) const MAX_CLAIM_ENTRIES: usize = 8;

freehold_sync::error_enum! {
    /// Reasons why nothing was claimed.
    pub enum ClaimError {
        /// Another writer owns an entry that is needed, or the entry is a reservation.
        ///
        /// The end of the other writer's claim will be reported by
        /// [`ClaimWriter::had_waiters`](super::claim_writer::ClaimWriter::had_waiters).
        Contended,
        /// The range to be filled is not a hole.
        NotAHole,
        /// The claim needs too many entries, or a hole or a permanent reservation lies between the entries.
        ///
        /// The exclusive writer can make the change. See [`PERMANENT`].
        NeedsExclusive,
        /// The host has no memory left.
        NoMemory,
    }
}

/// The bits of a value that belong to the map.
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

    /// Returns the number of slots promised in addition to the entry's own slot.
    #[inline]
    pub(super) fn promised_slots(self) -> usize {
        ((self.0 & PROMISED_SLOTS) >> PROMISED_SHIFT) as usize
    }
}

/// Returns the value of an entry with a claim and this number of promised slots.
#[inline]
pub(super) fn with_claim(value: u64, slots: usize) -> u64 {
    value | CLAIMED | ((slots as u64) << PROMISED_SHIFT)
}

/// Returns the value with [`HAS_WAITERS`] set.
#[inline]
pub(super) fn with_waiters(value: u64) -> u64 {
    value | HAS_WAITERS
}

/// Returns the value of a claimed entry with this number of promised slots, or with the largest number that
/// the bits can hold.
#[inline]
pub(super) fn with_promised_slots(value: u64, slots: usize) -> u64 {
    let slots = (slots as u64).min(PROMISED_SLOTS >> PROMISED_SHIFT);
    value & !PROMISED_SLOTS | slots << PROMISED_SHIFT
}

/// Returns the value without marks. A reservation becomes the value of an unclaimed reservation.
#[inline]
pub(super) fn unmarked(value: NonZeroU64) -> NonZeroU64 {
    NonZeroU64::new(without_claim(value.get())).unwrap_or(NonZeroU64::MIN)
}

/// Returns the value of an entry whose claim has ended.
#[inline]
pub(super) fn without_claim(value: u64) -> u64 {
    value & !(MARKS ^ RESERVED)
}
