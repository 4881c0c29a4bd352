//! Writers side by side: each changes what it has [claimed](super::claim).
//!
//! # Two kinds of latches
//!
//! Both are short, and nobody sleeps with one. They are taken by [`SharedWriter`] alone, and by a search that
//! corrects what an inner node keeps; the [`Writer`](super::Writer) has the map for itself.
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
//! It goes down as a reader does, and remembers every version on the way. When it has the leaf's word, and
//! all nodes above are unchanged, there was an instant at which all of them were at these versions: then the
//! way led here, and the entry before the leaf ended at the address `lo` that the nodes above say. It then
//! takes the latch from the version seen. Two rules make that instant last until the latch is given back:
//!
//! * a leaf is unlinked only while it is latched, and stays BUSY and DEAD;
//! * a writer that moves the end of a leaf's last entry latches the leaf behind it too, and gives that a new
//!   version.
//!
//! So the leaf is linked, and neither the addresses that belong to it nor the gap in front of its first entry
//! have changed.
//!
//! Pairing D: `release` stores the version (release), `try_hold` exchanges it (acquire). What the last holder
//! did, in the leaf and before, happens before what this one does.
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
//! entries come promises room for them in their leaf, which counts as used until the claim ends. So an
//! exchange of what is claimed always finds room, in the leaves that it changes.

#![expect(unsafe_code, reason = "follows links of nodes that it keeps allocated, or in place")]

use core::cell::Cell;

use freehold_sync::{Host, Rank};

use super::claim::{GROWTH, MOST, Mark, Refused, claimed, wanted, with_room};
use super::gap::GapRequest;
use super::hold::Held;
use super::node::{Node, Slot};
use super::spare::Spares;
use super::way::Way;
use super::write::{Step, assert_fits};
use super::{Entry, FAN, MAX_LEVELS, RangeMap};

/// Searches for a gap beside others before they are given up.
const SEARCHES: usize = 32;

/// The right to change, beside others, what is claimed. See [`RangeMap::shared_writer`] and the
/// [module](self).
///
/// # Invariants
///
/// An entry with [`CLAIMED`](super::claim::CLAIMED) was claimed by one shared writer, which alone changes it.
pub struct SharedWriter<'a, H: Host, const SLOTS: usize = FAN> {
    pub(super) map: &'a RangeMap<H, SLOTS>,
    /// Nodes for claims that split; this writer's own.
    spares: Spares<SLOTS>,
    /// What it has claimed, if anything.
    pub(super) span: Cell<(u64, u64)>,
    /// Somebody was refused what this writer had.
    pub(super) wanted: Cell<bool>,
}

impl<'a, H: Host, const SLOTS: usize> SharedWriter<'a, H, SLOTS> {
    pub(super) fn new(map: &'a RangeMap<H, SLOTS>) -> Self {
        SharedWriter { map, spares: Spares::new(), span: Cell::new((0, 0)), wanted: Cell::new(false) }
    }

    /// The entry that contains `key`, at some instant during the call. Waits for nobody but a writer with the
    /// leaf latched.
    #[inline]
    pub fn find(&self, key: u64) -> Option<Entry> {
        self.next(key).filter(|entry| entry.start <= key)
    }

    /// The first entry whose end lies above `key`, at some instant during the call.
    #[inline]
    pub fn next(&self, key: u64) -> Option<Entry> {
        let rcu = H::rcu_read();
        loop {
            let way = self.map.way(&rcu, key);
            let found = if way.at < way.word.count() { way.leaf.slot(way.at).entry() } else { None };
            if way.leaf.unchanged(way.word) {
                return found;
            }
        }
    }

    /// The last entry whose end does not lie above `key`, at some instant during the call.
    #[inline]
    pub fn prev(&self, key: u64) -> Option<Entry> {
        loop {
            let rcu = H::rcu_read();
            let way = self.map.way(&rcu, key);
            let found = if way.at > 0 { way.leaf.slot(way.at - 1).entry() } else { None };
            let lo = way.lo;
            if !way.leaf.unchanged(way.word) {
                continue;
            }
            if found.is_some() || lo == 0 {
                return found;
            }
            drop(rcu);
            // It is the last of the leaf before, unless that has changed since.
            if let Some(found) = self.find(lo - 1).filter(|found| found.end == lo) {
                return Some(found);
            }
        }
    }

    /// What [`prev`](Self::prev) returns for `start` and [`next`](Self::next) for `end`, not below it: what
    /// lies on either side of a range. At one instant each.
    pub fn around(&self, start: u64, end: u64) -> (Option<Entry>, Option<Entry>) {
        let rcu = H::rcu_read();
        let way = self.map.way(&rcu, start);
        let (leaf, count) = (way.leaf, way.word.count());
        let behind = (way.at..count).find(|&at| leaf.end(at) > end);
        if let Some(behind) = behind.filter(|_| way.at > 0) {
            let found = (leaf.slot(way.at - 1).entry(), leaf.slot(behind).entry());
            if leaf.unchanged(way.word) {
                return found;
            }
        }
        drop(rcu);
        (self.prev(start), self.next(end))
    }

    /// As [`Reader::gap`](super::Reader::gap), of what was there while it looked; none too if others change
    /// the map all the time.
    pub fn gap(&self, request: &GapRequest, below: impl Fn(&Entry) -> u64) -> Option<u64> {
        let _rcu = H::rcu_read();
        for _ in 0..SEARCHES {
            // SAFETY: the section keeps what is reachable now.
            if let Ok(found) = unsafe { self.map.find_gap::<true>(request, &below) } {
                return found;
            }
            H::relax();
        }
        None
    }

    /// Claims the entries that overlap `[start, end)`, and those that touch it if `touching`, which are no
    /// reservations. If `grows`, exchanges may put two entries more in place of the first, and of the last.
    /// What is claimed has no hole in it, and is released as one range: that is the result, `None` if there
    /// is nothing.
    ///
    /// # Errors
    ///
    /// Nothing is claimed.
    pub fn claim(
        &self,
        start: u64,
        end: u64,
        touching: bool,
        grows: bool,
    ) -> Result<Option<(u64, u64)>, Refused> {
        let margin = u64::from(touching);
        let want = Want { from: start.saturating_sub(margin), to: end + margin, start, end };
        let room = if grows { GROWTH } else { 0 };
        let claimed = match self.claim_in_leaf(&want, room) {
            Some(claimed) => claimed,
            None => self.claim_across(&want, room),
        };
        claimed.inspect(|span| self.took(span.unwrap_or((0, 0))))
    }

    fn took(&self, span: (u64, u64)) {
        debug_assert!(self.span.get() == (0, 0), "one claim at a time");
        self.span.set(span);
    }

    #[inline(always)]
    fn claim_in_leaf(&self, want: &Want, room: usize) -> Option<Result<Option<(u64, u64)>, Refused>> {
        let rcu = H::rcu_read();
        let latched = self.map.latch(&rcu, want.from);
        let way = &latched.way;
        if !way.covers(want.to) {
            return None;
        }
        let mut span = Span::new();
        if let Err(no) = span.add(way.leaf, way.at, want) {
            return Some(Err(no.note(way.leaf, || latched.changed())));
        }
        let Some((first, last)) = span.slots else { return Some(Ok(None)) };
        let grows = if first == last { room } else { 2 * room };
        if grows > 0 && way.leaf.weight() + grows > SLOTS {
            return None;
        }
        latched.changed();
        for at in first..=last {
            let room = if at == first || at == last { room } else { 0 };
            way.leaf.set_value(at, claimed(way.leaf.datum(at), room));
        }
        Some(Ok(span.range))
    }

    #[cold]
    #[inline(never)]
    fn claim_across(&self, want: &Want, room: usize) -> Result<Option<(u64, u64)>, Refused> {
        loop {
            let structure = self.map.structure.lock::<H>(Rank::Leaf);
            // Each of the two ends may split all nodes up to the root, and that.
            let need = if room > 0 { 2 * (self.map.root.level() + 3) } else { 0 };
            if self.spares.count() < need {
                drop(structure);
                self.fill(need)?;
                continue;
            }
            let mut held = Held::new();
            let span = self.claim_held(&mut held, want, room);
            let dead = held.release();
            drop(structure);
            dead.retire::<H>();
            return span;
        }
    }

    fn claim_held<'n>(
        &'n self,
        held: &mut Held<'n, SLOTS>,
        want: &Want,
        room: usize,
    ) -> Result<Option<(u64, u64)>, Refused> {
        let map = self.map;
        let mut span = Span::new();
        let mut key = want.from;
        while key < want.to && key < map.root.last_end() {
            let step = map.path_to(held, key).step(0);
            span.add(step.node, step.at, want).map_err(|no| no.note(step.node, || ()))?;
            key = step.node.last_end();
        }
        let Some((from, to)) = span.range else { return Ok(None) };
        let mut key = from;
        while key < to {
            let step = map.path_to(held, key).step(0);
            let mut at = step.at;
            while at < step.node.count() && step.node.start(at) < to {
                let end = step.node.end(at);
                step.node.set_value(at, claimed(step.node.datum(at), 0));
                (at, key) = (at + 1, end);
            }
        }
        if room > 0 {
            // One after the other: two halves have room for what one entry more needs, whatever that is.
            for key in [from, to - 1] {
                let path = map.path_to(held, key);
                let Step { node, at, .. } = path.step(0);
                node.set_value(at, with_room(node.datum(at), room));
                if node.weight() > SLOTS {
                    map.finger.forget();
                    map.put(held, &self.spares, path, &[]);
                }
            }
        }
        Ok(span.range)
    }

    /// Puts a reservation, claimed, into the hole `[start, end)`, and claims the entries that touch it and
    /// are no reservations. `kept(entry)` is how many bytes below its start the entry above the hole keeps
    /// free. Returns what is claimed, which is released as one range.
    ///
    /// # Errors
    ///
    /// Nothing is claimed, and the map is as before.
    pub fn claim_hole(
        &self,
        start: u64,
        end: u64,
        kept: impl Fn(&Entry) -> u64,
    ) -> Result<(u64, u64), Refused> {
        let with = Entry { start, end, value: super::claim::RESERVED };
        assert_fits(start, end, &[with]);
        let claimed = match self.fill_in_leaf(&with, &kept) {
            Some(claimed) => claimed,
            None => self.fill_across(&with, &kept),
        };
        claimed.inspect(|span| self.took(*span))
    }

    #[inline(always)]
    fn fill_in_leaf(
        &self,
        with: &Entry,
        kept: &impl Fn(&Entry) -> u64,
    ) -> Option<Result<(u64, u64), Refused>> {
        let rcu = H::rcu_read();
        let latched = self.map.latch(&rcu, with.start);
        let Way { leaf, at, lo, above, .. } = latched.way;
        // The end of the last leaf moves, or what touches is in the leaf before, or there is no room.
        let elsewhere = above.is_some() && (at == leaf.count() || at == 0 && lo == with.start);
        if elsewhere || leaf.weight() + 1 > SLOTS {
            return None;
        }
        let sides = match Sides::of(leaf, at, with, kept) {
            Ok(sides) => sides,
            Err(no) => return Some(Err(no.note(leaf, || latched.changed()))),
        };
        latched.changed();
        sides.claim(leaf, at);
        leaf.splice(at, 0, &[Slot::of(with)]);
        Some(Ok(sides.around(with)))
    }

    #[cold]
    #[inline(never)]
    fn fill_across(&self, with: &Entry, kept: &impl Fn(&Entry) -> u64) -> Result<(u64, u64), Refused> {
        loop {
            let structure = self.map.structure.lock::<H>(Rank::Leaf);
            let need = self.map.root.level() + 2;
            if self.spares.count() < need {
                drop(structure);
                self.fill(need)?;
                continue;
            }
            let mut held = Held::new();
            let filled = self.fill_held(&mut held, with, kept);
            let dead = held.release();
            drop(structure);
            dead.retire::<H>();
            return filled;
        }
    }

    fn fill_held<'n>(
        &'n self,
        held: &mut Held<'n, SLOTS>,
        with: &Entry,
        kept: &impl Fn(&Entry) -> u64,
    ) -> Result<(u64, u64), Refused> {
        let map = self.map;
        let path = map.path_to(held, with.start);
        let Step { node: leaf, at, lo } = path.step(0);
        let mut sides = Sides::of(leaf, at, with, kept).map_err(|no| no.note(leaf, || ()))?;
        if at == 0 && lo == with.start && lo > 0 {
            let Step { node: before, at, .. } = map.path_to(held, lo - 1).step(0);
            let value = Mark::of(before.datum(at));
            if value.is_claimed() {
                return Err(InTheWay::Slot(at).note(before, || ()));
            }
            if !value.is_hole() {
                before.set_value(at, claimed(before.datum(at), 0));
                sides.before = Some(before.start(at));
            }
        }
        sides.claim(leaf, at);
        map.finger.forget();
        map.put(held, &self.spares, path, &[*with]);
        Ok(sides.around(with))
    }

    fn fill(&self, need: usize) -> Result<(), Refused> {
        if self.map.root.level() + 3 > MAX_LEVELS {
            return Err(Refused::Whole);
        }
        self.spares.fill(need).map_err(|_| Refused::NoMemory)
    }

    /// Whether somebody was refused an entry of a claim that has ended since this was last asked.
    pub fn was_wanted(&self) -> bool {
        self.wanted.replace(false)
    }
}

impl<H: Host, const SLOTS: usize> Drop for SharedWriter<'_, H, SLOTS> {
    #[inline]
    fn drop(&mut self) {
        self.spares.free_all();
    }
}

/// What a claim is asked for.
struct Want {
    /// Entries that end above this
    from: u64,
    /// and start below this are looked at,
    to: u64,
    /// those that overlap `[start, end)` must be claimed, and the others touch it.
    start: u64,
    end: u64,
}

/// What a claim has found so far.
struct Span {
    range: Option<(u64, u64)>,
    /// The same in the last leaf.
    slots: Option<(usize, usize)>,
    count: usize,
}

impl Span {
    fn new() -> Self {
        Span { range: None, slots: None, count: 0 }
    }

    /// Adds the leaf's entries from `at` on.
    #[inline(always)]
    fn add<const SLOTS: usize>(
        &mut self,
        leaf: &Node<SLOTS>,
        at: usize,
        want: &Want,
    ) -> Result<(), InTheWay> {
        self.slots = None;
        for at in at..leaf.count() {
            let (start, end, mark) = (leaf.start(at), leaf.end(at), Mark::of(leaf.datum(at)));
            if start >= want.to {
                break;
            }
            if mark.is_claimed() {
                return Err(InTheWay::Slot(at));
            }
            if mark.is_hole() {
                if end > want.start && start < want.end {
                    return Err(InTheWay::Slot(at));
                }
                continue;
            }
            self.count += 1;
            if self.range.is_some_and(|(_, last)| last != start) || self.count > MOST {
                return Err(InTheWay::Holes);
            }
            self.range = Some((self.range.map_or(start, |(first, _)| first), end));
            self.slots = Some((self.slots.map_or(at, |(first, _)| first), at));
        }
        Ok(())
    }
}

/// Why a claim is refused.
enum InTheWay {
    /// The entry in this slot.
    Slot(usize),
    /// Something lies in the hole that was to be filled.
    Filled,
    /// There is a hole between the entries, or there are too many.
    Holes,
}

impl InTheWay {
    /// The owner of the entry in the way is going to tell when its claim ends; `changed` is called before the
    /// leaf is.
    #[cold]
    fn note<const SLOTS: usize>(self, leaf: &Node<SLOTS>, changed: impl FnOnce()) -> Refused {
        match self {
            InTheWay::Slot(at) => {
                changed();
                leaf.set_value(at, wanted(leaf.datum(at)));
                Refused::Taken
            }
            InTheWay::Filled => Refused::Filled,
            InTheWay::Holes => Refused::Whole,
        }
    }
}

/// What touches a hole that is to be filled.
struct Sides {
    /// Start of the entry that ends where the hole starts.
    before: Option<u64>,
    /// End of the entry that starts where the hole ends.
    behind: Option<u64>,
    /// Whether the one before is in the leaf of the hole.
    beside: bool,
}

impl Sides {
    /// What they are, if the hole can be filled in front of slot `at`.
    #[inline(always)]
    fn of<const SLOTS: usize>(
        leaf: &Node<SLOTS>,
        at: usize,
        with: &Entry,
        kept: &impl Fn(&Entry) -> u64,
    ) -> Result<Self, InTheWay> {
        let mut sides = Sides { before: None, behind: None, beside: false };
        if at < leaf.count() {
            let start = leaf.start(at);
            let entry = leaf.slot(at).entry();
            if start.saturating_sub(entry.map_or(0, |entry| kept(&entry))) < with.end {
                return Err(InTheWay::Filled);
            }
            if start == with.end {
                match Mark::of(leaf.datum(at)) {
                    mark if mark.is_claimed() => return Err(InTheWay::Slot(at)),
                    mark if mark.is_hole() => {}
                    _ => sides.behind = Some(leaf.end(at)),
                }
            }
        }
        if at > 0 && leaf.end(at - 1) == with.start {
            match Mark::of(leaf.datum(at - 1)) {
                mark if mark.is_claimed() => return Err(InTheWay::Slot(at - 1)),
                mark if mark.is_hole() => {}
                _ => (sides.before, sides.beside) = (Some(leaf.start(at - 1)), true),
            }
        }
        Ok(sides)
    }

    /// Claims them, but for one in another leaf.
    #[inline(always)]
    fn claim<const SLOTS: usize>(&self, leaf: &Node<SLOTS>, at: usize) {
        if self.beside {
            leaf.set_value(at - 1, claimed(leaf.datum(at - 1), 0));
        }
        if self.behind.is_some() {
            leaf.set_value(at, claimed(leaf.datum(at), 0));
        }
    }

    /// The hole with what touches it.
    #[inline(always)]
    fn around(&self, hole: &Entry) -> (u64, u64) {
        (self.before.unwrap_or(hole.start), self.behind.unwrap_or(hole.end))
    }
}
