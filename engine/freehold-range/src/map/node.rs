//! A node and its control word. Only this file loads and stores the atomics of a node.
//!
//! The [module documentation](super) has the states of the control word and explains the pairings A, B and C;
//! [`claim_writer`](super::claim_writer) explains D. Each method says which of the pairings its accesses
//! belong to, and the section comments say which threads may call it. To *hold* a node is to set BUSY, which
//! keeps readers and other writers out. To *latch* a leaf is to set LATCHED, which keeps only other writers
//! out; the owner of the latch holds the leaf before it changes the slots. `hold` needs no atomic exchange,
//! because its caller is the exclusive writer or owns the latch. If another writer has the node, `hold_alone`
//! waits and `try_latch` fails. A store to a slot of a reachable node that is not held breaks readers. The
//! exceptions are gap words, and the marks of an entry in a latched leaf. `tests/loom_map.rs` and
//! `tests/loom_claims.rs` run this code under loom.

#![expect(unsafe_code, reason = "the hottest loops skip the index checks")]

use core::num::NonZeroU64;
use core::ptr;

use freehold_sync::atomic::{AtomicPtr, AtomicU64, Ordering, announce, fence};
use freehold_sync::{Host, RcuHead};

use super::claim::Mark;
use super::entry::Entry;
use super::fanout::Fanout;

const _: () = assert!(usize::BITS == 64, "a start address does not fit into a pointer-sized slot");

/// The control word of a node, as it was loaded. The module documentation has a table of its states.
///
/// | bits | meaning |
/// | --- | --- |
/// | 0 | BUSY |
/// | 1 | DEAD |
/// | 2..7 | the level |
/// | 7 | LATCHED |
/// | 8..16 | number of slots in use |
/// | 16..22 | number of slots of a leaf that are promised to owners of claims |
/// | 22..26 | number of recent conflicts (`CONFLICTS`) |
/// | 26..64 | the version |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(u64);

impl Word {
    const BUSY: u64 = 1;
    const DEAD: u64 = 2;
    const LEVEL_SHIFT: u32 = 2;
    const LEVEL_MASK: u64 = 0x1f << Self::LEVEL_SHIFT;
    const LATCHED: u64 = 1 << 7;
    const COUNT_SHIFT: u32 = 8;
    const COUNT_MASK: u64 = 0xff << Self::COUNT_SHIFT;
    /// Unit of the number of promised slots.
    const PROMISE: u64 = 1 << 16;
    const PROMISED_MASK: u64 = 0x3f << 16;
    /// Unit of the count of recent conflicts between claim writers in this leaf.
    const CONFLICT: u64 = 1 << 22;
    const CONFLICTS: u64 = 0xf << 22;
    const VERSION: u64 = 1 << 26;
    /// Number of versions after which the count of conflicts is halved.
    const DECAY_PERIOD: u64 = Self::VERSION << 6;
    /// Stored into nodes that are about to be freed, in builds with debug assertions. No reader may ever see
    /// this value.
    const POISON: u64 = 0xdead_dead_dead_deadu64 | Self::BUSY | Self::DEAD;

    #[inline]
    pub(super) fn count(self) -> usize {
        ((self.0 & Self::COUNT_MASK) >> Self::COUNT_SHIFT) as usize
    }

    #[inline]
    pub(super) fn level(self) -> usize {
        ((self.0 & Self::LEVEL_MASK) >> Self::LEVEL_SHIFT) as usize
    }

    #[inline]
    pub(super) fn is_leaf(self) -> bool {
        self.0 & Self::LEVEL_MASK == 0
    }

    pub(super) fn is_busy(self) -> bool {
        self.0 & Self::BUSY != 0
    }

    #[inline]
    pub(super) fn is_latched(self) -> bool {
        self.0 & Self::LATCHED != 0
    }

    /// Returns the number of promised slots.
    #[inline]
    pub(super) fn promised(self) -> usize {
        ((self.0 & Self::PROMISED_MASK) / Self::PROMISE) as usize
    }

    pub(super) fn is_dead(self) -> bool {
        self.0 & Self::DEAD != 0
    }

    const fn conflicts(self) -> u64 {
        (self.0 & Self::CONFLICTS) / Self::CONFLICT
    }

    /// Returns the word with this count of conflicts.
    const fn with_conflicts(self, conflicts: u64) -> Self {
        Word((self.0 & !Self::CONFLICTS) | (conflicts * Self::CONFLICT))
    }
}

/// One slot of a node, as a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<const SLOTS: usize> {
    /// End of the entry, or end of the child's last entry.
    pub(super) end: u64,
    /// The child. In a leaf, the start of the entry, stored as an address that is never followed.
    pub(super) link: *mut Node<SLOTS>,
    /// The value of the entry, or the gap word of the child: an upper bound of the largest gap in the child.
    pub(super) datum: u64,
}

impl<const SLOTS: usize> Slot<SLOTS> {
    pub(super) const EMPTY: Self = Self { end: u64::MAX, link: ptr::null_mut(), datum: 0 };

    pub(super) fn of(entry: &Entry) -> Self {
        let link = ptr::without_provenance_mut(entry.start as usize);
        Self { end: entry.end, link, datum: entry.value.get() }
    }

    /// Returns the entry of a leaf's slot. Returns `None` if the slot is torn between two versions.
    #[inline]
    pub(super) fn entry(self) -> Option<Entry> {
        let value = NonZeroU64::new(self.datum)?;
        Some(Entry { start: self.link.addr() as u64, end: self.end, value })
    }
}

/// A leaf or an inner node.
///
/// # Invariants
///
/// * `ends` ascend strictly over the slots in use. The ends of the other slots are `u64::MAX`.
/// * While the node is reachable and not held, only its gap words change.
#[repr(C, align(64))]
pub(super) struct Node<const SLOTS: usize> {
    /// The control word. Written by the writer; read by any thread.
    word: AtomicU64,
    /// The ends. Written by the writer that holds the node; read by any thread.
    ends: [AtomicU64; SLOTS],
    /// The starts in a leaf, the children in an inner node. Written by the writer that holds the node; read
    /// by any thread.
    links: [AtomicPtr<Node<SLOTS>>; SLOTS],
    /// The values in a leaf, written by the writer that holds the node and read by any thread. The gap words
    /// in an inner node, written by the exclusive writer or under the structure lock, and read by writers and
    /// searches.
    data: [AtomicU64; SLOTS],
    /// Belongs to the host after `rcu_defer`.
    pub(super) head: RcuHead,
}

impl<const SLOTS: usize> Node<SLOTS> {
    pub(super) fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            ends: core::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            links: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            data: core::array::from_fn(|_| AtomicU64::new(0)),
            head: RcuHead::new(),
        }
    }

    /// Registers a node with the simulation (`cfg(sim)`), whose report then names it.
    pub(super) fn announce(node: *const Self) {
        announce!("Node", node, 1, Self { word: word, ends: ends, links: links, data: data, head: head });
    }

    // ---- readers that run concurrently with a writer ----

    /// Returns the word if the node is stable. Acquire: pairing B, and the first half of pairing C.
    #[inline]
    pub(super) fn begin(&self) -> Option<Word> {
        let word = self.word.load(Ordering::Acquire);
        debug_assert!(word != Word::POISON, "a reader reached a freed node");
        (word & Word::BUSY == 0).then_some(Word(word))
    }

    /// Returns true if the node has not changed since `begin` returned `word`, so that all values read since
    /// then belong to one version: pairing A.
    #[inline]
    pub(super) fn unchanged(&self, word: Word) -> bool {
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == word.0
    }

    // ---- any thread; with a concurrent writer, results are valid only after `unchanged` ----

    /// Returns the number of ends not above `key`. This number is the index of the first slot whose end lies
    /// above `key`, or else the number of slots in use. For the largest of all keys, the number is `SLOTS`.
    /// Compares in two rounds: first every fourth end, then the three ends between two of them.
    #[inline(always)]
    pub(super) fn search(&self, key: u64) -> usize {
        const STRIDE: usize = 4;
        let mut strides = 0;
        let mut pivot = STRIDE - 1;
        while pivot < SLOTS {
            strides += (key >= self.end(pivot)) as usize;
            pivot += STRIDE;
        }
        let base = strides * STRIDE;
        let mut at = base;
        for step in 0..STRIDE - 1 {
            if base + step < SLOTS {
                at += (key >= self.end(base + step)) as usize;
            }
        }
        at
    }

    /// Searches like [`search`](Self::search), in a node that has an end above the key. The last end is not
    /// compared, so the result is always the index of a slot, whatever the node contains. Like `search`,
    /// compares in two rounds.
    #[inline]
    pub(super) fn search_below(&self, key: u64) -> usize {
        const STRIDE: usize = 3;
        let mut strides = 0;
        let mut pivot = STRIDE - 1;
        while pivot < SLOTS - 1 {
            strides += (key >= self.end(pivot)) as usize;
            pivot += STRIDE;
        }
        let base = strides * STRIDE;
        let mut at = base;
        for step in 0..STRIDE - 1 {
            if base + step < SLOTS - 1 {
                at += (key >= self.end(base + step)) as usize;
            }
        }
        at
    }

    /// Returns the result of [`search`](Self::search) if the result is the slot `at` or an adjacent slot, and
    /// the slot is in use. `lo` is the end of the entry before the node. For the exclusive writer.
    #[inline(always)]
    pub(super) fn search_near(&self, at: usize, key: u64, lo: u64) -> Option<usize> {
        let count = self.count();
        let follows = |at: usize| (if at == 0 { lo } else { self.end(at - 1) }) <= key;
        if at < count && key < self.end(at) {
            if follows(at) {
                return Some(at);
            }
            return (at > 0 && follows(at - 1)).then(|| at - 1);
        }
        (at + 1 < count && key < self.end(at + 1)).then_some(at + 1)
    }

    // All loads are relaxed: readers validate by pairing A, and the writer reads its own stores.

    #[inline]
    pub(super) fn end(&self, at: usize) -> u64 {
        get(&self.ends, at).load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn child(&self, at: usize) -> *mut Node<SLOTS> {
        get(&self.links, at).load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn start(&self, at: usize) -> u64 {
        self.child(at).addr() as u64
    }

    #[inline]
    pub(super) fn datum(&self, at: usize) -> u64 {
        get(&self.data, at).load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn slot(&self, at: usize) -> Slot<SLOTS> {
        Slot { end: self.end(at), link: self.child(at), datum: self.datum(at) }
    }

    // ---- the writer, or a reader that excludes the writer ----

    /// Returns the word, busy or not. Relaxed: the writer reads its own stores. Any other caller holds the
    /// lock that keeps the writer out, and this lock orders the accesses.
    #[inline]
    pub(super) fn word(&self) -> Word {
        Word(self.word.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn count(&self) -> usize {
        self.word().count()
    }

    #[inline]
    pub(super) fn level(&self) -> usize {
        self.word().level()
    }

    /// Returns the end of the last slot in use, or 0 for an empty node.
    #[inline]
    pub(super) fn last_end(&self) -> u64 {
        match self.count() {
            0 => 0,
            count => self.end(count - 1),
        }
    }

    /// Returns an upper bound of the gaps in front of the entries of this node or below it, computed from its
    /// slots. `lo` is the end of the entry before the node. With a concurrent writer, the result may be any
    /// number.
    pub(super) fn max_gap(&self, lo: u64) -> u64 {
        let word = self.word();
        let mut max = 0;
        if word.is_leaf() {
            let mut before = lo;
            for at in 0..word.count() {
                max = max.max(self.start(at).saturating_sub(before));
                before = self.end(at);
            }
        } else {
            for at in 0..word.count() {
                max = max.max(self.datum(at));
            }
        }
        max
    }

    // ---- the writer ----

    /// Keeps readers out: pairing A. Every store to the node until `release` comes after the fence.
    #[inline]
    pub(super) fn hold(&self) {
        self.word.store(self.word().0 | Word::BUSY, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Latches a leaf if its control word is still `word`, which the caller has read and which is not
    /// latched. Acquire: pairing D, so the values that the caller has read since then are still those of the
    /// leaf.
    #[inline]
    pub(super) fn try_latch(&self, word: Word) -> bool {
        debug_assert!(!word.is_latched());
        let latched = word.0 | Word::LATCHED;
        self.word.compare_exchange(word.0, latched, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Holds a node for the holder of the structure lock. Spins while another writer has latched the node.
    /// The caller ensures that the node stays linked during the call. Acquire: pairing D. The fence belongs
    /// to pairing A.
    pub(super) fn hold_alone<H: Host>(&self) {
        let try_hold = |word: Word| {
            let busy = word.0 | Word::BUSY;
            self.word.compare_exchange(word.0, busy, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        while !self.begin().is_some_and(|word| !word.is_latched() && try_hold(word)) {
            H::relax();
        }
        fence(Ordering::Release);
    }

    /// Ends the latch of a leaf that was not held, at the version at which it was latched. Release: pairing
    /// D.
    #[inline]
    pub(super) fn release_unchanged(&self, word: Word) {
        self.word.store(word.0, Ordering::Release);
    }

    /// Returns the number of slots in use, plus the slots that are promised with claims.
    #[inline]
    pub(super) fn weight(&self) -> usize {
        self.count() + self.word().promised()
    }

    /// Returns the sum of the slots that are promised to the entries of this leaf.
    pub(super) fn sum_of_promises(&self) -> usize {
        (0..self.count()).map(|at| self.weight_of(at) - 1).sum()
    }

    /// Sets the number of promised slots. The node is held.
    #[inline]
    pub(super) fn set_promised(&self, slots: usize) {
        let word = self.word().0 & !Word::PROMISED_MASK;
        self.word.store(word | (slots as u64 * Word::PROMISE), Ordering::Relaxed);
    }

    /// Returns the weight of one slot: 1, plus the slots promised to its entry.
    #[inline]
    pub(super) fn weight_of(&self, at: usize) -> usize {
        match self.word().is_leaf() {
            true => 1 + Mark::of(self.datum(at)).promised_slots(),
            false => 1,
        }
    }

    /// Sets the value of a leaf's entry. The node is held.
    #[inline]
    pub(super) fn set_value(&self, at: usize, value: u64) {
        get(&self.data, at).store(value, Ordering::Relaxed);
    }

    /// Releases the node, and its latch, at the next version, so that readers can continue. Release: pairings
    /// B, C and D.
    #[inline]
    pub(super) fn release(&self) {
        let mut next = Word((self.word().0 & !(Word::BUSY | Word::LATCHED)).wrapping_add(Word::VERSION));
        if next.0 & (Word::DECAY_PERIOD - Word::VERSION) == 0 {
            next = next.with_conflicts(next.conflicts() / 2);
        }
        self.word.store(next.0, Ordering::Release);
    }

    /// Counts a conflict between claim writers. The node is held. Returns true if conflicts are frequent and
    /// the leaf can be split.
    #[cold]
    pub(super) fn count_conflict(&self, fan: Fanout) -> bool {
        let word = self.word();
        let conflicts = (word.conflicts() + 1).min(Word::CONFLICTS / Word::CONFLICT);
        self.word.store(word.with_conflicts(conflicts).0, Ordering::Relaxed);
        conflicts >= fan.conflict_limit() && word.count() >= fan.min_divided()
    }

    /// Resets the count of conflicts. The node is held.
    pub(super) fn clear_conflicts(&self) {
        self.word.store(self.word().with_conflicts(0).0, Ordering::Relaxed);
    }

    /// Marks a held node as merged away. A reader that is in this node, or reaches it later, starts again.
    /// The node has no children of its own any more.
    pub(super) fn mark_dead(&self) {
        debug_assert!(self.word().is_busy());
        self.set_count(0);
        self.word.store(self.word().0 | Word::DEAD, Ordering::Relaxed);
    }

    /// Poisons a node in builds with debug assertions, so that a late reader is detected. The callback after
    /// the grace period calls this function.
    pub(super) fn poison(&self) {
        if cfg!(debug_assertions) {
            self.word.store(Word::POISON, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn set_count(&self, count: usize) {
        let word = self.word().0 & !Word::COUNT_MASK;
        self.word.store(word | ((count as u64) << Word::COUNT_SHIFT), Ordering::Relaxed);
    }

    /// Sets the level of the node, and copies the number of promised slots from `like`.
    pub(super) fn set_level(&self, level: usize, like: &Self) {
        let promised = like.word().0 & Word::PROMISED_MASK;
        let word = self.word().0 & !(Word::LEVEL_MASK | Word::PROMISED_MASK);
        self.word.store(word | promised | ((level as u64) << Word::LEVEL_SHIFT), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn set_end(&self, at: usize, end: u64) {
        get(&self.ends, at).store(end, Ordering::Relaxed);
    }

    /// Sets a child's gap word. Needs no `hold`, because readers without the lock do not read it.
    #[inline]
    pub(super) fn set_gap(&self, at: usize, gap: u64) {
        get(&self.data, at).store(gap, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn set(&self, at: usize, slot: Slot<SLOTS>) {
        get(&self.ends, at).store(slot.end, Ordering::Relaxed);
        get(&self.links, at).store(slot.link, Ordering::Relaxed);
        get(&self.data, at).store(slot.datum, Ordering::Relaxed);
    }

    /// Replaces `gone` slots at `at` by `with`. The node is held or not yet reachable, and has enough slots.
    pub(super) fn splice(&self, at: usize, gone: usize, with: &[Slot<SLOTS>]) {
        self.open(at, gone, with.len());
        for (index, slot) in with.iter().enumerate() {
            self.set(at + index, *slot);
        }
    }

    /// Replaces `gone` slots at `at` by `len` slots with undefined contents. The caller must `set` them.
    #[inline]
    pub(super) fn open(&self, at: usize, gone: usize, len: usize) {
        let count = self.count();
        let (from, to) = (at + gone, at + len);
        assert!(from <= count && count - gone + len <= SLOTS);
        if to > from {
            for tail in (from..count).rev() {
                self.set(tail + (to - from), self.slot(tail));
            }
        } else if to < from {
            for tail in from..count {
                self.set(tail - (from - to), self.slot(tail));
            }
            for unused in count - (from - to)..count {
                self.set_end(unused, u64::MAX);
            }
        }
        self.set_count(count - gone + len);
    }
}

/// Returns `slots[at]` without a bounds check.
#[inline]
fn get<T, const SLOTS: usize>(slots: &[T; SLOTS], at: usize) -> &T {
    debug_assert!(at < SLOTS);
    // SAFETY: the index of every caller is below the number of slots in use of some version of a node, or was
    // compared with `SLOTS`. No version of a node has more than `SLOTS` slots in use: `open` asserts this,
    // and the other changes copy whole nodes.
    unsafe { slots.get_unchecked(at) }
}
