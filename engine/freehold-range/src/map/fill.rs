//! Claims of holes: a reservation comes into the map, and what touches it is claimed.
//!
//! A [write set](super::write_set) has one span, in which there is no hole that is not claimed. A claim of a
//! hole beside one of entries makes a second span of it; but where the hole touches what the first claim has,
//! the two are one.

use freehold_sync::{Host, Rank};

use super::claim::{CLAIMED_RESERVATION, ClaimError, Mark, with_claim};
use super::claim_writer::{ClaimWriter, InTheWay};
use super::entry::{Entry, assert_fits};
use super::fan::Fan;
use super::grow::Halves;
use super::hold::Held;
use super::node::{Node, Slot};
use super::path::Step;
use super::way::Way;
use super::write_set::WriteSetSpan;

impl<H: Host, const SLOTS: usize> ClaimWriter<'_, H, SLOTS> {
    /// Puts a reservation, claimed, into the hole `[start, end)`, and claims the entries that touch it and
    /// are no reservations. `kept(entry)` is how many bytes below its start the entry above the hole keeps
    /// free; it is called in a read section, with the leaf latched. The write set has a hole there, which one
    /// entry may fill.
    ///
    /// # Errors
    ///
    /// Nothing is claimed, and the map is as before.
    ///
    /// # Panics
    ///
    /// If the hole is empty, or ends before it starts. The map is as before.
    pub fn claim_hole(&self, start: u64, end: u64, kept: impl Fn(&Entry) -> u64) -> Result<(), ClaimError> {
        debug_assert!(self.write_set.is_empty(), "one claim at a time");
        self.reserve_hole(&Entry { start, end, value: CLAIMED_RESERVATION }, &kept, &|_| false)
    }

    /// As [`claim_hole`](Self::claim_hole), beside entries that are claimed already. What touches the hole
    /// may be one of these.
    ///
    /// # Errors
    ///
    /// The first claim is as before.
    ///
    /// # Panics
    ///
    /// If the hole is empty, or ends before it starts. The map is as before.
    #[inline(never)]
    pub fn claim_hole_beside(
        &self,
        start: u64,
        end: u64,
        kept: impl Fn(&Entry) -> u64,
    ) -> Result<(), ClaimError> {
        debug_assert!(
            !self.write_set.is_empty() && !self.write_set.has_second.get(),
            "the second of two claims"
        );
        if !self.write_set.first.borrow().has_room() {
            return Err(ClaimError::NeedsExclusive);
        }
        let own = |start: u64| self.write_set.first.borrow().starts(start);
        self.reserve_hole(&Entry { start, end, value: CLAIMED_RESERVATION }, &kept, &own)
    }

    #[inline(always)]
    fn reserve_hole(
        &self,
        with: &Entry,
        kept: &impl Fn(&Entry) -> u64,
        own: &impl Fn(u64) -> bool,
    ) -> Result<(), ClaimError> {
        assert_fits(with.start, with.end, core::slice::from_ref(with));
        self.keep_stock()?;
        match self.fill_in_leaf(with, kept, own) {
            Some(claimed) => claimed,
            None => self.fill_across(with, kept, own),
        }
    }

    #[inline(always)]
    fn fill_in_leaf(
        &self,
        with: &Entry,
        kept: &impl Fn(&Entry) -> u64,
        own: &impl Fn(u64) -> bool,
    ) -> Option<Result<(), ClaimError>> {
        let rcu = H::rcu_read();
        let latched = self.latch(&rcu, with.start);
        let Way { leaf, at, .. } = latched.way;
        if !takes_one(&latched.way, with.start, self.map.fan) {
            return None;
        }
        let sides = match Sides::of(leaf, at, with, kept, own) {
            Ok(sides) => sides,
            Err(no) => return Some(Err(no.note(leaf))),
        };
        latched.changed();
        self.add_to_span_of(&sides, |span| sides.claim(leaf, at, with, span));
        leaf.splice(at, 0, &[Slot::of(with)]);
        Some(Ok(()))
    }

    /// Calls `add` with the span that the hole belongs to.
    #[inline(always)]
    fn add_to_span_of(&self, sides: &Sides, add: impl FnOnce(&mut WriteSetSpan)) {
        let mut first = self.write_set.first.borrow_mut();
        if first.is_empty() || sides.touches_own() {
            return add(&mut first);
        }
        add(&mut self.write_set.second.borrow_mut());
        self.write_set.has_second.set(true);
    }

    /// Puts an entry into the hole that it lies in, where nobody has claimed what touches it, and none of
    /// that `joins` it. The entry is claimed by nobody either. `kept` as for
    /// [`claim_hole`](Self::claim_hole). Returns whether it was put there; else it takes a claim of the hole.
    ///
    /// # Errors
    ///
    /// The map is as before.
    ///
    /// # Panics
    ///
    /// If the entry is empty, or ends before it starts. The map is as before.
    #[inline]
    pub fn fill_hole(
        &self,
        with: &Entry,
        kept: impl Fn(&Entry) -> u64,
        joins: impl Fn(&Entry) -> bool,
    ) -> Result<bool, ClaimError> {
        assert_fits(with.start, with.end, core::slice::from_ref(with));
        self.keep_stock()?;
        let rcu = H::rcu_read();
        let latched = self.latch(&rcu, with.start);
        let Way { leaf, at, .. } = latched.way;
        if !takes_one(&latched.way, with.start, self.map.fan) {
            return Ok(false);
        }
        let sides = Sides::of(leaf, at, with, &kept, &|_| false).map_err(|no| no.note(leaf))?;
        let joins = |at: usize| leaf.slot(at).entry().is_some_and(|entry| joins(&entry));
        if sides.before.is_some() && joins(at - 1) || sides.behind.is_some() && joins(at) {
            return Ok(false);
        }
        latched.changed();
        leaf.splice(at, 0, &[Slot::of(with)]);
        Ok(true)
    }

    #[cold]
    #[inline(never)]
    fn fill_across(
        &self,
        with: &Entry,
        kept: &impl Fn(&Entry) -> u64,
        own: &impl Fn(u64) -> bool,
    ) -> Result<(), ClaimError> {
        loop {
            let rcu = H::rcu_read();
            let structure = self.map.structure.lock::<H>(Rank::VmaMap);
            let need = self.map.root.level() + 2;
            if self.write_set.spares.count() < need {
                drop((structure, rcu));
                self.fill(need)?;
                continue;
            }
            let mut held = Held::new();
            let filled = self.fill_held(&mut held, with, kept, own);
            let dead = held.release();
            drop((structure, rcu));
            dead.retire::<H>();
            return filled;
        }
    }

    fn fill_held<'n>(
        &'n self,
        held: &mut Held<'n, SLOTS>,
        with: &Entry,
        kept: &impl Fn(&Entry) -> u64,
        own: &impl Fn(u64) -> bool,
    ) -> Result<(), ClaimError> {
        let map = self.map;
        let path = map.path_to(held, with.start);
        let Step { node: leaf, at, lo } = path.step(0);
        let mut sides = Sides::of(leaf, at, with, kept, own).map_err(|no| no.note(leaf))?;
        let mut left = None;
        if at == 0 && lo == with.start && lo > 0 {
            let Step { node: before, at, .. } = map.path_to(held, lo - 1).step(0);
            sides.before = Touch::of(before, at, own).map_err(|no| no.note(before))?;
            left = Some((before, at));
        }
        self.add_to_span_of(&sides, |span| match left {
            None => sides.claim(leaf, at, with, span),
            Some(before) => sides.claim_both(before, (leaf, at), with, span),
        });
        map.finger.forget();
        map.put(held, &self.write_set.spares, path, &[*with], Halves::Shared);
        Ok(())
    }
}

/// Whether a latched leaf alone is concerned by an entry that comes into a hole from `start` on, and has room
/// for it: the end of the last leaf does not move, and what touches the hole is not in the leaf before.
#[inline(always)]
fn takes_one<const SLOTS: usize>(way: &Way<'_, SLOTS>, start: u64, fan: Fan) -> bool {
    let elsewhere = way.at == way.leaf.count() || way.at == 0 && way.lo == start;
    !(elsewhere && way.above.is_some()) && way.leaf.weight() < fan.most()
}

/// An entry that touches a hole, and is no reservation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touch {
    /// To be claimed with it.
    Free,
    /// The writer has claimed it already.
    Own,
}

impl Touch {
    /// What an entry is, of which it is known that it touches.
    #[inline(always)]
    fn of<const SLOTS: usize>(
        leaf: &Node<SLOTS>,
        at: usize,
        own: &impl Fn(u64) -> bool,
    ) -> Result<Option<Self>, InTheWay> {
        let mark = Mark::of(leaf.datum(at));
        match (mark.is_claimed(), mark.is_reservation()) {
            (true, _) if own(leaf.start(at)) => Ok(Some(Touch::Own)),
            (true, _) => Err(InTheWay::Slot(at)),
            (false, true) => Ok(None),
            (false, false) => Ok(Some(Touch::Free)),
        }
    }
}

/// What touches a hole that is to be filled.
struct Sides {
    before: Option<Touch>,
    behind: Option<Touch>,
}

impl Sides {
    /// What they are, in this leaf, if the hole can be filled in front of slot `at`. `own(start)`: whether
    /// the writer has claimed the entry that starts there.
    #[inline(always)]
    fn of<const SLOTS: usize>(
        leaf: &Node<SLOTS>,
        at: usize,
        with: &Entry,
        kept: &impl Fn(&Entry) -> u64,
        own: &impl Fn(u64) -> bool,
    ) -> Result<Self, InTheWay> {
        let mut sides = Sides { before: None, behind: None };
        if at < leaf.count() {
            let start = leaf.start(at);
            let entry = leaf.slot(at).entry();
            if start.saturating_sub(entry.map_or(0, |entry| kept(&entry))) < with.end {
                return Err(InTheWay::Filled);
            }
            if start == with.end {
                sides.behind = Touch::of(leaf, at, own)?;
            }
        }
        if at > 0 && leaf.end(at - 1) == with.start {
            sides.before = Touch::of(leaf, at - 1, own)?;
        }
        Ok(sides)
    }

    #[inline(always)]
    fn touches_own(&self) -> bool {
        self.before == Some(Touch::Own) || self.behind == Some(Touch::Own)
    }

    /// Claims them, and write sets the hole.
    #[inline(always)]
    fn claim<const SLOTS: usize>(
        &self,
        leaf: &Node<SLOTS>,
        at: usize,
        hole: &Entry,
        span: &mut WriteSetSpan,
    ) {
        self.claim_both((leaf, at.wrapping_sub(1)), (leaf, at), hole, span);
    }

    /// The same where they may be of two leaves.
    #[inline(always)]
    fn claim_both<const SLOTS: usize>(
        &self,
        (before, last): (&Node<SLOTS>, usize),
        (behind, first): (&Node<SLOTS>, usize),
        hole: &Entry,
        span: &mut WriteSetSpan,
    ) {
        let claim = |leaf: &Node<SLOTS>, at: usize| leaf.set_value(at, with_claim(leaf.datum(at), 0));
        if self.before == Some(Touch::Free) {
            match self.behind == Some(Touch::Own) {
                true => span.take_first(before, last),
                false => span.take(before, last),
            }
            claim(before, last);
        }
        if self.behind == Some(Touch::Free) {
            span.take(behind, first);
            claim(behind, first);
        }
        span.take_hole(hole.start, hole.end);
    }
}
