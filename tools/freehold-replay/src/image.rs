//! The address spaces that tasks run in, and the progress of each task.

use super::contents::Lineage;
use super::grown::Holes;
use super::pagers::Pagers;
use super::reached::Reached;
use super::touched::Touched;
use freehold::space::limits::Limits;
use freehold_machine::Process;
use freehold_trace::KnownLimits;
use freehold_trace::plan::TaskSteps;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// An address space that tasks run in. Its fault counts are added to the totals when the last task leaves it.
pub(super) struct Image {
    process: Process,
    /// The base from which Linux places mappings is known, so chosen addresses are compared.
    pub(super) places: bool,
    pub(super) lineage: Lineage,
    pub(super) reached: Reached,
    pub(super) touched: Touched,
    pub(super) pagers: Pagers,
    pub(super) holes: Holes,
    /// The resource limits are all known and the same as on Linux.
    pub(super) limited: AtomicBool,
    totals: Arc<Totals>,
}

impl Image {
    pub(super) fn new(
        totals: &Arc<Totals>,
        process: Process,
        places: bool,
        lineage: Lineage,
        reached: Reached,
        touched: Touched,
    ) -> Arc<Image> {
        let (pagers, limited, totals) = (Pagers::default(), AtomicBool::new(false), Arc::clone(totals));
        let holes = Holes::default();
        Arc::new(Image { process, places, lineage, reached, touched, pagers, holes, limited, totals })
    }

    /// Sets the known resource limits. Takes each limit that is not known from `unless`.
    pub(super) fn limit(&self, known: &KnownLimits, unless: Limits) {
        let (data, data_hard) = known.data.unwrap_or((unless.data, unless.data_hard));
        self.process.limits().set(&Limits {
            address_space: known.address_space.unwrap_or(unless.address_space),
            data,
            data_hard,
            stack: known.stack.unwrap_or(unless.stack),
            memlock: known.memlock.unwrap_or(unless.memlock),
            may_lock: known.may_lock.unwrap_or(unless.may_lock),
            ..unless
        });
        self.limited.store(known.are_all(), Relaxed);
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.totals.add(&self.process);
    }
}

/// A task that is running or waiting.
pub(super) struct Task<'p> {
    pub(super) slot: usize,
    pub(super) number: u32,
    pub(super) steps: &'p TaskSteps,
    /// Index of the next step in `steps`.
    pub(super) at: usize,
    pub(super) image: Option<Arc<Image>>,
}

/// Fault counts of address spaces that have ended.
#[derive(Default)]
pub(super) struct Totals {
    vma_lock: AtomicU64,
    mmap_lock: AtomicU64,
}

impl Totals {
    /// Adds the counts of an address space that ends.
    pub(super) fn add(&self, process: &Process) {
        let faults = process.faults();
        self.vma_lock.fetch_add(faults.vma_lock, Relaxed);
        self.mmap_lock.fetch_add(faults.mmap_lock, Relaxed);
    }

    /// Returns the numbers of faults served under a VMA lock and under the mmap lock.
    pub(super) fn rungs(&self) -> (u64, u64) {
        (self.vma_lock.load(Relaxed), self.mmap_lock.load(Relaxed))
    }
}
