//! Tests of concurrent claim writers on real threads, together with readers. The tests check that no thread
//! changes entries that another writer has claimed, that no entry is lost, and that the map is correct when
//! all writers have finished.
//!
//! Each address has a cell with the value that is mapped there, and a cell with the writer that has claimed
//! it. Only the writer that has claimed a range writes the cells of the range, so every disagreement between
//! the map and the cells is an error. A new operation of a claim writer becomes a method of [`Task`] and a
//! case of `Task::run`. The tests after `concurrent_tasks_in_wide_nodes` use no random changes: each arranges
//! one situation.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use freehold_range::{
    ClaimError, ClaimWriter, Direction, Entry, FANOUT, GapRequest, Lookup, MARKS, PERMANENT, RESERVED,
    RangeMap, WriteSet,
};
use freehold_sync::Host;
use freehold_sync::testing::StdHost;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

use crate::support::model::entry;

/// Number of addresses.
const SPACE: u64 = 640;

/// Distance between two addresses that are always mapped.
const FIXED: u64 = 64;

/// The map, and the two cells of each address: the value that is mapped there, and the writer that claimed
/// it.
struct World<const SLOTS: usize> {
    map: RangeMap<StdHost, SLOTS>,
    mapped: Vec<AtomicU64>,
    claimed: Vec<AtomicU64>,
    taken: AtomicU64,
}

/// One writer, whose changes model those of an address space.
struct Task<'w, const SLOTS: usize> {
    world: &'w World<SLOTS>,
    writer: ClaimWriter<'w, StdHost, SLOTS>,
    name: u64,
    next: u64,
    random: Pcg64Mcg,
}

impl<const SLOTS: usize> World<SLOTS> {
    fn new() -> Self {
        let cells = || (0..SPACE).map(|_| AtomicU64::new(0)).collect();
        let world =
            World { map: RangeMap::new(), mapped: cells(), claimed: cells(), taken: AtomicU64::new(0) };
        // SAFETY: this is the only writer.
        let mut writer = unsafe { world.map.exclusive_writer() };
        for at in (0..SPACE).step_by(FIXED as usize) {
            writer.preallocate(1).unwrap();
            writer.replace(at, at + 1, &[entry(at, at + 1, 1)]);
            world.mapped[at as usize].store(1 << 6, Relaxed);
        }
        world
    }

    fn task<'w>(&'w self, name: u64, write_set: &'w WriteSet<SLOTS>) -> Task<'w, SLOTS> {
        // SAFETY: only the claim writers of tasks exist until all tasks have finished.
        let writer = unsafe { self.map.claim_writer(write_set) };
        Task {
            world: self,
            writer,
            name,
            next: name << 32,
            random: Pcg64Mcg::new(u128::from(name) << 64 | 77),
        }
    }

    /// Checks the map against the cells while no writer exists.
    fn check(&self) {
        // SAFETY: all tasks have finished.
        let reader = unsafe { self.map.reader() };
        reader.check();
        for entry in reader.iter() {
            assert_eq!(entry.value.get() & MARKS, 0, "{entry:?} is still claimed");
        }
        for at in 0..SPACE {
            let value = reader.find(at).map_or(0, |entry| entry.value.get());
            assert_eq!(value, self.mapped[at as usize].load(Relaxed), "at {at}");
            assert_eq!(self.claimed[at as usize].load(Relaxed), 0, "at {at}");
        }
        for len in [1, 2, 5, 20] {
            let wanted = |at: &u64| (*at..at + len).all(|at| self.mapped[at as usize].load(Relaxed) == 0);
            let lowest = (0..=SPACE - len).find(wanted);
            let request = GapRequest { len, align: 1, low: 0, high: SPACE, direction: Direction::BottomUp };
            assert_eq!(reader.gap(&request, |_| 0), lowest);
            let highest = (0..=SPACE - len).rev().find(wanted);
            let request = GapRequest { direction: Direction::TopDown, ..request };
            assert_eq!(reader.gap(&request, |_| 0), highest);
        }
        reader.check();
    }
}

impl<const SLOTS: usize> Task<'_, SLOTS> {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn value(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Records that this task has claimed the range.
    fn acquires(&self, start: u64, end: u64) {
        for at in start..end {
            let before = self.world.claimed[at as usize].swap(self.name, Relaxed);
            assert_eq!(before, 0, "{at} was claimed twice");
        }
    }

    fn releases(&self, start: u64, end: u64) {
        for at in start..end {
            self.world.claimed[at as usize].store(0, Relaxed);
        }
    }

    fn replace(&self, start: u64, end: u64, with: &[Entry]) {
        self.writer.replace(start, end, with);
        for at in start..end {
            let found = with.iter().find(|entry| entry.start <= at && at < entry.end);
            let value = found.map_or(0, |entry| entry.value.get());
            self.world.mapped[at as usize].store(if value & RESERVED == 0 { value } else { 0 }, Relaxed);
        }
    }

    fn new_entry(&mut self, start: u64, end: u64) -> Entry {
        let value = self.value();
        entry(start, end, value)
    }

    /// Returns the claimed entries. Asserts that they agree with the cells.
    fn entries(&self) -> Vec<Entry> {
        let (from, to) = self.writer.claimed_range();
        let mut found = Vec::new();
        let mut at = from;
        while at < to {
            let entry = self.writer.next(at);
            let start = entry.map_or(to, |entry| entry.start);
            for at in at..start {
                assert_eq!(self.world.mapped[at as usize].load(Relaxed), 0, "at {at}");
            }
            let Some(entry) = entry else { break };
            assert!(entry.end <= to, "{entry:?} reaches out of {from}..{to}");
            for at in entry.start..entry.end {
                assert_eq!(self.world.mapped[at as usize].load(Relaxed), entry.value.get(), "at {at}");
            }
            at = entry.end;
            found.push(entry);
        }
        found
    }

    /// Ends the claim, sometimes with a callback for an address of the range. If the address is free, asserts
    /// that the callback gets the hole that contains the address, before another writer inserts an entry
    /// there.
    fn publish(&mut self) {
        let (from, to) = self.writer.claimed_range();
        self.releases(from, to);
        let at = from + self.below(to - from);
        let (is_free, mut holes) = (self.writer.find(at).is_none(), 0);
        let mut free = |start: u64, end: u64| {
            assert!(start <= at && at < end, "{at} is not in {start}..{end}");
            holes += 1;
        };
        match at.is_multiple_of(2) {
            true => self.writer.publish(None),
            false => {
                self.writer.publish(Some((at, &mut free)));
                assert_eq!(holes, u32::from(is_free), "at {at} of {from}..{to}");
            }
        }
        assert_eq!(self.writer.claimed_range(), (0, 0));
    }

    fn refused(&self, why: ClaimError) {
        assert_ne!(why, ClaimError::NoMemory);
        if why == ClaimError::Contended {
            self.world.taken.fetch_add(1, Relaxed);
        }
    }

    /// Maps an entry in a hole, and sometimes merges it with the entries that touch the hole.
    fn map(&mut self) {
        let len = 1 + self.below(6);
        let low = self.below(SPACE - len);
        let direction = if self.below(2) == 0 { Direction::TopDown } else { Direction::BottomUp };
        let request = GapRequest { len, align: 1, low, high: SPACE, direction };
        let Some(start) = self.writer.gap(&request, |_| 0) else { return };
        let end = start + len;
        if let Err(why) = self.writer.claim_hole(start, end, |_| 0) {
            return self.refused(why);
        }
        let (from, to) = self.writer.claimed_range();
        self.acquires(from, to);
        self.entries();
        if self.below(8) > 0 {
            let merges = self.below(2) == 0;
            let (start, end) = if merges { (from, to) } else { (start, end) };
            let new = self.new_entry(start, end);
            self.replace(start, end, &[new]);
            self.entries();
        }
        self.publish();
    }

    /// Changes the entries of a range.
    fn change(&mut self) {
        let start = self.below(SPACE - 12);
        let end = start + 1 + self.below(12);
        let touching = self.below(2) == 0;
        let cuts = self.below(2) == 0;
        if let Err(why) = self.writer.claim(start, end, touching, cuts) {
            return self.refused(why);
        }
        let (from, to) = self.writer.claimed_range();
        if from == to {
            assert!(start.next_multiple_of(FIXED) >= end, "{start}..{end} is not empty");
            return;
        }
        self.acquires(from, to);
        let entries = self.entries();
        match self.below(7) {
            0 => {
                let one = self.new_entry(from, to);
                self.replace(from, to, &[one]);
            }
            1 | 2 if cuts => {
                self.cut_at(end);
                self.cut_at(start);
                // Sometimes remove the part between the cuts, unless it contains an address that is always
                // mapped.
                let (start, end) = (start.max(from), end.min(to));
                if start < end && start.next_multiple_of(FIXED) >= end && self.below(2) == 0 {
                    self.replace(start, end, &[]);
                }
            }
            // Remove everything except the entries that are always mapped.
            3 => self.unmap(from, to, &entries),
            4 if from % FIXED > 0 && from / FIXED == (to - 1) / FIXED => {
                self.replace(from, to, &[Entry { value: closing(), ..entry(from, to, 1) }]);
                self.publish();
                let mut holes = 0;
                let mut free = |start: u64, end: u64| {
                    assert!(start <= from && to <= end, "{from}..{to} is not in {start}..{end}");
                    holes += 1;
                };
                self.writer.remove_reservation(from, to, Some((from, &mut free)));
                assert_eq!(holes, 1, "{from} is not in a hole");
                return;
            }
            5 => {}
            _ => {
                for entry in entries {
                    let new = self.new_entry(entry.start, entry.end);
                    self.replace(entry.start, entry.end, &[new]);
                }
            }
        }
        self.entries();
        self.publish();
    }

    fn cut_at(&mut self, at: u64) {
        let Some(found) = self.writer.find(at).filter(|found| found.start < at) else { return };
        let with = [self.new_entry(found.start, at), self.new_entry(at, found.end)];
        self.replace(found.start, found.end, &with);
    }

    fn unmap(&mut self, from: u64, to: u64, entries: &[Entry]) {
        if from.next_multiple_of(FIXED) >= to {
            return self.replace(from, to, &[]);
        }
        for entry in entries {
            if entry.start.next_multiple_of(FIXED) >= entry.end {
                self.replace(entry.start, entry.end, &[]);
            }
        }
    }

    /// Moves the entries of a range to a hole of the same size elsewhere, if there is one.
    fn relocate(&mut self) {
        let start = self.below(SPACE - 6);
        let source = start..start + 1 + self.below(6);
        let touching = self.below(2) == 0;
        if let Err(why) = self.writer.claim(source.start, source.end, touching, true) {
            return self.refused(why);
        }
        let (from, to) = self.writer.claimed_range();
        if from == to {
            return;
        }
        self.acquires(from, to);
        let len = 1 + self.below(4);
        let direction = if self.below(2) == 0 { Direction::TopDown } else { Direction::BottomUp };
        let (low, high) = [(0, from), (to, SPACE), (0, SPACE)][self.below(3) as usize];
        let target = self.writer.gap(&GapRequest { len, align: 1, low, high, direction }, |_| 0);
        if let Some(at) = target {
            match self.writer.claim_additional_hole(at, at + len, |_| 0) {
                Ok(()) => self.put_additional(at..at + len, from..to, source),
                Err(why) => self.refused(why),
            }
        }
        self.entries();
        self.publish();
    }

    /// Fills the target and removes the source. Sometimes merges the new entry with an entry that touches the
    /// target and is not in the first claim.
    fn put_additional(&mut self, target: Range<u64>, first: Range<u64>, source: Range<u64>) {
        let (prev, next) = self.writer.around(target.start, target.end);
        let prev = prev.filter(|prev| prev.end == target.start && !first.contains(&prev.start));
        let next = next.filter(|next| next.start == target.end && !first.contains(&next.start));
        let from = prev.map_or(target.start, |prev| prev.start);
        let to = next.map_or(target.end, |next| next.end);
        self.acquires(from, to);
        let with = match self.below(3) {
            0 => from..target.end,
            1 => target.start..to,
            _ => target,
        };
        let new = self.new_entry(with.start, with.end);
        self.replace(new.start, new.end, &[new]);
        let (start, end) = (source.start.max(first.start), source.end.min(first.end));
        if start < end && start.next_multiple_of(FIXED) >= end {
            self.cut_at(end);
            self.cut_at(start);
            self.replace(start, end, &[]);
        }
        self.releases(from, to);
    }

    fn run(&mut self, rounds: u64) {
        for _ in 0..rounds {
            match self.below(32) {
                0 => {
                    let at = self.below(SPACE);
                    self.writer.split_leaf_at(at);
                }
                1..5 => self.relocate(),
                5..18 => self.map(),
                _ => self.change(),
            }
            self.writer.had_waiters();
        }
    }
}

fn closing() -> std::num::NonZeroU64 {
    std::num::NonZeroU64::new(RESERVED).unwrap()
}

fn read<const SLOTS: usize>(world: &World<SLOTS>, done: &AtomicBool) {
    let mut random = Pcg64Mcg::new(0xcafe);
    let mut found = 0;
    while !done.load(Relaxed) || found < 1000 {
        let rcu = StdHost::rcu_read();
        let at = random.next_u64() % (SPACE / FIXED) * FIXED;
        match world.map.lookup(&rcu, at) {
            Lookup::Found(entry) => {
                assert!(
                    entry.start <= at && at < entry.end && entry.value.get() & RESERVED == 0,
                    "{entry:?}"
                );
                found += 1;
            }
            Lookup::Hole => panic!("{at} is always mapped"),
            Lookup::Contended => {}
        }
    }
}

fn run_concurrently<const SLOTS: usize>(tasks: u64, rounds: u64) {
    let world = World::<SLOTS>::new();
    for round in 0..4 {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(&world, &done));
            let all: Vec<_> = (1..=tasks)
                .map(|name| {
                    let world = &world;
                    scope.spawn(move || world.task(name + round * tasks, &WriteSet::new()).run(rounds))
                })
                .collect();
            all.into_iter().for_each(|task| task.join().unwrap());
            done.store(true, Relaxed);
            reader.join().unwrap();
        });
        world.check();
    }
    StdHost::rcu_barrier();
}

#[test]
fn one_task_in_narrow_nodes() {
    run_concurrently::<4>(1, 20_000);
}

#[test]
fn concurrent_tasks_in_narrow_nodes() {
    run_concurrently::<4>(4, 15_000);
}

#[test]
fn concurrent_tasks_in_wide_nodes() {
    run_concurrently::<FANOUT>(4, 15_000);
}

/// Another writer fills the leaf during the claim, so the leaf has to be split.
#[test]
fn promised_slots_are_kept() {
    let map = of_tens::<4>([0, 20]);
    let write_sets = [WriteSet::new(), WriteSet::new()];
    // SAFETY: only these two writers exist.
    let (one, two) = unsafe { (map.claim_writer(&write_sets[0]), map.claim_writer(&write_sets[1])) };
    assert_eq!(one.claim(22, 25, false, true), Ok(()));
    assert_eq!(one.claimed_range(), (20, 30));
    two.claim_hole(12, 14, |_| 0).unwrap();
    two.publish(None);
    two.claim_hole(15, 17, |_| 0).unwrap();
    one.replace(20, 30, &[(20, 22), (22, 25), (25, 30)].map(|(start, end)| entry(start, end, start)));
    one.publish(None);
    two.publish(None);
    // SAFETY: both writers have finished.
    let reader = unsafe { map.reader() };
    reader.check();
    assert_eq!(reader.len(), 4);
}

/// The map is one leaf, the root. A claim there has to split the root, and all entries move during the split.
#[test]
fn the_only_leaf_is_claimed_during_changes_in_it() {
    let starts = (0..FANOUT as u64 - 1).map(|at| at * 20);
    let last = starts.clone().next_back().expect("a slot");
    for _ in 0..2000 {
        let map = of_tens::<FANOUT>(starts.clone());
        let begun = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let write_set = WriteSet::new();
                // SAFETY: only claim writers exist, here and below.
                let writer = unsafe { map.claim_writer(&write_set) };
                begun.wait();
                for _ in 0..50 {
                    // The insertion is refused only while the entry is claimed.
                    let _ = writer.insert_unclaimed(&entry(12, 14, 9), |_| 0, |_| false, |_| false);
                    if writer.claim(12, 14, false, false).is_ok() {
                        let (from, to) = writer.claimed_range();
                        writer.replace(from, to, &[]);
                        writer.publish(None);
                    }
                }
            });
            let write_set = WriteSet::new();
            // SAFETY: only claim writers exist.
            let writer = unsafe { map.claim_writer(&write_set) };
            begun.wait();
            for _ in 0..20 {
                assert_eq!(writer.claim(last + 2, last + 4, false, true), Ok(()));
                assert_eq!(writer.claimed_range(), (last, last + 10));
                writer.publish(None);
            }
        });
    }
}

/// Returns a map with entries of 10 addresses each.
fn of_tens<const SLOTS: usize>(starts: impl IntoIterator<Item = u64>) -> Box<RangeMap<StdHost, SLOTS>> {
    let map = Box::new(RangeMap::new());
    // SAFETY: this is the only writer.
    let mut writer = unsafe { map.exclusive_writer() };
    for at in starts {
        writer.preallocate(1).unwrap();
        writer.replace(at, at + 10, &[entry(at, at + 10, 1)]);
    }
    map
}

/// No task waits for the end of a permanent reservation. A change there needs the exclusive writer.
#[test]
fn permanent_reservations_need_the_exclusive_writer() {
    let map = of_tens::<4>([0, 20]);
    let write_set = WriteSet::new();
    // SAFETY: this is the only writer until it is dropped.
    let writer = unsafe { map.claim_writer(&write_set) };
    writer.claim_hole(12, 18, |_| 0).unwrap();
    writer.replace(12, 18, &[Entry { value: closing() | PERMANENT, ..entry(12, 18, 1) }]);
    writer.publish(None);
    assert_eq!(writer.claim(15, 16, false, false), Err(ClaimError::NeedsExclusive));
    assert_eq!(writer.claim(5, 25, false, true), Err(ClaimError::NeedsExclusive));
    assert_eq!(writer.claim_hole(10, 14, |_| 0), Err(ClaimError::NotAHole));
    // An entry that touches the reservation is claimed without the reservation.
    assert_eq!(writer.claim(20, 22, true, false), Ok(()));
    assert_eq!(writer.claimed_range(), (20, 30));
    writer.publish(None);
    assert!(!writer.had_waiters());
    // SAFETY: the claim writer is not used again.
    let mut alone = unsafe { map.exclusive_writer() };
    alone.preallocate(1).unwrap();
    alone.replace(12, 18, &[]);
    // SAFETY: no thread writes.
    let reader = unsafe { map.reader() };
    reader.check();
    assert_eq!(reader.iter().map(|it| it.start).collect::<Vec<_>>(), [0, 20]);
}

/// A leaf can be split at any key, and no entry is lost. A leaf then ends there, so a second split changes
/// nothing.
#[test]
fn a_leaf_is_split_at_any_key() {
    for len in 1..=20 {
        for at in 0..=len {
            let map = of_tens::<4>((0..len).map(|at| at * 20));
            // SAFETY: the map has no writer yet.
            let nodes = unsafe { map.reader() }.node_count();
            let write_set = WriteSet::new();
            // SAFETY: this is the only writer until it is dropped.
            let writer = unsafe { map.claim_writer(&write_set) };
            writer.split_leaf_at(at * 20);
            drop(write_set);
            // SAFETY: the writer was dropped.
            let reader = unsafe { map.reader() };
            reader.check();
            assert_eq!(reader.iter().map(|it| it.start / 20).collect::<Vec<_>>(), Vec::from_iter(0..len));
            let inside = 0 < at && at < len;
            assert!(inside || reader.node_count() == nodes, "a split at {at} of {len} changed the leaves");
            let again = reader.node_count();
            let write_set = WriteSet::new();
            // SAFETY: no reader exists during the split.
            unsafe { map.claim_writer(&write_set) }.split_leaf_at(at * 20);
            // SAFETY: the writer was dropped.
            assert_eq!(unsafe { map.reader() }.node_count(), again, "split twice at {at} of {len}");
        }
    }
}
