//! The subjects and workloads of both benches of the range map.
//!
//! `main.rs` measures times and `instructions.rs` counts instructions of the same operations
//! ([`operations`]). Subjects: the range map of the engine ([`Freehold`], the crate `freehold-range`), a
//! `BTreeMap` ([`Std`]), and a `BTreeMap` behind a lock ([`Locked`]). Every subject starts with the same
//! entries, and each operation restores the set, so a workload can repeat it any number of times. A new
//! operation is a method of [`Workload`] and an entry of [`operations`]; both benches then measure it.
#![allow(dead_code, reason = "each bench uses only a part")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::num::NonZeroU64;
use std::ptr::NonNull;

use freehold_range::{Direction, Entry, GapRequest, Lookup, RangeMap};
use freehold_sync::atomic::AtomicU32;
use freehold_sync::{Host, Killed, LockContext, RcuHead};
use parking_lot::RwLock;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

/// A host for one thread. No other thread reads, so every grace period ends at once.
pub struct OneThread;

// SAFETY: used only by benches with one thread, which defers nothing inside a read section.
unsafe impl Host for OneThread {
    const MAX_CPUS: usize = 1;
    type RcuGuard = ();
    fn wait(_: &AtomicU32, _: u32) {}
    fn wait_killable(_: &AtomicU32, _: u32) -> Result<(), Killed> {
        Ok(())
    }
    fn wake_one(_: &AtomicU32) {}
    fn wake_all(_: &AtomicU32) {}
    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        f(0)
    }
    fn now_ns() -> u64 {
        0
    }
    fn relax() {}
    fn lock_context<R>(_: impl FnOnce(&LockContext) -> R) -> Option<R> {
        None
    }
    fn rcu_read() {}
    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the only thread is not in a read section, by the note at the implementation.
        unsafe { f(head) }
    }
    fn rcu_barrier() {}
}

/// Numbers of entries that are measured.
pub const SIZES: [u64; 3] = [10, 1_000, 65_530];
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Entries are `STRIDE` apart below `TOP`: six pages, then a hole of four pages.
const STRIDE: u64 = 10 * PAGE;
/// Bytes of an entry.
const LEN: u64 = 6 * PAGE;
/// End of the address range: the user addresses of x86-64.
const TOP: u64 = 0x7fff_ffff_f000;

/// The subject of a measurement: a set of ranges that one thread uses.
pub trait Subject: Sized {
    /// The name in reports.
    const NAME: &'static str;
    /// Creates an empty set.
    fn new() -> Self;
    /// Returns the entry that contains `key`.
    fn lookup(&self, key: u64) -> Option<Entry>;
    /// Removes the entries from `start` to `end`, and inserts the entries `with`.
    fn replace(&mut self, start: u64, end: u64, with: &[Entry]);
    /// Returns the highest free place for `len` bytes.
    fn gap(&self, len: u64) -> Option<u64>;
}

/// The range map of the engine, with `SLOTS` entries in a node.
pub struct Freehold<const SLOTS: usize>(RangeMap<OneThread, SLOTS>);

impl<const SLOTS: usize> Subject for Freehold<SLOTS> {
    const NAME: &'static str = "freehold";
    fn new() -> Self {
        Self(RangeMap::new())
    }
    #[inline]
    fn lookup(&self, key: u64) -> Option<Entry> {
        match self.0.lookup(&(), key) {
            Lookup::Found(entry) => Some(entry),
            _ => None,
        }
    }
    #[inline]
    fn replace(&mut self, start: u64, end: u64, with: &[Entry]) {
        // SAFETY: `self` is borrowed exclusively.
        let mut writer = unsafe { self.0.exclusive_writer() };
        writer.preallocate(1).unwrap();
        writer.replace(start, end, with);
    }
    #[inline]
    fn gap(&self, len: u64) -> Option<u64> {
        // SAFETY: no writer exists while `self` is borrowed.
        let reader = unsafe { self.0.reader() };
        let request = GapRequest { len, align: PAGE, low: PAGE, high: TOP, direction: Direction::TopDown };
        reader.gap(&request, |_| 0)
    }
}

/// A `BTreeMap` of entries by start. Without an augmented tree, the gap search has to walk down from the top
/// until a hole is large enough.
pub struct Std(BTreeMap<u64, Entry>);

impl Subject for Std {
    const NAME: &'static str = "BTreeMap";
    fn new() -> Self {
        Self(BTreeMap::new())
    }
    #[inline]
    fn lookup(&self, key: u64) -> Option<Entry> {
        self.0.range(..=key).next_back().map(|(_, entry)| *entry).filter(|entry| entry.end > key)
    }
    #[inline]
    fn replace(&mut self, start: u64, end: u64, with: &[Entry]) {
        while let Some((&found, _)) = self.0.range(start..end).next() {
            self.0.remove(&found);
        }
        for entry in with {
            self.0.insert(entry.start, *entry);
        }
    }
    #[inline]
    fn gap(&self, len: u64) -> Option<u64> {
        let mut high = TOP;
        for entry in self.0.values().rev() {
            if high - entry.end >= len {
                return Some(high - len);
            }
            high = entry.start;
        }
        high.checked_sub(len)
    }
}

/// [`Std`] behind a reader/writer lock.
pub struct Locked(RwLock<Std>);

impl Subject for Locked {
    const NAME: &'static str = "BTreeMap in RwLock";
    fn new() -> Self {
        Self(RwLock::new(Std::new()))
    }
    #[inline]
    fn lookup(&self, key: u64) -> Option<Entry> {
        self.0.read().lookup(key)
    }
    #[inline]
    fn replace(&mut self, start: u64, end: u64, with: &[Entry]) {
        self.0.write().replace(start, end, with);
    }
    #[inline]
    fn gap(&self, len: u64) -> Option<u64> {
        self.0.read().gap(len)
    }
}

/// Returns an entry; its value has no meaning here.
pub fn entry(start: u64, end: u64) -> Entry {
    Entry { start, end, value: NonZeroU64::MIN }
}

/// A subject with `size` entries, which were added in random order, and operations on it at random places.
pub struct Workload<S> {
    subject: S,
    size: u64,
    random: Pcg64Mcg,
}

impl<S: Subject> Workload<S> {
    /// Creates a subject and adds the entries. The order is the same in every process.
    pub fn new(size: u64) -> Self {
        let mut random = Pcg64Mcg::new(0xcafe_f00d_d15e_a5e5);
        let mut order: Vec<u64> = (0..size).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, (random.next_u64() % (at as u64 + 1)) as usize);
        }
        let mut subject = S::new();
        for at in order {
            let start = start_of(at);
            subject.replace(start, start + LEN, &[entry(start, start + LEN)]);
        }
        Self { subject, size, random }
    }

    /// Returns the start of a random entry.
    #[inline]
    fn pick(&mut self) -> u64 {
        let at = (self.random.next_u64() as u128 * self.size as u128) >> 64;
        start_of(at as u64)
    }

    /// Picks a random place. All other operations include this cost.
    #[inline]
    pub fn nothing(&mut self) {
        black_box(self.pick());
    }

    /// Looks up an address inside a random entry.
    #[inline]
    pub fn lookup(&mut self) {
        let key = self.pick() + 2 * PAGE;
        black_box(self.subject.lookup(key));
    }

    /// Inserts one entry into a random hole and removes it.
    #[inline]
    pub fn insert_remove(&mut self) {
        let start = self.pick() + LEN + PAGE;
        let end = start + 2 * PAGE;
        self.subject.replace(start, end, &[entry(start, end)]);
        self.subject.replace(start, end, &[]);
    }

    /// Fills the highest gap for two pages and empties it.
    #[inline]
    pub fn map_unmap(&mut self) {
        self.map_unmap_len(2 * PAGE);
    }

    /// Maps and unmaps a range whose length fits only below all entries.
    #[inline]
    pub fn map_unmap_far(&mut self) {
        self.map_unmap_len(8 * PAGE);
    }

    /// Fills the highest gap for `len` bytes and empties it.
    #[inline]
    fn map_unmap_len(&mut self, len: u64) {
        let start = self.subject.gap(len).unwrap();
        let end = start + len;
        self.subject.replace(start, end, &[entry(start, end)]);
        self.subject.replace(start, end, &[]);
    }

    /// Searches for the highest gap of two pages.
    #[inline]
    pub fn gap(&mut self) {
        black_box(self.subject.gap(black_box(2 * PAGE)));
    }

    /// Searches for a gap whose length fits only below all entries. An unaugmented tree has to read every
    /// entry.
    #[inline]
    pub fn gap_far(&mut self) {
        black_box(self.subject.gap(black_box(8 * PAGE)));
    }

    /// Splits one entry into three and merges them.
    #[inline]
    pub fn split_merge(&mut self) {
        let start = self.pick();
        let (one, two, end) = (start + 2 * PAGE, start + 4 * PAGE, start + LEN);
        let parts = [entry(start, one), entry(one, two), entry(two, end)];
        self.subject.replace(start, end, &parts);
        self.subject.replace(start, end, &[entry(start, end)]);
    }
}

/// Returns the start of an entry. The topmost entry ends one hole below `TOP`.
fn start_of(at: u64) -> u64 {
    TOP - (at + 1) * STRIDE
}

/// An operation of a workload.
pub type Step<S> = fn(&mut Workload<S>);

/// Returns the operations by name.
pub fn operations<S: Subject>() -> [(&'static str, Step<S>); 7] {
    [
        ("lookup", Workload::lookup),
        ("insert_remove", Workload::insert_remove),
        ("map_unmap", Workload::map_unmap),
        ("map_unmap_far", Workload::map_unmap_far),
        ("gap", Workload::gap),
        ("gap_far", Workload::gap_far),
        ("split_merge", Workload::split_merge),
    ]
}
