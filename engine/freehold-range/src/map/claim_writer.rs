//! Claim writers: concurrent writers, each of which changes only entries that it has [claimed](super::claim).
//!
//! # Claim, write set, publish
//!
//! A change has three steps. First, the writer *claims* the entries that it needs. A copy of the entries
//! becomes its [write set](super::write_set). Second, the writer changes the write set, without access to the
//! map. The second step may take any time. Third, the writer *publishes*: in one step for readers, the write
//! set replaces the claimed entries. The claim then ends. So a change of one leaf latches that leaf exactly
//! twice.
//!
//! # Two kinds of latches
//!
//! Both kinds are held for a short time, and no thread sleeps while it holds a latch. Latches are taken by a
//! [`ClaimWriter`], and by a gap search that corrects a gap word of an inner node. The
//! [`ExclusiveWriter`](crate::ExclusiveWriter) needs no latch, because no other writer exists. A gap search
//! that had to restart too often takes the structure lock, but latches no leaf. Like any holder of the
//! structure lock, the search then waits for latched leaves.
//!
//! * The *latch of a leaf* is the bit LATCHED in the control word of the leaf. A writer takes it by a
//!   compare-and-swap from a version. Readers ignore the latch until its owner sets BUSY, too, and changes
//!   the leaf.
//! * The *structure lock* exists once per map. Its holder may change inner nodes, link and unlink nodes, and
//!   move the end of a leaf's last entry. So for the holder, inner nodes do not change, and leaves stay
//!   linked where they are. The holder sets BUSY in each leaf that it reads or changes, and first waits for
//!   the latch to end. From then on the contents of the leaf do not change.
//!
//! The holder of the latch of one leaf waits for nothing. The holder of the structure lock may hold several
//! leaves and wait for the latches of more. So there is no cycle of waiters.
//!
//! # A change of one leaf
//!
//! The writer descends as a reader does. So there was an instant at which the path led to this leaf, and the
//! leaf had the version that the writer has seen. One node supplied `lo`, the end of the entry before the
//! leaf. The writer checks this node again at the end: if the node is unchanged, `lo` was correct at that
//! instant. The writer then takes the latch by a compare-and-swap from the version that it has seen. Two
//! rules make the facts of that instant hold until the latch is released:
//!
//! * A leaf is unlinked only while it is BUSY, and is BUSY and DEAD from then on.
//! * A writer that moves the end of a leaf's last entry also holds the next leaf before it releases any
//!   leaf. The writer releases the next leaf with a new version.
//!
//! These rules keep the leaf linked. Neither the addresses that belong to the leaf nor the gap in front of
//! its first entry can change.
//!
//! Pairing D: `release` stores the version (release); `try_latch` and `hold_alone` exchange it (acquire).
//! Everything that the last holder did before the release, in the leaf or elsewhere, happens before
//! everything that this holder does.
//!
//! # Gaps
//!
//! The gap word that an inner node keeps for an inner child is at least as large as the gap words in that
//! child. Gap words of inner children change only under the structure lock. The gap word for a leaf is at
//! least as large as the largest gap in the leaf. The only exception is a gap whose writer has not returned
//! yet. After a writer has made a gap, it checks the gap word in the node above while the leaf is still
//! latched. If the word is large enough and the node is unchanged, the words of all nodes above are large
//! enough too. Otherwise the writer raises the words under the structure lock. If a search finds a smaller
//! gap than the word says, it lowers the word under the structure lock, while it holds the leaf. So a writer
//! that makes a gap either sees the lowered word, or made the gap before the search computed the word.
//!
//! # Memory
//!
//! Only a claim needs nodes, and only a claim can fail for lack of memory. A claim of a hole inserts the
//! reservation. A claim that allows cuts promises slots in the leaf for the new entries. Promised slots count
//! as used until the claim ends. So publishing always finds room for the write set in the leaves that it
//! changes.

#![expect(unsafe_code, reason = "follows links of nodes that an RCU section or the structure lock protects")]

use freehold_sync::{Host, Rank, atomic::CHECKED};

use super::RangeMap;
use super::busy_nodes::BusyNodes;
use super::claim::{
    ClaimError, MAX_CLAIM_ENTRIES, Mark, PERMANENT, with_claim, with_promised_slots, with_waiters,
};
use super::entry::{Entry, FANOUT, MAX_LEVELS, assert_fits};
use super::gap::GapRequest;
use super::insert::SplitPolicy;
use super::leaf_path::LatchedLeaf;
use super::node::Node;
use super::path::Step;
use super::write_set::WriteSet;

/// Number of attempts of a gap search that run concurrently with all changes. After these attempts, the
/// search takes the structure lock.
const CONCURRENT_SEARCHES: usize = if CHECKED { 1 } else { 32 };

/// The right to change claimed entries, concurrently with other claim writers. See [`RangeMap::claim_writer`]
/// and the [module](self).
///
/// # Invariants
///
/// An entry with [`CLAIMED`](super::claim::CLAIMED) was claimed by one claim writer. Only that writer changes
/// the entry.
pub struct ClaimWriter<'a, H: Host, const SLOTS: usize = FANOUT> {
    pub(super) map: &'a RangeMap<H, SLOTS>,
    pub(super) write_set: &'a WriteSet<SLOTS>,
}

impl<H: Host, const SLOTS: usize> RangeMap<H, SLOTS> {
    /// Returns the right to change claimed entries, concurrently with other claim writers. No other writer
    /// uses `write_set`.
    ///
    /// # Safety
    ///
    /// Until the claim writer is dropped, no [`ExclusiveWriter`](crate::ExclusiveWriter) and no
    /// [`Reader`](crate::Reader) of this map may exist. The creation of such a writer or reader must
    /// synchronise with the end of this claim writer (as a lock does).
    #[inline]
    pub unsafe fn claim_writer<'a>(&'a self, write_set: &'a WriteSet<SLOTS>) -> ClaimWriter<'a, H, SLOTS> {
        ClaimWriter::new(self, write_set)
    }
}

impl<'a, H: Host, const SLOTS: usize> ClaimWriter<'a, H, SLOTS> {
    pub(super) fn new(map: &'a RangeMap<H, SLOTS>, write_set: &'a WriteSet<SLOTS>) -> Self {
        debug_assert!(write_set.is_empty(), "the write set still holds a claim");
        ClaimWriter { map, write_set }
    }

    // Methods that read and change the write set.

    /// Returns the claimed entry that contains `key`, as it is in the write set.
    #[inline]
    pub fn find(&self, key: u64) -> Option<Entry> {
        self.next(key).filter(|entry| entry.start <= key)
    }

    /// Returns the first claimed entry whose end lies above `key`.
    #[inline]
    pub fn next(&self, key: u64) -> Option<Entry> {
        self.write_set.span_of(key).borrow().next(key)
    }

    /// Returns the last claimed entry whose end does not lie above `key`.
    #[inline]
    pub fn prev(&self, key: u64) -> Option<Entry> {
        self.write_set.span_of(key).borrow().prev(key)
    }

    /// Returns the results of [`prev`](Self::prev) for `start` and [`next`](Self::next) for `end`.
    #[inline]
    pub fn around(&self, start: u64, end: u64) -> (Option<Entry>, Option<Entry>) {
        let span = self.write_set.span_of(start).borrow();
        (span.prev(start), span.next(end))
    }

    /// Returns true if `accept` returns true for each claimed entry. Considers only the first span. `accept`
    /// must not use the write set.
    #[inline]
    pub fn all_claimed(&self, accept: impl FnMut(&Entry) -> bool) -> bool {
        self.write_set.first.borrow().entries().iter().all(accept)
    }

    /// Returns the claimed range. If the write set has two spans, returns the range of the first span. If
    /// nothing is claimed, returns an empty range.
    #[inline]
    pub fn claimed_range(&self) -> (u64, u64) {
        self.write_set.first.borrow().range()
    }

    /// Replaces the part of the write set inside `[start, end)`, which must be claimed, by the entries
    /// `with`. The entries are ascending and inside the range. No other thread sees them before they are
    /// [published](Self::publish).
    ///
    /// # Panics
    ///
    /// Panics if the range is not claimed, if an entry reaches across its ends, or if there are more entries
    /// than the claim has room for.
    #[inline]
    pub fn replace(&self, start: u64, end: u64, with: &[Entry]) {
        assert_fits(start, end, with);
        self.write_set.span_of(start).borrow_mut().replace(start, end, with);
    }

    // Methods that read the map, including entries of other writers.

    /// Returns the first entry of the map whose end lies above `key`, as of some instant during the call.
    /// Waits only for a writer that has the leaf latched.
    #[inline]
    pub fn next_in_map(&self, key: u64) -> Option<Entry> {
        let rcu = H::rcu_read();
        loop {
            let path = self.map.leaf_path(&rcu, key);
            let found = if path.at < path.word.count() { path.leaf.slot(path.at).entry() } else { None };
            if path.leaf.unchanged(path.word) {
                return found;
            }
        }
    }

    /// Searches for a gap like [`Reader::gap`](crate::Reader::gap), concurrently with other writers. The
    /// result is a gap that existed during the search. If changes restart the search too often, it takes the
    /// structure lock, and then waits only for the latches of leaves that it reads.
    ///
    /// # Panics
    ///
    /// Panics if the length is 0, or if the alignment is not a power of two.
    pub fn gap(&self, request: &GapRequest, guard: impl Fn(&Entry) -> u64) -> Option<u64> {
        let _rcu = H::rcu_read();
        // SAFETY: the RCU section keeps every node allocated that is reachable now.
        let search = || unsafe { self.map.find_gap::<true>(request, &guard) };
        for _ in 0..CONCURRENT_SEARCHES {
            if let Ok(found) = search() {
                return found;
            }
            H::relax();
        }
        // Inner nodes do not change from here on.
        let _structure = self.map.structure.lock::<H>(Rank::VmaMap);
        loop {
            if let Ok(found) = search() {
                return found;
            }
            H::relax();
        }
    }

    /// Claims the entries that overlap `[start, end)`. If `touching` is set, also claims the entries that
    /// touch the range, except reservations. If `cuts` is set, the writer may cut an entry that reaches
    /// across `start` or `end` at that address. The claimed entries have no hole between them. Succeeds with
    /// an empty claim if there is no entry to claim.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`]. Nothing is claimed then.
    ///
    /// # Panics
    ///
    /// Panics if the range ends before it starts. Nothing is claimed then.
    pub fn claim(&self, start: u64, end: u64, touching: bool, cuts: bool) -> Result<(), ClaimError> {
        assert!(start <= end, "the claimed range ends before it starts");
        debug_assert!(self.write_set.is_empty(), "the write set already holds a claim");
        let request = ClaimRequest::of(start, end, touching, cuts);
        if cuts {
            self.ensure_spares()?;
        }
        let rcu = H::rcu_read();
        let claimed = self.claim_in_leaf(self.latch(&rcu, start), &request);
        drop(rcu);
        claimed.unwrap_or_else(|| self.claim_across(&request))
    }

    /// Claims entries that lie in one leaf, under its latch only. `latched` is the leaf of the start of the
    /// request. Returns `None` if the range reaches into another leaf or the leaf must be split;
    /// [`claim_across`](Self::claim_across) then makes the claim.
    #[inline]
    pub(super) fn claim_in_leaf(
        &self,
        latched: LatchedLeaf<'_, H, SLOTS>,
        request: &ClaimRequest,
    ) -> Option<Result<(), ClaimError>> {
        Some(self.scan_leaf(&latched, request)?.map(|found| {
            if let Some(found) = found {
                self.add_to_first_span(&latched, &found);
                mark_claimed(&latched, &found);
            }
        }))
    }

    /// Searches a latched leaf for the entries of a request. Returns `Some(Ok(None))` if there is nothing to
    /// claim. Returns `None` in the cases of [`claim_in_leaf`](Self::claim_in_leaf).
    #[inline]
    pub(super) fn scan_leaf(
        &self,
        latched: &LatchedLeaf<'_, H, SLOTS>,
        request: &ClaimRequest,
    ) -> Option<Result<Option<LeafEntries>, ClaimError>> {
        let path = &latched.path;
        if !path.covers(request.to) {
            return None;
        }
        let mut from = path.at;
        if request.from < request.start {
            match from {
                0 if path.lo == request.start && path.above.is_some() => return None,
                0 => {}
                _ if path.leaf.end(from - 1) == request.start => from -= 1,
                _ => {}
            }
        }
        let mut scan = ClaimScan::new();
        if let Err(no) = scan.add(path.leaf, from, request) {
            return Some(Err(no.note_waiter(path.leaf)));
        }
        let Some((first, last)) = scan.slots else { return Some(Ok(None)) };
        let extra_slots = scan.slots_for_cuts(request);
        if extra_slots > 0 && path.leaf.weight() + extra_slots > self.map.fan.max_slots() {
            return None;
        }
        Some(Ok(Some(LeafEntries { first, last, extra_slots })))
    }

    /// Copies entries of a latched leaf to the empty first span of the write set.
    #[inline]
    pub(super) fn add_to_first_span(&self, latched: &LatchedLeaf<'_, H, SLOTS>, found: &LeafEntries) {
        let mut span = self.write_set.first.borrow_mut();
        (found.first..=found.last).for_each(|at| span.add(latched.path.leaf, at));
    }

    /// Makes any claim, under the structure lock.
    #[cold]
    #[inline(never)]
    pub(super) fn claim_across(&self, request: &ClaimRequest) -> Result<(), ClaimError> {
        loop {
            let structure = self.map.structure.lock::<H>(Rank::VmaMap);
            // A split may reach the root: every node on the path is then split, including the root.
            let need = if request.cuts { self.map.root.level() + 3 } else { 0 };
            if self.write_set.spares.count() < need {
                drop(structure);
                self.ensure_own_spares(need)?;
                continue;
            }
            let mut busy = BusyNodes::new();
            let scan = self.claim_latched(&mut busy, request);
            let dead = busy.release();
            drop(structure);
            dead.retire::<H>();
            return scan;
        }
    }

    /// Makes a claim. The caller holds the structure lock, and has spare nodes for the splits. First examines
    /// all entries, so that nothing is claimed if one of them is refused.
    fn claim_latched<'n>(
        &'n self,
        busy: &mut BusyNodes<'n, SLOTS>,
        request: &ClaimRequest,
    ) -> Result<(), ClaimError> {
        let map = self.map;
        let mut scan = ClaimScan::new();
        let mut key = request.from;
        while key < request.to {
            let step = map.latched_path_to(busy, key).step(0);
            scan.add(step.node, step.at, request).map_err(|no| no.note_waiter(step.node))?;
            // Only the last leaf ends at or below the key. The last leaf may be the root.
            let end = step.node.last_end();
            if end <= key {
                break;
            }
            key = end;
        }
        let Some((from, to)) = scan.range else { return Ok(()) };
        let mut span = self.write_set.first.borrow_mut();
        let mut key = from;
        while key < to {
            let step = map.latched_path_to(busy, key).step(0);
            let mut at = step.at;
            while at < step.node.count() && step.node.start(at) < to {
                span.add(step.node, at);
                step.node.set_value(at, with_claim(step.node.datum(at), 0));
                key = step.node.end(at);
                at += 1;
            }
        }
        let extra_slots = scan.slots_for_cuts(request);
        if extra_slots > 0 {
            let path = map.latched_path_to(busy, from);
            let Step { node, at, .. } = path.step(0);
            node.set_value(at, with_promised_slots(node.datum(at), extra_slots));
            node.set_promised(node.word().promised() + extra_slots);
            if node.weight() > map.fan.max_slots() {
                map.finger.forget();
                map.insert(busy, &self.write_set.spares, path, &[], SplitPolicy::WidestGap);
            }
        }
        Ok(())
    }

    /// Makes sure that the map has enough spare nodes for one `replace` of an exclusive writer. An exclusive
    /// writer can then make one `replace` without allocating, even after changes by claim writers.
    #[inline]
    pub(super) fn ensure_spares(&self) -> Result<(), ClaimError> {
        // Both values are hints. `refill_spares` checks them again under the lock.
        match self.map.spares.count() > self.map.root.level() + 1 {
            true => Ok(()),
            false => self.refill_spares(),
        }
    }

    /// Moves spare nodes of this writer to the map until the map has enough for one publication.
    #[cold]
    #[inline(never)]
    fn refill_spares(&self) -> Result<(), ClaimError> {
        loop {
            // Spare nodes of the map change only under the structure lock, or by the exclusive writer.
            let structure = self.map.structure.lock::<H>(Rank::VmaMap);
            let missing = (self.map.root.level() + 2).saturating_sub(self.map.spares.count());
            if self.write_set.spares.count() >= missing {
                for _ in 0..missing {
                    self.map.spares.put(self.write_set.spares.take());
                }
                return Ok(());
            }
            drop(structure);
            self.ensure_own_spares(missing)?;
        }
    }

    /// Allocates spare nodes until this writer has `need`. The caller holds no lock, because this may sleep.
    pub(super) fn ensure_own_spares(&self, need: usize) -> Result<(), ClaimError> {
        if self.map.root.level() + 3 > MAX_LEVELS {
            return Err(ClaimError::NeedsExclusive);
        }
        self.write_set.spares.fill(need).map_err(|_| ClaimError::NoMemory)
    }

    /// Returns true if another writer was refused an entry whose claim this writer has ended since the last
    /// call.
    pub fn had_waiters(&self) -> bool {
        self.write_set.had_waiters.replace(false)
    }
}

/// The parameters of a claim.
pub(super) struct ClaimRequest {
    /// Lower bound: the scan visits entries that end above this address.
    from: u64,
    /// Upper bound: the scan visits entries that start below this address.
    to: u64,
    /// Start of the range to be claimed. The entries that overlap `[start, end)` must be claimed; the other
    /// visited entries touch the range.
    start: u64,
    end: u64,
    /// Set if the writer may cut the entries that reach across the ends of the range.
    cuts: bool,
}

impl ClaimRequest {
    /// Returns the parameters of [`ClaimWriter::claim`].
    #[inline]
    pub(super) fn of(start: u64, end: u64, touching: bool, cuts: bool) -> Self {
        let margin = u64::from(touching);
        ClaimRequest { from: start.saturating_sub(margin), to: end.saturating_add(margin), start, end, cuts }
    }
}

/// Adjacent entries of a latched leaf that a claim needs.
pub(super) struct LeafEntries {
    pub(super) first: usize,
    pub(super) last: usize,
    /// Number of entries that the cuts may add.
    pub(super) extra_slots: usize,
}

/// Sets the marks of a claim in a latched leaf.
#[inline]
pub(super) fn mark_claimed<H: Host, const SLOTS: usize>(
    latched: &LatchedLeaf<'_, H, SLOTS>,
    found: &LeafEntries,
) {
    let leaf = latched.path.leaf;
    // Readers ignore marks. So the version needs to change only if slots are promised.
    if found.extra_slots > 0 {
        latched.hold();
        leaf.set_promised(leaf.word().promised() + found.extra_slots);
    }
    for at in found.first..=found.last {
        let extra_slots = if at == found.first { found.extra_slots } else { 0 };
        leaf.set_value(at, with_claim(leaf.datum(at), extra_slots));
    }
}

/// The entries that a claim has found so far.
struct ClaimScan {
    range: Option<(u64, u64)>,
    /// The range of the entries that overlap the requested range.
    inside: Option<(u64, u64)>,
    /// The first and last slot of the found entries in the last leaf.
    slots: Option<(usize, usize)>,
    count: usize,
}

impl ClaimScan {
    fn new() -> Self {
        ClaimScan { range: None, inside: None, slots: None, count: 0 }
    }

    /// Returns the number of entries that the cuts may add.
    #[inline]
    fn slots_for_cuts(&self, request: &ClaimRequest) -> usize {
        let (from, to) = self.inside.filter(|_| request.cuts).unwrap_or((request.start, request.end));
        usize::from(from < request.start) + usize::from(request.end < to)
    }

    /// Adds the entries of the leaf from slot `at` on.
    #[inline]
    fn add<const SLOTS: usize>(
        &mut self,
        leaf: &Node<SLOTS>,
        at: usize,
        request: &ClaimRequest,
    ) -> Result<(), Obstacle> {
        self.slots = None;
        for at in at..leaf.count() {
            let (start, end, mark) = (leaf.start(at), leaf.end(at), Mark::of(leaf.datum(at)));
            if start >= request.to {
                break;
            }
            if mark.is_claimed() {
                return Err(Obstacle::Slot(at));
            }
            if mark.is_reservation() {
                match end > request.start && start < request.end {
                    true if leaf.datum(at) & PERMANENT != 0 => return Err(Obstacle::NeedsExclusive),
                    true => return Err(Obstacle::Slot(at)),
                    false => continue,
                }
            }
            self.count += 1;
            if self.range.is_some_and(|(_, last)| last != start) || self.count > MAX_CLAIM_ENTRIES {
                return Err(Obstacle::NeedsExclusive);
            }
            if end > request.start && start < request.end {
                self.inside = Some((self.inside.map_or(start, |(first, _)| first), end));
            }
            self.range = Some((self.range.map_or(start, |(first, _)| first), end));
            self.slots = Some((self.slots.map_or(at, |(first, _)| first), at));
        }
        Ok(())
    }
}

/// Reasons why a claim is refused.
pub(super) enum Obstacle {
    /// The entry in this slot belongs to another writer or is a reservation.
    Slot(usize),
    /// An entry lies in the hole that was to be filled.
    NotAHole,
    /// There is a hole or a permanent reservation between the entries, or there are too many entries.
    NeedsExclusive,
}

impl Obstacle {
    /// Returns the error. If an entry is in the way, marks the entry, so that the owner of the entry notifies
    /// waiters when the claim ends.
    #[cold]
    pub(super) fn note_waiter<const SLOTS: usize>(self, leaf: &Node<SLOTS>) -> ClaimError {
        match self {
            Obstacle::Slot(at) => {
                leaf.set_value(at, with_waiters(leaf.datum(at)));
                ClaimError::Contended
            }
            Obstacle::NotAHole => ClaimError::NotAHole,
            Obstacle::NeedsExclusive => ClaimError::NeedsExclusive,
        }
    }
}
