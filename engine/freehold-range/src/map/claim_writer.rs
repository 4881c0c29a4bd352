//! Writers side by side: each changes what it has [claimed](super::claim).
//!
//! # Claim, write set, publish
//!
//! A change has three steps. It *claims* the entries that it is going to look at; a copy of them is its
//! [write set](super::write_set). It changes the write set, and looks at nothing else, for as long as it
//! likes. It
//! *publishes*: the write set takes the place of what was claimed, in one step for readers, and the claim
//! ends. So a change of one leaf latches that leaf twice, whatever it does in between.
//!
//! # Two kinds of latches
//!
//! Both are short, and nobody sleeps with one. They are taken by [`ClaimWriter`] alone, and by a search that
//! corrects what an inner node keeps; the [`ExclusiveWriter`](crate::ExclusiveWriter) has the map for itself.
//! A search for a gap that was sent back too often takes the structure lock, without a latch: it then waits
//! for a leaf that is latched, as any holder does.
//!
//! * A *leaf's latch* is BUSY in its control word, got by a compare-and-swap from a version.
//! * The *structure lock* is one per map. Its holder may change inner nodes, link and unlink nodes, and move
//!   the end of a leaf's last entry. So for its holder inner nodes stand still, and leaves stay where they
//!   hang; what is in a leaf stands still once that is latched too.
//!
//! The holder of one leaf's latch waits for nothing. The holder of the structure lock waits for leaves, of
//! which it may have several. So no circle of waiters closes.
//!
//! # A change of one leaf
//!
//! It goes down as a reader does: so there was an instant at which the way led to this leaf at the version
//! seen. The node that said where the entry before the leaf ends, at `lo`, is asked once more afterwards: if
//! it is unchanged, it said so at that instant. The writer then takes the latch from the version seen. Two
//! rules make that instant last until the latch is given back:
//!
//! * a leaf is unlinked only while it is latched, and stays BUSY and DEAD;
//! * a writer that moves the end of a leaf's last entry latches the leaf behind it too, before it gives back
//!   any latch, and gives that a new version.
//!
//! So the leaf is linked, and neither the addresses that belong to it nor the gap in front of its first entry
//! have changed.
//!
//! Pairing D: `release` stores the version (release), `try_latch` exchanges it (acquire). What the last
//! holder did, in the leaf and before, happens before what this one does.
//!
//! # Gaps
//!
//! What an inner node keeps of a child is no less than what it keeps of that one's children: such words
//! change only under the structure lock. Of a leaf it keeps no less than the largest gap, but while a writer
//! that has made a gap has not returned yet. That writer looks, with the leaf latched, at what the node above
//! keeps. If that is enough, and the node is unchanged, it is enough for all nodes above it. Otherwise the
//! writer raises it under the structure lock. A search that finds less than is kept corrects it under the
//! structure lock, with the leaf latched: so the writer either sees the corrected word, or made its gap
//! before it was computed.
//!
//! # No memory
//!
//! Only a claim needs nodes, and can be refused. A claim of a hole puts the reservation in; one that lets
//! entries come promises room for them in their leaf, which counts as used until the claim ends. So the end
//! of a claim always finds room for what is put in its place, in the leaves that it changes.

#![expect(unsafe_code, reason = "follows links of nodes that it keeps allocated, or in place")]

use freehold_sync::{Host, Rank, atomic::CHECKED};

use super::RangeMap;
use super::busy_nodes::BusyNodes;
use super::claim::{
    ClaimError, MAX_CLAIM_ENTRIES, Mark, PERMANENT, with_claim, with_promised_slots, with_waiters,
};
use super::entry::{Entry, FANOUT, MAX_LEVELS, assert_fits};
use super::gap::GapRequest;
use super::insert::SplitPolicy;
use super::node::Node;
use super::path::Step;
use super::write_set::WriteSet;

/// Searches for a gap, concurrently with all changes, before one that keeps changes of the structure out.
const CONCURRENT_SEARCHES: usize = if CHECKED { 1 } else { 32 };

/// The right to change, beside others, what is claimed. See [`RangeMap::claim_writer`] and the
/// [module](self).
///
/// # Invariants
///
/// An entry with [`CLAIMED`](super::claim::CLAIMED) was claimed by one claim writer, which alone changes it.
pub struct ClaimWriter<'a, H: Host, const SLOTS: usize = FANOUT> {
    pub(super) map: &'a RangeMap<H, SLOTS>,
    pub(super) write_set: &'a WriteSet<SLOTS>,
}

impl<H: Host, const SLOTS: usize> RangeMap<H, SLOTS> {
    /// The right to change, beside others, what is claimed. `write_set` is the writer's alone.
    ///
    /// # Safety
    ///
    /// Until it is dropped no [`ExclusiveWriter`](crate::ExclusiveWriter) and no [`Reader`](crate::Reader) of
    /// this map may exist, and the creation of the next one must synchronise with the end of this one (as a
    /// lock does).
    #[inline]
    pub unsafe fn claim_writer<'a>(&'a self, write_set: &'a WriteSet<SLOTS>) -> ClaimWriter<'a, H, SLOTS> {
        ClaimWriter::new(self, write_set)
    }
}

impl<'a, H: Host, const SLOTS: usize> ClaimWriter<'a, H, SLOTS> {
    pub(super) fn new(map: &'a RangeMap<H, SLOTS>, write_set: &'a WriteSet<SLOTS>) -> Self {
        debug_assert!(write_set.is_empty(), "a write set is published before it is used again");
        ClaimWriter { map, write_set }
    }

    // What it has claimed, as it is to be.

    /// The entry that contains `key`, of those that are claimed.
    #[inline]
    pub fn find(&self, key: u64) -> Option<Entry> {
        self.next(key).filter(|entry| entry.start <= key)
    }

    /// The first of them whose end lies above `key`.
    #[inline]
    pub fn next(&self, key: u64) -> Option<Entry> {
        self.write_set.span_of(key).borrow().next(key)
    }

    /// The last of them whose end does not lie above `key`.
    #[inline]
    pub fn prev(&self, key: u64) -> Option<Entry> {
        self.write_set.span_of(key).borrow().prev(key)
    }

    /// What [`prev`](Self::prev) returns for `start` and [`next`](Self::next) for `end`.
    #[inline]
    pub fn around(&self, start: u64, end: u64) -> (Option<Entry>, Option<Entry>) {
        let span = self.write_set.span_of(start).borrow();
        (span.prev(start), span.next(end))
    }

    /// The range that is claimed, of two the first; empty if nothing is.
    #[inline]
    pub fn claimed_range(&self) -> (u64, u64) {
        self.write_set.first.borrow().range()
    }

    /// Puts `with`, ascending and inside the range, in place of what is claimed in `[start, end)`, in the
    /// write set: nobody else sees it before it is [published](Self::publish).
    ///
    /// # Panics
    ///
    /// If the range is not claimed, or an entry reaches across its ends, or there are more entries than the
    /// claim said would come.
    #[inline]
    pub fn replace(&self, start: u64, end: u64, with: &[Entry]) {
        assert_fits(start, end, with);
        self.write_set.span_of(start).borrow_mut().replace(start, end, with);
    }

    // What is in the map, whichever writer has it.

    /// The first entry of the map whose end lies above `key`, at some instant during the call. Waits for
    /// nobody but a writer with the leaf latched.
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

    /// As [`Reader::gap`](crate::Reader::gap), of what was there while it looked. A search that others send
    /// back too often goes on with the structure lock held, and waits only for the latches of leaves it
    /// reads.
    ///
    /// # Panics
    ///
    /// If the length is 0, or the alignment is no power of two.
    pub fn gap(&self, request: &GapRequest, guard: impl Fn(&Entry) -> u64) -> Option<u64> {
        let _rcu = H::rcu_read();
        // SAFETY: the section keeps what is reachable now.
        let search = || unsafe { self.map.find_gap::<true>(request, &guard) };
        for _ in 0..CONCURRENT_SEARCHES {
            if let Ok(found) = search() {
                return found;
            }
            H::relax();
        }
        // Inner nodes stand still from here on.
        let _structure = self.map.structure.lock::<H>(Rank::VmaMap);
        loop {
            if let Ok(found) = search() {
                return found;
            }
            H::relax();
        }
    }

    /// Claims the entries that overlap `[start, end)`, and those that touch it if `touching`, which are no
    /// reservations. If `cuts`, those that reach across `start` or `end` may be cut there. What is claimed
    /// has no hole in it; it may be nothing.
    ///
    /// # Errors
    ///
    /// Nothing is claimed.
    ///
    /// # Panics
    ///
    /// If the range ends before it starts. Nothing is claimed.
    pub fn claim(&self, start: u64, end: u64, touching: bool, cuts: bool) -> Result<(), ClaimError> {
        assert!(start <= end, "a claim ends before it starts");
        debug_assert!(self.write_set.is_empty(), "one claim at a time");
        let margin = u64::from(touching);
        let request = ClaimRequest {
            from: start.saturating_sub(margin),
            to: end.saturating_add(margin),
            start,
            end,
            cuts,
        };
        if cuts {
            self.ensure_spares()?;
        }
        match self.claim_in_leaf(&request) {
            Some(claimed) => claimed,
            None => self.claim_across(&request),
        }
    }

    #[inline]
    fn claim_in_leaf(&self, request: &ClaimRequest) -> Option<Result<(), ClaimError>> {
        let rcu = H::rcu_read();
        let latched = self.latch(&rcu, request.from);
        let path = &latched.path;
        if !path.covers(request.to) {
            return None;
        }
        let mut scan = ClaimScan::new();
        if let Err(no) = scan.add(path.leaf, path.at, request) {
            return Some(Err(no.note_waiter(path.leaf)));
        }
        let Some((first, last)) = scan.slots else { return Some(Ok(())) };
        let extra_slots = scan.slots_for_cuts(request);
        if extra_slots > 0 && path.leaf.weight() + extra_slots > self.map.fan.max_slots() {
            return None;
        }
        // Readers do not look at marks: the version stays, unless room is promised.
        if extra_slots > 0 {
            latched.changed();
            path.leaf.set_promised(true);
        }
        let mut span = self.write_set.first.borrow_mut();
        for at in first..=last {
            let extra_slots = if at == first { extra_slots } else { 0 };
            span.add(path.leaf, at);
            path.leaf.set_value(at, with_claim(path.leaf.datum(at), extra_slots));
        }
        Some(Ok(()))
    }

    #[cold]
    #[inline(never)]
    fn claim_across(&self, request: &ClaimRequest) -> Result<(), ClaimError> {
        loop {
            let structure = self.map.structure.lock::<H>(Rank::VmaMap);
            // All nodes may be split up to the root, and that.
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
            // The last leaf is the one that nothing lies behind; it may be the root.
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
            node.set_promised(true);
            if node.weight() > map.fan.max_slots() {
                map.finger.forget();
                map.insert(busy, &self.write_set.spares, path, &[], SplitPolicy::WidestGap);
            }
        }
        Ok(())
    }

    /// Makes sure that the exclusive writer finds spare nodes for one replace, as one would that had
    /// made all changes before: what needs no memory there needs none after changes side by side either.
    #[inline]
    pub(super) fn ensure_spares(&self) -> Result<(), ClaimError> {
        // Both as hints: they are looked at again.
        match self.map.spares.count() > self.map.root.level() + 1 {
            true => Ok(()),
            false => self.refill_spares(),
        }
    }

    #[cold]
    #[inline(never)]
    fn refill_spares(&self) -> Result<(), ClaimError> {
        loop {
            // Spare nodes of the map are changed with the structure lock, or by the exclusive writer.
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

    pub(super) fn ensure_own_spares(&self, need: usize) -> Result<(), ClaimError> {
        if self.map.root.level() + 3 > MAX_LEVELS {
            return Err(ClaimError::NeedsExclusive);
        }
        self.write_set.spares.fill(need).map_err(|_| ClaimError::NoMemory)
    }

    /// Whether somebody was refused an entry of a claim that has ended since this was last asked.
    pub fn had_waiters(&self) -> bool {
        self.write_set.had_waiters.replace(false)
    }
}

/// What a claim is asked for.
struct ClaimRequest {
    /// Entries that end above this
    from: u64,
    /// and start below this are looked at,
    to: u64,
    /// those that overlap `[start, end)` must be claimed, and the others touch it.
    start: u64,
    end: u64,
    /// Those that reach across its ends may be cut there.
    cuts: bool,
}

/// What a claim has found so far.
struct ClaimScan {
    range: Option<(u64, u64)>,
    /// Those of them that overlap what is wanted.
    inside: Option<(u64, u64)>,
    /// The same in the last leaf.
    slots: Option<(usize, usize)>,
    count: usize,
}

impl ClaimScan {
    fn new() -> Self {
        ClaimScan { range: None, inside: None, slots: None, count: 0 }
    }

    /// How many entries more may come.
    #[inline]
    fn slots_for_cuts(&self, request: &ClaimRequest) -> usize {
        let (from, to) = self.inside.filter(|_| request.cuts).unwrap_or((request.start, request.end));
        usize::from(from < request.start) + usize::from(request.end < to)
    }

    /// Adds the leaf's entries from `at` on.
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

/// Why a claim is refused.
pub(super) enum Obstacle {
    /// The entry in this slot.
    Slot(usize),
    /// Something lies in the hole that was to be filled.
    NotAHole,
    /// There is a hole between the entries, or a reservation that stands, or there are too many.
    NeedsExclusive,
}

impl Obstacle {
    /// The owner of the entry in the way is going to tell when its claim ends.
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
