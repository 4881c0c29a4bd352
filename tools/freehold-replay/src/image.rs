//! What tasks run in, and how far they are.

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

/// An address space that tasks run in; its counts are kept when the last of them lets go of it.
pub(super) struct Image {
    process: Process,
    /// Where things go in it is known to be as on Linux, and compared.
    pub(super) places: bool,
    pub(super) lineage: Lineage,
    pub(super) reached: Reached,
    pub(super) touched: Touched,
    pub(super) pagers: Pagers,
    pub(super) holes: Holes,
    /// It has all the resource limits that it had on Linux.
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

    /// It gets these resource limits; where one is not known, the one that `unless` has.
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

/// A task that is being run, or waits.
pub(super) struct Task<'p> {
    pub(super) slot: usize,
    pub(super) number: u32,
    pub(super) steps: &'p TaskSteps,
    /// Of the next step in `steps`.
    pub(super) at: usize,
    pub(super) image: Option<Arc<Image>>,
}

/// What address spaces counted that are gone.
#[derive(Default)]
pub(super) struct Totals {
    vma_lock: AtomicU64,
    mmap_lock: AtomicU64,
}

impl Totals {
    /// Adds the counts of a space that ends.
    pub(super) fn add(&self, process: &Process) {
        let faults = process.faults();
        self.vma_lock.fetch_add(faults.vma_lock, Relaxed);
        self.mmap_lock.fetch_add(faults.mmap_lock, Relaxed);
    }

    /// Faults served under a VMA's lock, and under the mmap lock.
    pub(super) fn rungs(&self) -> (u64, u64) {
        (self.vma_lock.load(Relaxed), self.mmap_lock.load(Relaxed))
    }
}
