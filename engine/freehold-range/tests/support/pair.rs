//! The naive map (`model.rs`) and the `RangeMap`, changed together and compared.
//!
//! Only one thread uses a pair, so every access to the map is exclusive. Tests with several threads use maps
//! of their own. A new lookup of the map is compared in `compare_at`, which most tests call.

use freehold_range::{Entry, GapRequest, Lookup, RangeMap};
use freehold_sync::Host;
use freehold_sync::testing::StdHost;

use super::model::{Model, entry};

/// A map with nodes of `SLOTS` slots, and its model. Both have the same entries after each method.
pub struct Pair<const SLOTS: usize> {
    pub map: RangeMap<StdHost, SLOTS>,
    pub model: Model,
}

impl<const SLOTS: usize> Pair<SLOTS> {
    /// Returns an empty map and an empty model.
    pub fn new() -> Self {
        Self { map: RangeMap::new(), model: Model::default() }
    }

    /// Replaces the entries in the range by `with`, and compares all entries of the map and the model. No
    /// entry may reach across an end of the range.
    pub fn replace(&mut self, start: u64, end: u64, with: &[Entry]) {
        // SAFETY: only this thread uses the map.
        let mut writer = unsafe { self.map.exclusive_writer() };
        writer.preallocate(1).unwrap();
        writer.replace(start, end, with);
        writer.check();
        self.model.replace(start, end, with);
        assert!(writer.iter().eq(self.model.entries.values().copied()));
        assert_eq!(writer.len(), self.model.entries.len());
    }

    /// Inserts an entry into a hole. Does not compare the map with the model.
    pub fn insert(&mut self, start: u64, end: u64, value: u64) {
        let with = [entry(start, end, value)];
        // SAFETY: only this thread uses the map.
        let mut writer = unsafe { self.map.exclusive_writer() };
        writer.preallocate(1).unwrap();
        writer.replace(start, end, &with);
        self.model.replace(start, end, &with);
    }

    /// Replaces everything in the range by one entry, as a fixed mapping does. If the value is 0, only
    /// removes the entries in the range.
    pub fn put(&mut self, start: u64, end: u64, value: u64) {
        let (from, to, left, right) = self.model.widen(start, end);
        let new = (value > 0).then(|| entry(start, end, value));
        let with: Vec<Entry> = [left, new, right].into_iter().flatten().collect();
        self.replace(from, to, &with);
    }

    /// Compares all kinds of lookups at `key`: those of a reader, those under RCU, and those of a writer.
    pub fn compare_at(&self, key: u64) {
        // SAFETY: only this thread uses the map.
        let reader = unsafe { self.map.reader() };
        let model = &self.model;
        assert_eq!(reader.find(key), model.find(key));
        assert_eq!(reader.next(key), model.next(key));
        assert_eq!(reader.prev(key), model.prev(key));
        assert_eq!(reader.around(key), (model.prev(key), model.next(key)));
        assert_eq!(reader.iter_from(key).next(), model.next(key));
        let rcu = StdHost::rcu_read();
        let found = |found: Option<Entry>| found.map_or(Lookup::Hole, Lookup::Found);
        assert_eq!(self.map.lookup(&rcu, key), found(model.find(key)));
        assert_eq!(self.map.next(&rcu, key), found(model.next(key)));
        for end in [key, key.saturating_add(1), key.saturating_add(10), u64::MAX] {
            self.compare_writer_at(key, end);
        }
        // SAFETY: only this thread uses the map.
        unsafe { self.map.exclusive_writer() }.check();
    }

    /// Compares the lookups of the exclusive writer, including its search for the neighbours of a range. The
    /// finger may be at any place.
    fn compare_writer_at(&self, key: u64, end: u64) {
        // SAFETY: only this thread uses the map.
        let writer = unsafe { self.map.exclusive_writer() };
        let model = &self.model;
        assert_eq!(writer.around(key, end), (model.prev(key), model.next(end)), "{key}..{end}");
        assert_eq!(writer.find(key), model.find(key));
        assert_eq!(writer.next(key), model.next(key));
        assert_eq!(writer.prev(key), model.prev(key));
    }

    /// Compares the results of a gap search. An entry whose value is divisible by 3 needs `guard` free
    /// addresses below it; the other entries need none.
    pub fn compare_gap(&self, request: &GapRequest, guard: u64) {
        let below = |entry: &Entry| if entry.value.get().is_multiple_of(3) { guard } else { 0 };
        // SAFETY: only this thread uses the map.
        let reader = unsafe { self.map.reader() };
        let model = self.model.gap(request, below);
        assert_eq!(reader.gap(request, below), model, "{request:?}, guard {guard}, {:?}", self.model);
    }

    /// Returns a map with `size` entries of 8 addresses, and holes of 2 addresses between them.
    pub fn of_size(size: u64) -> Self {
        let mut pair = Self::new();
        (0..size).for_each(|at| pair.put(at * 10, at * 10 + 8, at + 1));
        pair
    }

    /// Compares all entries, and the lookups at every third address up to the end of the last entry.
    pub fn compare(&self) {
        // SAFETY: only this thread uses the map.
        let writer = unsafe { self.map.exclusive_writer() };
        writer.check();
        assert!(writer.iter().eq(self.model.entries.values().copied()));
        let end = self.model.entries.values().last().map_or(0, |last| last.end);
        for key in (0..end + 3).step_by(3) {
            self.compare_at(key);
        }
    }
}
