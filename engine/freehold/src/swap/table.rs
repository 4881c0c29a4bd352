//! The table of a swap device: which slots are free, and the word of each slot.
//!
//! Each CPU allocates from a cluster of its own, its *current* cluster, so CPUs that swap pages out write no
//! common cache line while there are available clusters (`cluster.rs`). When the current cluster has no free
//! slots left, the CPU looks for an available cluster in the bitmap, takes it and leaves the old one. If no
//! cluster is available, the CPU allocates from the current clusters of other CPUs. If these have no free
//! slots either, the device is full.
//!
//! | word | written by | orders |
//! | --- | --- | --- |
//! | bit of `available` | set: the task whose step made the cluster available. Cleared: the CPU that takes the cluster | acquire and release. The bit is set soon after the cluster became available; a set bit may be out of date, and the CPU then finds no free slot |
//! | `current` of a CPU | this CPU, inside `with` | relaxed: a hint, because any task may allocate from any cluster that has a table |
//! | `bad` | a task whose release found a bad slot | relaxed: a statistic |
//!
//! `used` counts slots that are not free, bad ones not included. It has a part per CPU.
//!
//! The last cluster may have fewer slots. The words behind the end of the device are bad from the beginning.

use super::{
    cluster::{Cluster, SLOTS},
    slot::{Slot, Unused},
    word::State,
};
use crate::error::NoMemory;
use allocator_api2::{boxed::Box, vec::Vec};
use freehold_sync::{
    Counter, Host, PerCpu,
    atomic::{
        AtomicU64,
        Ordering::{AcqRel, Relaxed, Release},
    },
};

/// Maximum number of slots that one call allocates.
pub(super) const MAX_BATCH: u32 = 32;

/// Number of clusters that a word of the bitmap describes.
const CLUSTERS_PER_WORD: usize = u64::BITS as usize;

/// Slots that one call has allocated: consecutive, and reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub first: u64,
    pub count: u32,
}

/// The current cluster of a CPU, and the slot at which its next allocation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Current {
    cluster: usize,
    next: u32,
}

impl Current {
    const NEXT_BITS: u32 = 16;

    /// Returns the word of `current`; 0 stands for no cluster.
    fn word(this: Option<Self>) -> u64 {
        this.map_or(0, |current| (current.cluster as u64 + 1) << Self::NEXT_BITS | u64::from(current.next))
    }

    fn of(word: u64) -> Option<Self> {
        let cluster = (word >> Self::NEXT_BITS).checked_sub(1)? as usize;
        Some(Current { cluster, next: (word & ((1 << Self::NEXT_BITS) - 1)) as u32 })
    }
}

/// The table of a device.
pub(super) struct SwapTable<H: Host> {
    /// Number of slots.
    slots: u64,
    clusters: Box<[Cluster]>,
    /// A bit for each cluster; see the module.
    available: Box<[AtomicU64]>,
    /// The current cluster of each CPU, as [`Current::word`].
    current: PerCpu<AtomicU64, H>,
    /// Number of slots in use, in a part for each CPU.
    used: Counter<H>,
    /// Number of bad slots.
    bad: AtomicU64,
}

impl<H: Host> SwapTable<H> {
    /// Creates the table of a device with free slots only. Allocates 64 bytes for each cluster.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub fn try_new(slots: u64) -> Result<Self, NoMemory> {
        let count = usize::try_from(slots.div_ceil(SLOTS.into())).map_err(|_| NoMemory)?;
        let mut clusters = Vec::new();
        clusters.try_reserve_exact(count).map_err(|_| NoMemory)?;
        let in_cluster = |n: u64| (slots - n * u64::from(SLOTS)).min(SLOTS.into()) as u32;
        clusters.extend((0..count as u64).map(|n| Cluster::new(in_cluster(n))));
        let mut available = Vec::new();
        let words = count.div_ceil(CLUSTERS_PER_WORD);
        available.try_reserve_exact(words).map_err(|_| NoMemory)?;
        let bits = |word: usize| (count - word * CLUSTERS_PER_WORD).min(CLUSTERS_PER_WORD) as u32;
        available.extend((0..words).map(|word| AtomicU64::new(u64::MAX >> (u64::BITS - bits(word)))));
        Ok(SwapTable {
            slots,
            clusters: clusters.into_boxed_slice(),
            available: available.into_boxed_slice(),
            current: PerCpu::try_new(|_| AtomicU64::new(0))?,
            used: Counter::try_new()?,
            bad: AtomicU64::new(0),
        })
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Returns the number of slots in use. Exact if no task allocates or frees slots.
    pub fn used(&self) -> u64 {
        self.used.sum().max(0) as u64
    }

    /// Returns true if no slot is in use. If no task puts a page into a slot during the call, a slot that has
    /// a page all the time is found. The sum of `used` could miss it, because another slot may be allocated
    /// and freed while the parts are read. Reads the words of all clusters that were used.
    pub fn is_unused(&self) -> bool {
        let mut words = self.clusters.iter().flat_map(Cluster::words);
        !words.any(|word| !matches!(Slot(word).state(), State::Free | State::Bad))
    }

    /// Returns the number of slots that are never used again.
    pub fn bad(&self) -> u64 {
        self.bad.load(Relaxed)
    }

    /// Returns the word of a slot, or `None` if the slot was never allocated or is beyond the device.
    pub fn slot(&self, slot: u64) -> Option<Slot<'_>> {
        let (cluster, place) = (slot / u64::from(SLOTS), slot % u64::from(SLOTS));
        let cluster = self.clusters.get(usize::try_from(cluster).ok()?)?;
        cluster.words().get(place as usize).map(Slot)
    }

    /// Allocates up to `wanted` consecutive slots of one cluster, at most [`MAX_BATCH`]. The slots are
    /// reserved. Returns `None` if the device is full.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for the table of a cluster, and no cluster that has a table has free
    /// slots.
    pub fn allocate(&self, wanted: u32) -> Result<Option<Batch>, NoMemory> {
        let wanted = wanted.clamp(1, MAX_BATCH);
        let (cpu, current) = self.current.with_index(|cpu, word| (cpu, Current::of(word.load(Relaxed))));
        if let Some(batch) = current.and_then(|current| self.allocate_in(current, wanted)) {
            return Ok(Some(batch));
        }
        let start = match current {
            Some(current) => current.cluster / CLUSTERS_PER_WORD,
            None => cpu * self.available.len() / H::cpus(),
        };
        let no_memory = match self.allocate_elsewhere(current, wanted, start, |_| true) {
            Ok(None) => None,
            Err(error) => {
                // Clusters that have a table need no memory.
                let has_table = |cluster: &Cluster| !cluster.words().is_empty();
                if let Some(batch) = self.allocate_elsewhere(current, wanted, start, has_table)? {
                    return Ok(Some(batch));
                }
                Some(error)
            }
            found => return found,
        };
        let mut theirs = self.current.iter().filter_map(|word| Current::of(word.load(Relaxed)));
        match (theirs.find_map(|theirs| self.allocate_in(theirs, wanted)), no_memory) {
            (None, Some(error)) => Err(error),
            (found, _) => Ok(found),
        }
    }

    /// Allocates slots of an available cluster that `accepts` returns true for, and makes the cluster the
    /// current one of this CPU in place of `current`. Returns `None` if there is no such cluster.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for the table of a cluster.
    fn allocate_elsewhere(
        &self,
        current: Option<Current>,
        wanted: u32,
        start: usize,
        accepts: impl Fn(&Cluster) -> bool,
    ) -> Result<Option<Batch>, NoMemory> {
        while let Some(cluster) = self.take_available(start, &accepts) {
            let made = self.clusters[cluster].make_table();
            let new = Current { cluster, next: 0 };
            let batch = made.map(|()| self.allocate_in(new, wanted));
            // The bit may have been out of date, and then the cluster has no free slots.
            let unused = match &batch {
                Ok(Some(batch)) => self.replace_current(current, self.after(batch)),
                _ => Some(cluster),
            };
            if let Some(unused) = unused
                && self.clusters[unused].leave()
            {
                self.announce(unused);
            }
            if !matches!(batch, Ok(None)) {
                return batch;
            }
        }
        Ok(None)
    }

    /// Frees a slot that is reserved, or counts a slot that became bad.
    pub fn free(&self, slot: u64, unused: Unused) {
        match unused {
            Unused::Free => {
                // The word is free before it is counted; see `cluster.rs`.
                self.slot(slot).into_iter().for_each(Slot::cancel);
                let cluster = (slot / u64::from(SLOTS)) as usize;
                if self.clusters[cluster].add_free(1) {
                    self.announce(cluster);
                }
            }
            Unused::Bad => {
                self.bad.fetch_add(1, Relaxed);
            }
        }
        self.used.add(-1);
    }

    /// Returns the first slot from `from` on with a clean page in the swap cache, among at most `most` slots,
    /// and the slot at which the caller continues.
    pub fn next_clean(&self, from: u64, most: u64) -> (Option<u64>, u64) {
        self.next_that(from, most, |slot| slot.is_clean())
    }

    /// Returns the first slot from `from` on that `is_wanted`, like [`next_clean`](Self::next_clean).
    pub fn next_that(
        &self,
        from: u64,
        most: u64,
        is_wanted: impl Fn(Slot<'_>) -> bool,
    ) -> (Option<u64>, u64) {
        let end = from.saturating_add(most).min(self.slots);
        let mut at = from;
        while at < end {
            match self.slot(at) {
                Some(slot) if is_wanted(slot) => return (Some(at), at + 1),
                Some(_) => at += 1,
                // The cluster was never used.
                None => at = (at / u64::from(SLOTS) + 1) * u64::from(SLOTS),
            }
        }
        (None, at.min(end))
    }

    /// Allocates slots of a cluster that has a table.
    fn allocate_in(&self, from: Current, wanted: u32) -> Option<Batch> {
        let (taken, available) = self.clusters[from.cluster].allocate(wanted, from.next);
        if available {
            self.announce(from.cluster);
        }
        let taken = taken?;
        self.used.add(taken.count.into());
        let first = from.cluster as u64 * u64::from(SLOTS) + u64::from(taken.first);
        let batch = Batch { first, count: taken.count };
        self.current.with(|word| {
            // Only this CPU writes the word. The task may have moved to another CPU.
            if Current::of(word.load(Relaxed)).is_some_and(|now| now.cluster == from.cluster) {
                word.store(Current::word(Some(self.after(&batch))), Relaxed);
            }
        });
        Some(batch)
    }

    /// Returns the place behind a batch.
    fn after(&self, batch: &Batch) -> Current {
        let (cluster, first) = (batch.first / u64::from(SLOTS), batch.first % u64::from(SLOTS));
        Current { cluster: cluster as usize, next: first as u32 + batch.count }
    }

    /// Makes `new` the current cluster of this CPU if that is still `old`. Returns the cluster that the CPU
    /// does not use: the old one, or `new`.
    fn replace_current(&self, old: Option<Current>, new: Current) -> Option<usize> {
        self.current.with(|word| {
            let now = Current::of(word.load(Relaxed)).map(|now| now.cluster);
            if now != old.map(|old| old.cluster) {
                return Some(new.cluster);
            }
            word.store(Current::word(Some(new)), Relaxed);
            now
        })
    }

    /// Takes an available cluster that `accepts` returns true for. The search begins at this word of the
    /// bitmap.
    fn take_available(&self, start: usize, accepts: impl Fn(&Cluster) -> bool) -> Option<usize> {
        let words = self.available.len();
        for n in (start..words).chain(0..start.min(words)) {
            // Relaxed: the change below decides.
            let mut bits = self.available[n].load(Relaxed);
            while bits != 0 {
                let (bit, cluster) =
                    (bits & bits.wrapping_neg(), n * CLUSTERS_PER_WORD + bits.trailing_zeros() as usize);
                bits &= !bit;
                // Acquire pairs with the release in `announce`.
                if accepts(&self.clusters[cluster]) && self.available[n].fetch_and(!bit, AcqRel) & bit != 0 {
                    self.clusters[cluster].take();
                    return Some(cluster);
                }
            }
        }
        None
    }

    /// Announces an available cluster.
    fn announce(&self, cluster: usize) {
        // Release pairs with the acquire in `take_available`.
        self.available[cluster / CLUSTERS_PER_WORD].fetch_or(1 << (cluster % CLUSTERS_PER_WORD), Release);
    }
}

#[cfg(all(test, loom))]
#[path = "table_loom_tests.rs"]
mod loom_tests;
#[cfg(all(test, not(any(loom, shuttle, sim))))]
#[path = "table_tests.rs"]
mod tests;
