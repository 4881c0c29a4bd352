//! Claims of holes: a reservation is inserted into the map, and the entries that touch it are claimed.
//!
//! A claim of a hole becomes a span of the [write set](super::write_set), together with the entries that
//! touch the hole. A hole that is claimed in addition to entries becomes a second span, or a part of the
//! first span if it touches the entries of the first claim.
//!
//! The system calls mmap, mremap and brk claim holes, and so does a fault that grows a stack.
//! `claim_writer.rs` has claims of entries and the rules for latches; `tests/claims/` tries every claim of a
//! hole in every small map.

use freehold_sync::{Host, Rank};

use super::busy_nodes::BusyNodes;
use super::claim::{CLAIMED_RESERVATION, ClaimError, Mark, with_claim};
use super::claim_writer::{ClaimWriter, Obstacle};
use super::entry::{Entry, assert_fits};
use super::fanout::Fanout;
use super::insert::SplitPolicy;
use super::leaf_path::LeafPath;
use super::node::{Node, Slot};
use super::path::Step;
use super::write_set::WriteSetSpan;

impl<H: Host, const SLOTS: usize> ClaimWriter<'_, H, SLOTS> {
    /// Inserts a claimed reservation into the hole `[start, end)`, and claims the entries that touch it,
    /// except reservations. `guard(entry)` returns the number of bytes that the entry above the hole keeps
    /// free below its start. The function is called in an RCU read section, with the leaf latched. The write
    /// set then has a hole at `[start, end)`, which one entry may fill.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`]. Nothing is claimed, and the map is unchanged.
    ///
    /// # Panics
    ///
    /// Panics if the hole is empty, or ends before it starts. The map is unchanged then.
    pub fn claim_hole(&self, start: u64, end: u64, guard: impl Fn(&Entry) -> u64) -> Result<(), ClaimError> {
        debug_assert!(self.write_set.is_empty(), "one claim at a time");
        self.reserve_hole(&Entry { start, end, value: CLAIMED_RESERVATION }, &guard, &|_| false)
    }

    /// Claims a hole like [`claim_hole`](Self::claim_hole), in addition to entries that are already claimed.
    /// These entries may touch the hole.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`]. The first claim is unchanged.
    ///
    /// # Panics
    ///
    /// Panics if the hole is empty, or ends before it starts. The map is unchanged then.
    #[inline(never)]
    pub fn claim_additional_hole(
        &self,
        start: u64,
        end: u64,
        guard: impl Fn(&Entry) -> u64,
    ) -> Result<(), ClaimError> {
        debug_assert!(
            !self.write_set.is_empty() && !self.write_set.has_second.get(),
            "an additional claim follows exactly one claim"
        );
        if !self.write_set.first.borrow().fits_additional_hole() {
            return Err(ClaimError::NeedsExclusive);
        }
        let is_own = |start: u64| self.write_set.first.borrow().has_entry_at(start);
        self.reserve_hole(&Entry { start, end, value: CLAIMED_RESERVATION }, &guard, &is_own)
    }

    /// Inserts `with`, a claimed reservation, and claims the entries that touch it. `guard` is the same as
    /// for [`claim_hole`](Self::claim_hole), and `is_own` is the same as for [`Neighbours::of`].
    #[inline]
    fn reserve_hole(
        &self,
        with: &Entry,
        guard: &impl Fn(&Entry) -> u64,
        is_own: &impl Fn(u64) -> bool,
    ) -> Result<(), ClaimError> {
        assert_fits(with.start, with.end, core::slice::from_ref(with));
        self.ensure_spares()?;
        match self.reserve_in_leaf(with, guard, is_own) {
            Some(claimed) => claimed,
            None => self.reserve_across(with, guard, is_own),
        }
    }

    /// Does the work of [`reserve_hole`](Self::reserve_hole) in one leaf, under its latch only. Returns
    /// `None` if the hole does not fit there.
    #[inline]
    fn reserve_in_leaf(
        &self,
        with: &Entry,
        guard: &impl Fn(&Entry) -> u64,
        is_own: &impl Fn(u64) -> bool,
    ) -> Option<Result<(), ClaimError>> {
        let rcu = H::rcu_read();
        let latched = self.latch(&rcu, with.start);
        let LeafPath { leaf, at, .. } = latched.path;
        if !fits_in_leaf(&latched.path, with.start, self.map.fan) {
            return None;
        }
        let neighbours = match Neighbours::of(leaf, at, with, guard, is_own) {
            Ok(neighbours) => neighbours,
            Err(no) => return Some(Err(no.note_waiter(leaf))),
        };
        latched.hold();
        self.add_to_span_of(&neighbours, |span| neighbours.claim(leaf, at, with, span));
        leaf.splice(at, 0, &[Slot::of(with)]);
        Some(Ok(()))
    }

    /// Calls `add` with the span of the write set that the hole belongs to.
    #[inline]
    fn add_to_span_of(&self, neighbours: &Neighbours, add: impl FnOnce(&mut WriteSetSpan)) {
        let mut first = self.write_set.first.borrow_mut();
        if first.is_empty() || neighbours.touches_own() {
            return add(&mut first);
        }
        add(&mut self.write_set.second.borrow_mut());
        self.write_set.has_second.set(true);
    }

    /// Does the work of [`reserve_hole`](Self::reserve_hole) in any case, under the structure lock.
    #[cold]
    #[inline(never)]
    fn reserve_across(
        &self,
        with: &Entry,
        guard: &impl Fn(&Entry) -> u64,
        is_own: &impl Fn(u64) -> bool,
    ) -> Result<(), ClaimError> {
        loop {
            let rcu = H::rcu_read();
            let structure = self.map.structure.lock::<H>(Rank::VmaMap);
            let need = self.map.root.level() + 2;
            if self.write_set.spares.count() < need {
                drop((structure, rcu));
                self.ensure_own_spares(need)?;
                continue;
            }
            let mut busy = BusyNodes::new();
            let filled = self.reserve_latched(&mut busy, with, guard, is_own);
            let dead = busy.release();
            drop((structure, rcu));
            dead.retire::<H>();
            return filled;
        }
    }

    /// Does the work of [`reserve_across`](Self::reserve_across). The caller holds the structure lock and has
    /// spare nodes.
    fn reserve_latched<'n>(
        &'n self,
        busy: &mut BusyNodes<'n, SLOTS>,
        with: &Entry,
        guard: &impl Fn(&Entry) -> u64,
        is_own: &impl Fn(u64) -> bool,
    ) -> Result<(), ClaimError> {
        let map = self.map;
        let path = map.latched_path_to(busy, with.start);
        let Step { node: leaf, at, lo } = path.step(0);
        let mut neighbours =
            Neighbours::of(leaf, at, with, guard, is_own).map_err(|no| no.note_waiter(leaf))?;
        let mut left = None;
        if at == 0 && lo == with.start && lo > 0 {
            let Step { node: before, at, .. } = map.latched_path_to(busy, lo - 1).step(0);
            neighbours.before = Neighbour::of(before, at, is_own).map_err(|no| no.note_waiter(before))?;
            left = Some((before, at));
        }
        self.add_to_span_of(&neighbours, |span| match left {
            None => neighbours.claim(leaf, at, with, span),
            Some(before) => neighbours.claim_both(before, (leaf, at), with, span),
        });
        map.finger.forget();
        map.insert(busy, &self.write_set.spares, path, &[*with], SplitPolicy::WidestGap);
        Ok(())
    }
}

/// Returns true if a hole from `start` on can be filled in one latched leaf. Three conditions must hold: the
/// leaf has a free slot; the end of the leaf stays, or the leaf is the root; and the leaf before has no entry
/// that touches the hole.
#[inline]
pub(super) fn fits_in_leaf<const SLOTS: usize>(path: &LeafPath<'_, SLOTS>, start: u64, fan: Fanout) -> bool {
    let elsewhere = path.at == path.leaf.count() || path.at == 0 && path.lo == start;
    !(elsewhere && path.above.is_some()) && path.leaf.weight() < fan.max_slots()
}

/// An entry that touches a hole and is not a reservation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Neighbour {
    /// The entry is not claimed, and will be claimed together with the hole.
    Unclaimed,
    /// The writer has already claimed the entry.
    Own,
}

impl Neighbour {
    /// Returns the state of an entry that is known to touch the hole.
    #[inline]
    fn of<const SLOTS: usize>(
        leaf: &Node<SLOTS>,
        at: usize,
        is_own: &impl Fn(u64) -> bool,
    ) -> Result<Option<Self>, Obstacle> {
        let mark = Mark::of(leaf.datum(at));
        match (mark.is_claimed(), mark.is_reservation()) {
            (true, _) if is_own(leaf.start(at)) => Ok(Some(Neighbour::Own)),
            (true, _) => Err(Obstacle::Slot(at)),
            (false, true) => Ok(None),
            (false, false) => Ok(Some(Neighbour::Unclaimed)),
        }
    }
}

/// The entries that touch a hole that is to be filled.
pub(super) struct Neighbours {
    pub(super) before: Option<Neighbour>,
    pub(super) behind: Option<Neighbour>,
}

impl Neighbours {
    /// Returns the entries of this leaf that touch the hole, if the hole can be filled in front of slot `at`.
    /// `is_own(start)` returns true if the writer has claimed the entry that starts at `start`.
    #[inline]
    pub(super) fn of<const SLOTS: usize>(
        leaf: &Node<SLOTS>,
        at: usize,
        with: &Entry,
        guard: &impl Fn(&Entry) -> u64,
        is_own: &impl Fn(u64) -> bool,
    ) -> Result<Self, Obstacle> {
        let mut neighbours = Neighbours { before: None, behind: None };
        if at < leaf.count() {
            let start = leaf.start(at);
            let entry = leaf.slot(at).entry();
            if start.saturating_sub(entry.map_or(0, |entry| guard(&entry))) < with.end {
                return Err(Obstacle::NotAHole);
            }
            if start == with.end {
                neighbours.behind = Neighbour::of(leaf, at, is_own)?;
            }
        }
        if at > 0 && leaf.end(at - 1) == with.start {
            neighbours.before = Neighbour::of(leaf, at - 1, is_own)?;
        }
        Ok(neighbours)
    }

    /// Returns true if an entry that this writer has already claimed touches the hole.
    #[inline]
    fn touches_own(&self) -> bool {
        self.before == Some(Neighbour::Own) || self.behind == Some(Neighbour::Own)
    }

    /// Claims the unclaimed neighbours, and adds them and the hole to the span.
    #[inline]
    fn claim<const SLOTS: usize>(
        &self,
        leaf: &Node<SLOTS>,
        at: usize,
        hole: &Entry,
        span: &mut WriteSetSpan,
    ) {
        self.claim_both((leaf, at.wrapping_sub(1)), (leaf, at), hole, span);
    }

    /// Does the work of [`claim`](Self::claim) for neighbours that may be in two leaves.
    #[inline(always)]
    fn claim_both<const SLOTS: usize>(
        &self,
        (before, last): (&Node<SLOTS>, usize),
        (behind, first): (&Node<SLOTS>, usize),
        hole: &Entry,
        span: &mut WriteSetSpan,
    ) {
        let claim = |leaf: &Node<SLOTS>, at: usize| leaf.set_value(at, with_claim(leaf.datum(at), 0));
        if self.before == Some(Neighbour::Unclaimed) {
            match self.behind == Some(Neighbour::Own) {
                true => span.add_first(before, last),
                false => span.add(before, last),
            }
            claim(before, last);
        }
        if self.behind == Some(Neighbour::Unclaimed) {
            span.add(behind, first);
            claim(behind, first);
        }
        span.add_hole(hole.start, hole.end);
    }
}
