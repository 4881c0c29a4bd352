//! The state of reclaim that other folders need: the policy, and the cycle of visits (`visits.rs`).
//!
//! Every field is constant or a word that is read and written on its own. Reclaim writes the shared words
//! once for each chunk of frames; faults write none of them.

mod clock;
mod generations;
mod ghosts;
pub(crate) mod policy;
pub(crate) mod stats;
mod two_lists;
mod visits;

use crate::{error::NoMemory, platform::Platform};
use allocator_api2::boxed::Box;
use clock::Clock;
use core::ops::Range;
use freehold_pagetable::Pfn;
use freehold_sync::{
    PerCpu,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};
use freehold_vmspace::{OldAges, PageIndex};
use generations::Generations;
use ghosts::Ghosts;
use policy::{Age, PageKind, PagesByAge, Policy, Population, ReclaimPolicy};
use stats::{ReclaimStats, Reclaimed};
use two_lists::TwoLists;
use visits::Visits;

/// Maximum number of evicted pages that a CPU adds to the clock at a time.
const LARGEST_UNIT: u64 = 512;

/// The policy of an engine, with its state.
enum Chosen {
    Clock(Clock),
    TwoLists(TwoLists),
    Generations(Generations),
    Custom(&'static dyn Policy),
}

/// Numbers of pages of a chunk by kind and age. They are small, because a call has them on its stack.
pub(crate) type ChunkPages = [[u16; Age::COUNT]; PageKind::COUNT];

/// The pages that a call has found in a chunk.
#[derive(Default)]
pub(crate) struct Found {
    /// Pages that stay.
    pub pages: ChunkPages,
    /// Pages that were evicted, by the age with which they went.
    pub evicted: ChunkPages,
}

/// Numbers for each kind and age.
type Counts = [[AtomicU64; Age::COUNT]; PageKind::COUNT];

fn zero_counts() -> Counts {
    [(); PageKind::COUNT].map(|()| [(); Age::COUNT].map(|()| AtomicU64::new(0)))
}

/// Adds numbers to the counts of the calling CPU, inside [`PerCpu::with`].
fn add_all(counts: &Counts, more: &ChunkPages) {
    for (count, pages) in counts.iter().flatten().zip(more.iter().flatten()).filter(|(_, pages)| **pages > 0)
    {
        add(count, u64::from(*pages));
    }
}

/// The part of the state that each CPU has of its own.
struct CpuPart {
    /// Pages that visits of this CPU have found and left so far.
    found: Counts,
    /// Pages that visits of this CPU have evicted.
    evicted_by_age: Counts,
    /// Pages that faults and reads on this CPU have needed again after their eviction.
    refaulted: Counts,
    /// Number of calls on this CPU, and the sums of the numbers of their results.
    calls: AtomicU64,
    sums: [AtomicU64; 5],
    /// Pages evicted by this CPU that are not in [`Totals::evicted`] yet.
    evicted: AtomicU64,
}

/// Adds to a number of the calling CPU, inside [`PerCpu::with`].
fn add(number: &AtomicU64, more: u64) {
    // Relaxed: statistics, which only this CPU writes.
    number.store(number.load(Relaxed) + more, Relaxed);
}

/// The part of the state that all tasks write that reclaim, on cache lines of its own.
#[repr(align(64))]
struct Totals {
    /// Number of pages evicted so far: the clock by which refault distances are measured. Each CPU adds its
    /// pages in units.
    evicted: AtomicU64,
    /// The sums of the counts of each CPU at the last report to the policy: `found`, `evicted_by_age`,
    /// `refaulted`.
    reported: [Counts; 3],
}

/// The state of reclaim of an engine.
pub(crate) struct ReclaimState<P: Platform> {
    policy: Chosen,
    cpus: PerCpu<CpuPart, P>,
    /// On the heap, so that the state is small while an engine is made.
    totals: Box<Totals>,
    visits: Visits<P>,
    /// The evicted pages of files.
    ghosts: Ghosts,
    /// Number of evicted pages that a CPU adds to the clock at a time. The units of all CPUs together are at
    /// most a 64th of memory, so that distances stay exact enough.
    unit: u64,
    /// True if a program has ever mapped droppable memory. Never cleared.
    droppable: AtomicBool,
    /// Number of slots of swap devices that were visited so far.
    slots: AtomicU64,
}

impl<P: Platform> ReclaimState<P> {
    /// Creates the state of an engine without pages.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub fn try_new(policy: ReclaimPolicy, memory: &Range<Pfn>) -> Result<Self, NoMemory> {
        let frames = memory.end.get().saturating_sub(memory.start.get());
        let ghosts = Ghosts::try_new(frames)?;
        let unit = (frames / (64 * P::cpus() as u64)).clamp(1, LARGEST_UNIT);
        let policy = match policy {
            ReclaimPolicy::Clock => Chosen::Clock(Clock),
            ReclaimPolicy::TwoLists => Chosen::TwoLists(TwoLists::default()),
            ReclaimPolicy::Generations => Chosen::Generations(Generations::default()),
            ReclaimPolicy::Custom(policy) => Chosen::Custom(policy),
        };
        let part = |_| CpuPart {
            found: zero_counts(),
            evicted_by_age: zero_counts(),
            refaulted: zero_counts(),
            calls: AtomicU64::new(0),
            sums: [(); 5].map(|()| AtomicU64::new(0)),
            evicted: AtomicU64::new(0),
        };
        let totals =
            Box::try_new(Totals { evicted: AtomicU64::new(0), reported: [(); 3].map(|()| zero_counts()) })?;
        let droppable = AtomicBool::new(false);
        Ok(ReclaimState {
            policy,
            cpus: PerCpu::try_new(part)?,
            totals,
            visits: Visits::try_new(memory)?,
            ghosts,
            unit,
            droppable,
            slots: AtomicU64::new(0),
        })
    }

    /// Returns the policy.
    pub fn policy(&self) -> &dyn Policy {
        match &self.policy {
            Chosen::Clock(policy) => policy,
            Chosen::TwoLists(policy) => policy,
            Chosen::Generations(policy) => policy,
            Chosen::Custom(policy) => *policy,
        }
    }

    /// Returns the ages of pages that programs do not expect to use soon.
    pub fn old_ages(&self) -> OldAges {
        let age = |kind| self.policy().old(kind).byte();
        OldAges { anon: age(PageKind::Anonymous), shmem: age(PageKind::Shared), file: age(PageKind::File) }
    }

    /// Takes the next frames to visit for the calling task. Reports to the policy when a visit of memory is
    /// over. Returns `None` if there is no memory.
    pub fn next_chunk(&self) -> Option<Range<u64>> {
        self.visits.next(|| self.report())
    }

    /// Returns the rest of a chunk, which a call on this CPU visits next.
    pub fn put_back(&self, rest: Range<u64>) {
        self.visits.put_back(rest);
    }

    /// Passes the numbers of pages found since the last report to the policy.
    fn report(&self) {
        let [found, evicted, refaulted] = &self.totals.reported;
        let population = Population {
            pages: self.since(found, |part| &part.found),
            evicted: self.since(evicted, |part| &part.evicted_by_age),
            refaulted: self.since(refaulted, |part| &part.refaulted),
        };
        self.policy().swept(&population);
    }

    /// Returns the sums of counts of each CPU without what was reported before, and reports them.
    fn since(&self, reported: &Counts, of: impl Fn(&CpuPart) -> &Counts) -> PagesByAge {
        let mut pages = PagesByAge::default();
        for (kind, ages) in pages.iter_mut().enumerate() {
            for (age, pages) in ages.iter_mut().enumerate() {
                let sum = self.sum(|part| &of(part)[kind][age]);
                // Another task may report at the same time, with a larger sum.
                let before = reported[kind][age].fetch_max(sum, Relaxed);
                *pages = sum.saturating_sub(before);
            }
        }
        pages
    }

    /// Adds the pages found in a chunk.
    pub fn add_found(&self, found: &Found) {
        self.cpus.with(|part| {
            add_all(&part.found, &found.pages);
            add_all(&part.evicted_by_age, &found.evicted);
        });
    }

    /// Counts a call and its result.
    pub fn add_call(&self, done: &Reclaimed) {
        self.cpus.with(|part| {
            add(&part.calls, 1);
            let numbers = [done.freed, done.writing, done.kept, done.tested, done.visited];
            part.sums.iter().zip(numbers).for_each(|(sum, n)| add(sum, n));
        });
        self.add_evicted(done.freed);
    }

    /// Returns the sum of a number of each CPU.
    fn sum(&self, of: impl Fn(&CpuPart) -> &AtomicU64) -> u64 {
        // Relaxed: as in `add`.
        self.cpus.iter().map(|part| of(part).load(Relaxed)).sum()
    }

    /// Returns the sums of all CPUs.
    pub fn stats(&self) -> ReclaimStats {
        let ages = || 0..Age::COUNT;
        let [freed, writing, kept, tested, visited] = [0, 1, 2, 3, 4].map(|n| self.sum(|part| &part.sums[n]));
        ReclaimStats {
            calls: self.sum(|part| &part.calls),
            reclaimed: Reclaimed { freed, writing, kept, tested, visited },
            refaulted: [0, 1, 2]
                .map(|kind| ages().map(|age| self.sum(|part| &part.refaulted[kind][age])).sum()),
        }
    }

    /// Counts evicted pages.
    pub fn add_evicted(&self, pages: u64) {
        // Relaxed, here and below: a clock without data. Only this CPU writes its own word.
        let unit = self.cpus.with(|part| {
            let own = part.evicted.load(Relaxed) + pages;
            let unit = if own < self.unit { 0 } else { own };
            part.evicted.store(own - unit, Relaxed);
            unit
        });
        if unit > 0 {
            self.totals.evicted.fetch_add(unit, Relaxed);
        }
    }

    /// Returns the number of the next slot of a swap device to visit, and counts `visits` slots as visited.
    pub fn next_slots(&self, visits: u64) -> u64 {
        // Relaxed: the hand of a cycle, without data.
        self.slots.fetch_add(visits, Relaxed)
    }

    /// Returns the number of pages evicted so far, which a swap device keeps with an evicted page.
    pub fn evicted(&self) -> u64 {
        self.totals.evicted.load(Relaxed)
    }

    /// Returns the age of an anonymous page that was swapped out when `evicted` pages had been evicted, and
    /// that is needed again. Only the low 40 bits of the number are known.
    pub fn swapped_in(&self, evicted: u64) -> Age {
        let distance = self.evicted().wrapping_sub(evicted) & ((1 << 40) - 1);
        self.age_of_refault(PageKind::Anonymous, Age::NEW, distance)
    }

    /// Records that a program maps droppable memory.
    pub fn note_droppable(&self) {
        // Relaxed, here and below: a hint. Reclaim that misses the store finds the memory in a later call.
        self.droppable.store(true, Relaxed);
    }

    /// Returns true if anonymous pages may be droppable.
    pub fn has_droppable(&self) -> bool {
        self.droppable.load(Relaxed)
    }

    /// Records that page `index` of the file with this key is evicted with this age.
    pub fn add_ghost(&self, file: usize, index: PageIndex, age: Age) {
        self.ghosts.insert(file, index.get(), age, self.totals.evicted.load(Relaxed));
    }

    /// Returns the age of a page that enters the cache of the file with this key again. Returns `None` if no
    /// eviction of the page is known.
    pub fn refaulted(&self, file: usize, index: PageIndex) -> Option<Age> {
        let evicted = self.totals.evicted.load(Relaxed);
        if evicted == 0 {
            return None;
        }
        let (age, distance) = self.ghosts.take(file, index.get(), evicted)?;
        Some(self.age_of_refault(PageKind::File, age, distance))
    }

    /// Counts a refault of a page that was evicted with `age`. Returns the new age of the page.
    fn age_of_refault(&self, kind: PageKind, age: Age, distance: u64) -> Age {
        self.cpus.with(|part| add(&part.refaulted[kind as usize][usize::from(age.number())], 1));
        self.policy().refaulted(kind, age, distance)
    }
}
