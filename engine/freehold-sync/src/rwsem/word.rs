//! The state word of a reader/writer lock, as a value.
//!
//! The functions here only compute: they take a value of the word and return another. `raw.rs` reads the word
//! and stores the result by a compare-and-swap. The [module head](super) has the table of the bits. A change
//! of the layout also changes that table and the constants in `raw/tests.rs`.

/// One reader that holds the lock or is in doubt.
pub(super) const READER: u64 = 1;
const READERS: u64 = (1 << 21) - 1;
const READ_WAITER: u64 = 1 << 21;
const READ_WAITERS: u64 = ((1 << 21) - 1) << 21;
const WRITE_WAITER: u64 = 1 << 42;
const WRITE_WAITERS: u64 = ((1 << 20) - 1) << 42;
const PHASE: u64 = 1 << 62;
const WRITER: u64 = 1 << 63;
/// Bit in the field of readers that is set when there are 2^20 readers or more: the lock then admits no new
/// readers. A new reader adds itself before it sees this bit, so the rest of the field has room for such
/// additions, and for readers that are admitted from the queue.
const TOO_MANY_READERS: u64 = 1 << 20;
/// Maximum number of readers in the queue. Together with the readers that hold the lock, they leave room for
/// half a million additions of readers in doubt.
pub(super) const MAX_READ_WAITERS: u64 = 1 << 19;
/// Maximum number of writers in the queue.
pub(super) const MAX_WRITE_WAITERS: u64 = (1 << 20) - 1;

/// A value of the state word; see the [table](super).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub u64);

impl Word {
    #[inline]
    pub fn readers(self) -> u64 {
        self.0 & READERS
    }

    #[inline]
    pub fn read_waiters(self) -> u64 {
        (self.0 & READ_WAITERS) / READ_WAITER
    }

    #[inline]
    pub fn write_waiters(self) -> u64 {
        (self.0 & WRITE_WAITERS) / WRITE_WAITER
    }

    #[inline]
    pub fn phase(self) -> bool {
        self.0 & PHASE != 0
    }

    #[inline]
    pub fn has_writer(self) -> bool {
        self.0 & WRITER != 0
    }

    /// Returns true if a new reader has to wait because a writer holds the lock or waits for it.
    #[inline]
    pub fn bars_readers(self) -> bool {
        self.0 & (WRITER | WRITE_WAITERS) != 0
    }

    /// Returns true if a new reader cannot be admitted, because of a writer
    /// ([`bars_readers`](Self::bars_readers)) or because the number of readers is at its limit.
    #[inline]
    pub fn bars_new_readers(self) -> bool {
        self.0 & (WRITER | WRITE_WAITERS | TOO_MANY_READERS) != 0
    }

    /// Returns true if the queue has room for another reader.
    #[inline]
    pub fn has_room_for_reader(self) -> bool {
        self.read_waiters() < MAX_READ_WAITERS
    }

    /// Returns true if the queue has room for another writer.
    #[inline]
    pub fn has_room_for_writer(self) -> bool {
        self.write_waiters() < MAX_WRITE_WAITERS
    }

    /// Returns true if readers or writers wait in the queue.
    #[inline]
    pub fn has_waiters(self) -> bool {
        self.0 & (READ_WAITERS | WRITE_WAITERS) != 0
    }

    /// Returns true if no task holds the lock and no writer waits. Readers may still be in the queue. Such
    /// readers keep no task out, because they are about to leave the queue.
    #[inline]
    pub fn is_free(self) -> bool {
        self.0 & !(PHASE | READ_WAITERS) == 0
    }

    /// Returns true if a writer holds the lock, no task waits, and no reader is in doubt.
    #[inline]
    pub fn is_only_writer(self) -> bool {
        self.0 & !PHASE == WRITER
    }

    /// Returns true if writers wait and no task holds the lock, so that the lock must be granted.
    #[inline]
    pub fn wants_grant(self) -> bool {
        self.write_waiters() > 0 && self.readers() == 0 && !self.has_writer()
    }

    #[inline]
    pub fn add_reader(self) -> Word {
        debug_assert!(self.readers() < READERS, "too many readers");
        Word(self.0 + READER)
    }

    #[inline]
    pub fn drop_reader(self) -> Word {
        debug_assert!(self.readers() > 0);
        Word(self.0 - READER)
    }

    #[inline]
    pub fn set_writer(self) -> Word {
        debug_assert!(!self.has_writer());
        Word(self.0 | WRITER)
    }

    #[inline]
    pub fn clear_writer(self) -> Word {
        debug_assert!(self.has_writer());
        Word(self.0 & !WRITER)
    }

    pub fn add_read_waiter(self) -> Word {
        debug_assert!(self.0 & READ_WAITERS != READ_WAITERS, "too many waiting readers");
        Word(self.0 + READ_WAITER)
    }

    pub fn drop_read_waiter(self) -> Word {
        debug_assert!(self.read_waiters() > 0);
        Word(self.0 - READ_WAITER)
    }

    pub fn add_write_waiter(self) -> Word {
        debug_assert!(self.0 & WRITE_WAITERS != WRITE_WAITERS, "too many waiting writers");
        Word(self.0 + WRITE_WAITER)
    }

    pub fn drop_write_waiter(self) -> Word {
        debug_assert!(self.write_waiters() > 0);
        Word(self.0 - WRITE_WAITER)
    }

    /// Turns every waiting reader into a reader, and flips the phase to notify them.
    pub fn admit_readers(self) -> Word {
        let waiting = self.read_waiters();
        if waiting == 0 {
            return self;
        }
        debug_assert!(self.readers() + waiting <= READERS, "too many readers");
        Word(((self.0 & !READ_WAITERS) + waiting * READER) ^ PHASE)
    }
}
