//! Small maps for the exhaustive tests of claims in `mod.rs`, and the model that says which claims succeed.
//!
//! A [`Shape`] describes a map with four entries, the *scene*. The entries may touch, and lie in one or
//! several leaves. One of the entries may be claimed by another writer or may be a reservation.
//! [`Shape::all`] returns every shape. [`Shape::act`] builds the map and calls a test with a [`Stage`]: the
//! map, the writer under test, the other writer, and the items that the map should contain.
//!
//! - [`Stage::check`] compares the map with the items: entries, claims, and the gap below each entry.
//! - [`Stage::claim_of`] and [`Stage::hole_claim_of`] are the model of claims: they say which entries a claim
//!   gets, or why it is refused. They use only the list of items, no code of the map.
//! - A test that publishes a change makes the same change with [`Stage::put`] before it calls `check`.
//!
//! Addresses are small numbers ([`BASE`] to [`END`]). An entry is two bytes long, so that a range can end
//! inside it. Values are made by `entry` (`support/model.rs`), which leaves the bits of claims clear. A new
//! state of an entry becomes a variant of [`Kind`], which `all`, `act` and both functions of the model must
//! handle.

use std::num::NonZeroU64;

use freehold_range::{
    CLAIMED, ClaimWriter, Entry, GapRequest, MARKS, PERMANENT, RESERVED, RangeMap, WriteSet,
};
use freehold_range::{ClaimError, Direction, Lookup};
use freehold_sync::Host;
use freehold_sync::testing::StdHost;

use crate::support::model::entry;

/// The map under test. Its nodes have four slots, so that few entries fill a leaf.
pub type Map = RangeMap<StdHost, 4>;
/// A claim writer of [`Map`].
pub type Writer<'a> = ClaimWriter<'a, StdHost, 4>;

/// Number of entries of a scene.
pub const ENTRIES: usize = 4;
/// Size in bytes of an entry, and of a hole between two entries.
pub const LEN: u64 = 2;
/// The start of the first entry. The surrounding entries lie below and above the scene.
pub const BASE: u64 = 100;
/// The end of the addresses that a scene may use.
pub const END: u64 = BASE + 2 * LEN * ENTRIES as u64;

/// The state of one entry of a scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The entry is not claimed.
    Free,
    /// The entry is claimed by the other writer, which will cut it in two.
    Taken,
    /// The entry is an unclaimed reservation.
    Reserved,
    /// The entry is a permanent reservation.
    Permanent,
}

/// The layout of one map.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bit `n` is set if a hole lies between entries `n` and `n + 1`.
    pub holes: usize,
    /// Bit `n` is set if a leaf ends with entry `n`.
    pub cuts: usize,
    /// One entry that is not free, and its kind.
    pub special: Option<(usize, Kind)>,
    /// Numbers of entries below and above the scene, each in a leaf of its own. With these entries, the tree
    /// has three levels.
    pub around: (u64, u64),
}

impl Shape {
    /// Returns all shapes.
    pub fn all() -> impl Iterator<Item = Shape> {
        let kinds = [Kind::Taken, Kind::Reserved, Kind::Permanent];
        let specials = (0..ENTRIES).flat_map(move |at| kinds.map(|kind| Some((at, kind))));
        let specials: Vec<_> = [None].into_iter().chain(specials).collect();
        (0..1 << (ENTRIES - 1)).flat_map(move |holes| {
            let specials = specials.clone();
            (0..1 << (ENTRIES - 1)).flat_map(move |cuts| {
                specials.clone().into_iter().flat_map(move |special| {
                    [(0, 0), (3, 2)].map(|around| Shape { holes, cuts, special, around })
                })
            })
        })
    }

    /// Returns the entries of the scene, ascending.
    fn entries(&self) -> [Entry; ENTRIES] {
        let mut at = BASE;
        core::array::from_fn(|n| {
            let start = at;
            at += if self.holes & 1 << n != 0 { 2 * LEN } else { LEN };
            entry(start, start + LEN, 1 + n as u64)
        })
    }

    /// Creates the map, and calls `act` with the map, a writer that has claimed nothing, and the items of the
    /// scene. Afterwards the other writer cuts its claimed entry in two. Its claim has reserved the slot for
    /// the second half.
    pub fn act(&self, act: impl FnOnce(&mut Stage<'_>)) {
        let map = Box::new(Map::new());
        let entries = self.entries();
        let below = (0..self.around.0).map(|n| entry(n * 10, n * 10 + LEN, 50 + n));
        let above = (0..self.around.1).map(|n| entry(END + 20 + n * 10, END + 20 + n * 10 + LEN, 60 + n));
        let outside: Vec<_> = below.chain(above).collect();
        {
            // SAFETY: this is the only writer.
            let mut alone = unsafe { map.exclusive_writer() };
            for new in outside.iter().chain(&entries) {
                alone.preallocate(1).unwrap();
                alone.replace(new.start, new.end, &[*new]);
            }
        }
        let (mine, other) = (WriteSet::new(), WriteSet::new());
        // SAFETY: only these two writers exist.
        let (writer, second) = unsafe { (map.claim_writer(&mine), map.claim_writer(&other)) };
        for it in &outside {
            second.split_leaf_at(if it.start < BASE { it.end } else { it.start });
        }
        for n in (0..ENTRIES).filter(|n| self.cuts & 1 << n != 0) {
            second.split_leaf_at(entries[n].end);
        }
        let mut items: Vec<Item> = entries.map(|entry| Item { entry, kind: Kind::Free }).to_vec();
        if let Some((at, kind)) = self.special {
            let Entry { start, end, .. } = entries[at];
            second.claim(start + 1, end, false, true).unwrap();
            items[at].kind = kind;
            let permanent = if kind == Kind::Permanent { PERMANENT } else { 0 };
            let value = NonZeroU64::new(RESERVED | permanent).unwrap();
            if kind != Kind::Taken {
                items[at].entry.value = value;
                second.replace(start, end, &[Entry { start, end, value }]);
                second.publish(None);
            }
        }
        let mut stage = Stage { map: &map, writer, other: second, items, outside };
        act(&mut stage);
        if let Some(Entry { start, end, .. }) = stage.taken() {
            let halves = [entry(start, start + 1, 80), entry(start + 1, end, 81)];
            stage.other.replace(start, end, &halves);
            stage.put(start, end, &halves);
        }
        stage.other.publish(None);
        stage.check(&[]);
    }
}

/// An entry of a scene, in its expected state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    pub entry: Entry,
    pub kind: Kind,
}

impl Item {
    /// Returns true if the item is a reservation.
    pub fn is_hole(&self) -> bool {
        matches!(self.kind, Kind::Reserved | Kind::Permanent)
    }
}

/// A map, and the items that it should contain.
pub struct Stage<'m> {
    pub map: &'m Map,
    pub writer: Writer<'m>,
    pub other: Writer<'m>,
    pub items: Vec<Item>,
    outside: Vec<Entry>,
}

impl Stage<'_> {
    /// Asserts that the map holds the items and the surrounding entries. The entries that start at an address
    /// in `claimed`, and those of the other writer, must be claimed.
    #[track_caller]
    pub fn check(&self, claimed: &[u64]) {
        // SAFETY: no writer changes the map now.
        let reader = unsafe { self.map.reader() };
        reader.check();
        let mut expected: Vec<_> = self.items.iter().map(|it| (it.entry, it.kind)).collect();
        expected.extend(self.outside.iter().map(|it| (*it, Kind::Free)));
        expected.sort_by_key(|(it, _)| it.start);
        let of = |(it, kind): &(Entry, Kind)| {
            let is_claimed = claimed.contains(&it.start) || *kind == Kind::Taken;
            (it.start, it.end, it.value.get() & !(MARKS ^ RESERVED), is_claimed)
        };
        let expected: Vec<_> = expected.iter().map(of).collect();
        let value = |it: &Entry| it.value.get();
        let found =
            |it: Entry| (it.start, it.end, value(&it) & !(MARKS ^ RESERVED), value(&it) & CLAIMED != 0);
        assert_eq!(reader.iter().map(found).collect::<Vec<_>>(), expected);
        let mut before = 0;
        for (start, end, ..) in expected {
            if before < start {
                let (len, direction) = (start - before, Direction::TopDown);
                let request = GapRequest { len, align: 1, low: before, high: start, direction };
                assert_eq!(reader.gap(&request, |_| 0), Some(before), "the gap below {start}");
            }
            before = end;
        }
    }

    /// Returns the entry that the other writer has claimed.
    pub fn taken(&self) -> Option<Entry> {
        self.items.iter().find(|it| it.kind == Kind::Taken).map(|it| it.entry)
    }

    /// Asserts that a lookup finds this entry at once.
    #[track_caller]
    pub fn find(&self, entry: Entry) {
        let rcu = StdHost::rcu_read();
        assert_eq!(self.map.try_lookup(&rcu, entry.start), Lookup::Found(entry));
    }

    /// Returns the expected hole that contains `address`.
    pub fn hole(&self, address: u64) -> Option<(u64, u64)> {
        let all = || self.items.iter().map(|it| it.entry).chain(self.outside.iter().copied());
        let is_free = all().all(|it| address < it.start || it.end <= address);
        let before = all().map(|it| it.end).filter(|end| *end <= address).max().unwrap_or(0);
        let behind = all().map(|it| it.start).filter(|start| *start > address).min().unwrap_or(u64::MAX);
        is_free.then_some((before, behind))
    }

    /// Replaces the items inside `[start, end)` by `with`.
    pub fn put(&mut self, start: u64, end: u64, with: &[Entry]) {
        self.items.retain(|it| it.entry.end <= start || end <= it.entry.start);
        self.items.extend(with.iter().map(|&entry| Item { entry, kind: Kind::Free }));
        self.items.sort_by_key(|it| it.entry.start);
    }

    /// Returns the items that overlap `[start, end)`.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(move |it| it.entry.end > start && it.entry.start < end)
    }

    /// Returns the items that a claim of entries takes, or the reason why the claim is refused.
    pub fn claim_of(&self, start: u64, end: u64, touching: bool) -> Result<Vec<Item>, ClaimError> {
        let margin = u64::from(touching);
        let mut taken: Vec<Item> = Vec::new();
        for item in self.within(start - margin, end + margin) {
            let inside = item.entry.end > start && item.entry.start < end;
            match item.kind {
                Kind::Taken => return Err(ClaimError::Contended),
                Kind::Reserved if inside => return Err(ClaimError::Contended),
                Kind::Permanent if inside => return Err(ClaimError::NeedsExclusive),
                Kind::Reserved | Kind::Permanent => {}
                Kind::Free if taken.last().is_some_and(|last| last.entry.end != item.entry.start) => {
                    return Err(ClaimError::NeedsExclusive);
                }
                Kind::Free => taken.push(*item),
            }
        }
        Ok(taken)
    }

    /// Returns the items that a claim of the hole takes (at most one before the hole and one behind it), or
    /// the reason why the claim is refused. The writer already owns the items that start at an address in
    /// `own`.
    pub fn hole_claim_of(
        &self,
        (start, end): (u64, u64),
        kept: impl Fn(&Entry) -> u64,
        own: &[u64],
    ) -> Result<[Option<Item>; 2], ClaimError> {
        let next = self.items.iter().find(|it| it.entry.end > start);
        if next.is_some_and(|next| next.entry.start - kept(&next.entry) < end) {
            return Err(ClaimError::NotAHole);
        }
        let touching = |item: Option<&Item>| match item.map(|it| it.kind) {
            Some(Kind::Taken) => Err(ClaimError::Contended),
            Some(Kind::Free) => Ok(item.filter(|it| !own.contains(&it.entry.start)).copied()),
            _ => Ok(None),
        };
        let behind = touching(next.filter(|next| next.entry.start == end))?;
        let before = touching(self.items.iter().find(|it| it.entry.end == start))?;
        Ok([before, behind])
    }
}
