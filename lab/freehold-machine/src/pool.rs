//! A pool of frame numbers: which numbers are taken, and when each number was last freed.
//!
//! A machine has one pool of frames and one of tables (`inner.rs`). The free numbers are in a `Bitmap` under
//! the pool's short lock. In a simulation, and in a machine without oracles, the bitmap has lists per CPU in
//! front of it (`host_sim/frames.rs`, `host_std/lists.rs`). A number is freed in two steps: [`Pool::retire`]
//! records it as free, so that the oracles can check it, and [`Pool::give`] makes it available.
//! `tests/oracles.rs` and `tests/memory.rs` test pools.
//!
//! # The free clock
//!
//! Each pool has a clock that advances with every batch that is freed. A pool also has a record per number,
//! with the value of the clock when the number was last freed. A TLB entry contains the clock's value from
//! before the walk of the entry began. If the number behind the entry is taken and was not freed since the
//! walk, it still has the same owner:
//!
//! | record of a number | meaning |
//! | --- | --- |
//! | `0` | never taken |
//! | `t << 1 \| 1` | taken; last freed at `t` (0: never) |
//! | `t << 1` | free; freed at `t` |

use crate::bitmap::{Bitmap, NotTaken};
use crate::host::{LazyArray, Lists, Lock};
use freehold_pagetable::Pfn;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const TAKEN: u64 = 1;

/// A pool of numbers; see the [module](self).
#[derive(Debug)]
pub(crate) struct Pool {
    /// Name of the objects that have the numbers (frame or table), for messages.
    what: &'static str,
    base: u64,
    len: usize,
    list: Apart<Lock<List>>,
    /// Free lists of the CPUs, which are used before `list`. Only machines in a simulation and machines
    /// without oracles have such lists.
    near: Lists,
    /// Records, indexed by number less `base`. `None` without oracles. The task that takes or frees a number
    /// writes its record.
    records: Option<LazyArray<AtomicU64>>,
    clock: AtomicU64,
}

/// Keeps a value on cache lines of its own. Each batch of frames moves these lines to another thread. The
/// fields next to the value are on other lines, because every walk and every access to a record reads these
/// fields.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

/// The taken numbers, and the counts of the pool.
#[derive(Debug)]
struct List {
    taken: Bitmap,
    counts: PoolCounts,
}

/// Counts of a pool's allocations and frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Count of numbers that were allocated.
    pub allocated: u64,
    /// Count of numbers that were freed.
    pub freed: u64,
    /// Number of requests that were not served in full. Injected failures are not counted.
    pub refused: u64,
    /// Largest number of numbers that were in use at a time, including those in the free lists of CPUs.
    pub peak: u64,
}

impl PoolCounts {
    /// Counts `count` allocated numbers.
    fn add(&mut self, count: u64) {
        self.allocated += count;
        self.peak = self.peak.max(self.allocated - self.freed);
    }
}

/// The reason why the number behind a TLB entry is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    /// The number is not one of this pool.
    Outside,
    /// The number is free now.
    Free,
    /// The number was freed and taken again since the entry was filled.
    Reassigned,
}

impl Pool {
    pub(crate) fn new(what: &'static str, base: u64, len: usize, oracles: bool) -> io::Result<Self> {
        let records = if oracles { Some(LazyArray::new(len, false)?) } else { None };
        let list = List { taken: Bitmap::new(len), counts: PoolCounts::default() };
        Ok(Pool {
            what,
            base,
            len,
            list: Apart(Lock::new(list)),
            near: Lists::new(oracles),
            records,
            clock: AtomicU64::new(0),
        })
    }

    /// Returns the numbers of this pool.
    pub(crate) fn numbers(&self) -> Range<Pfn> {
        Pfn::new(self.base)..Pfn::new(self.base + self.len as u64)
    }

    /// Returns the index of a number, or `None` if the number is not of this pool.
    #[inline]
    pub(crate) fn index(&self, pfn: Pfn) -> Option<usize> {
        let index = pfn.get().wrapping_sub(self.base);
        (index < self.len as u64).then_some(index as usize)
    }

    /// Returns the index of a number of this pool.
    ///
    /// # Panics
    /// Panics if the number is not in this pool. The message contains the number.
    #[inline]
    pub(crate) fn index_of(&self, pfn: Pfn) -> usize {
        match self.index(pfn) {
            Some(index) => index,
            None => self.no_such(pfn),
        }
    }

    /// Returns the index of a number without a check. For a number of another pool, the result is at least
    /// the length of this pool.
    #[inline]
    pub(crate) fn offset(&self, pfn: Pfn) -> usize {
        pfn.get().wrapping_sub(self.base) as usize
    }

    /// Panics: `pfn` is not a number of this pool.
    #[cold]
    pub(crate) fn no_such(&self, pfn: Pfn) -> ! {
        panic!("{pfn:?} is no {} of this machine (a freed table's poison reads like this)", self.what)
    }

    /// Takes the lowest free numbers, at most `out.len()`. Returns how many it took.
    pub(crate) fn take(&self, out: &mut [Pfn]) -> usize {
        let got = self.near.take(out, |out| self.take_lowest(out));
        self.note_taken(out[..got].iter().copied());
        got
    }

    fn take_lowest(&self, out: &mut [Pfn]) -> usize {
        let mut slots = out.iter_mut();
        let mut list = self.list.0.lock();
        let base = self.base;
        let got = list.taken.take(slots.len(), |index| {
            if let Some(slot) = slots.next() {
                *slot = Pfn::new(base + index as u64);
            }
        });
        list.counts.add(got as u64);
        list.counts.refused += u64::from(got < out.len());
        got
    }

    fn note_taken(&self, numbers: impl Iterator<Item = Pfn>) {
        if let Some(records) = &self.records {
            for pfn in numbers {
                // Relaxed here and below: a number has one owner at a time. The lock of the list, or the way
                // in which the engine passes the number on, orders the writes of one owner before the writes
                // of the next owner.
                if let Some(record) = records.get(self.index_of(pfn)) {
                    record.store(record.load(Ordering::Relaxed) | TAKEN, Ordering::Relaxed);
                }
            }
        }
    }

    /// Takes `run` consecutive numbers, the first of which is a multiple of `run`. Returns the first number.
    pub(crate) fn take_run(&self, run: usize) -> Option<Pfn> {
        let offset = (self.base as usize).next_multiple_of(run) - self.base as usize;
        self.take_run_by(run, |taken| taken.take_run(run, offset))
    }

    /// Takes `run` consecutive numbers. Returns the first.
    pub(crate) fn take_run_anywhere(&self, run: usize) -> Option<Pfn> {
        self.take_run_by(run, |taken| taken.take_run_anywhere(run))
    }

    fn take_run_by(&self, run: usize, take: impl Fn(&mut Bitmap) -> Option<usize>) -> Option<Pfn> {
        let try_take = || {
            let mut list = self.list.0.lock();
            let first = take(&mut list.taken)?;
            list.counts.add(run as u64);
            Some(first)
        };
        let Some(first) = try_take().or_else(|| if self.drain_lists() { try_take() } else { None }) else {
            self.list.0.lock().counts.refused += 1;
            return None;
        };
        let first = Pfn::new(self.base + first as u64);
        self.note_taken((0..run as u64).map(|n| first.add(n)));
        Some(first)
    }

    /// Takes this number if it is a free number of the pool.
    pub(crate) fn take_this(&self, pfn: Pfn) -> bool {
        let Some(index) = self.index(pfn) else { return false };
        self.drain_lists();
        {
            let mut list = self.list.0.lock();
            if !list.taken.take_this(index) {
                return false;
            }
            list.counts.add(1);
        }
        self.note_taken(core::iter::once(pfn));
        true
    }

    /// Returns true if a number was freed before. The result is meaningful only if the oracles are on.
    pub(crate) fn was_used(&self, pfn: Pfn) -> bool {
        self.record(pfn).is_some_and(|record| record >> 1 != 0)
    }

    /// Records that these numbers are free, before another task can take them. Between this step and
    /// [`give`](Self::give), the oracles check that no CPU still uses the numbers.
    ///
    /// # Panics
    /// Panics if a number is not taken.
    pub(crate) fn retire(&self, numbers: &[Pfn]) {
        let Some(records) = &self.records else { return };
        // AcqRel: pairs with the load in `stamp`, so an entry that is filled after this tick carries the new
        // value.
        let now = self.clock.fetch_add(1, Ordering::AcqRel) + 1;
        for pfn in numbers {
            if let Some(record) = records.get(self.index_of(*pfn)) {
                let before = record.swap(now << 1, Ordering::AcqRel);
                assert!(before & TAKEN != 0, "{pfn:?} is a free {} and was freed again", self.what);
            }
        }
    }

    /// Returns numbers to the pool, so that they can be taken.
    ///
    /// # Panics
    /// Panics if a number is not taken.
    pub(crate) fn give(&self, numbers: &[Pfn]) {
        self.near.give(numbers, |numbers| self.give_back(numbers));
    }

    /// Moves the numbers in the lists of CPUs to the shared list. Returns true if there were any.
    fn drain_lists(&self) -> bool {
        self.near.drain(|numbers| self.give_back(numbers))
    }

    fn give_back(&self, numbers: &[Pfn]) {
        let mut list = self.list.0.lock();
        let given = list.taken.give(numbers.iter().map(|pfn| self.index_of(*pfn)));
        list.counts.freed += numbers.len() as u64;
        if let Err(NotTaken(index)) = given {
            panic!("{:?} is a free {} and was freed again", Pfn::new(self.base + index as u64), self.what);
        }
    }

    /// Returns the value of the clock. The caller reads the clock before a walk begins.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        // Acquire: pairs with the tick in `retire`.
        self.clock.load(Ordering::Acquire)
    }

    /// Checks that the number still has the owner that it had when a TLB entry with this stamp was filled.
    /// Without oracles, always succeeds.
    #[inline]
    pub(crate) fn check(&self, pfn: Pfn, stamp: u64) -> Result<(), Stale> {
        let Some(records) = &self.records else { return Ok(()) };
        let Some(index) = self.index(pfn) else { return Err(Stale::Outside) };
        // Acquire: pairs with the swap in `retire`.
        let record = records.get(index).map_or(0, |record| record.load(Ordering::Acquire));
        if record & TAKEN == 0 {
            Err(Stale::Free)
        } else if record >> 1 > stamp {
            Err(Stale::Reassigned)
        } else {
            Ok(())
        }
    }

    fn record(&self, pfn: Pfn) -> Option<u64> {
        let records = self.records.as_ref()?;
        records.get(self.index_of(pfn)).map(|record| record.load(Ordering::Relaxed))
    }

    /// Returns how many numbers are taken, and the lowest of them, at most `most`.
    pub(crate) fn in_use(&self, most: usize) -> (usize, Vec<Pfn>) {
        self.drain_lists();
        let list = self.list.0.lock();
        let lowest = list.taken.iter_taken().take(most);
        (list.taken.taken(), lowest.map(|index| Pfn::new(self.base + index as u64)).collect())
    }

    /// Returns the counts of allocations and frees of the shared list.
    pub(crate) fn counts(&self) -> PoolCounts {
        self.list.0.lock().counts
    }
}
