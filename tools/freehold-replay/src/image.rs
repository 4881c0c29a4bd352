//! The address spaces that tasks run in, and the progress of each task.
//!
//! An [`Image`] is one process of the engine, with the facts about its memory that comparisons need. Several
//! tasks may share an image, and workers use it concurrently: `Arc` counts the users, and each part has its
//! own lock or atomics. A new part that tasks change needs a lock or atomics too. `perform.rs` creates images
//! at execs and forks. [`Task`] is owned by one worker at a time (`run.rs`). `Performer::new_task` sets the
//! parts of a child after a fork.

use super::contents::Lineage;
use super::grown::Holes;
use super::pagers::Pagers;
use super::reached::Reached;
use super::short::Heat;
use super::touched::Touched;
use freehold::space::limits::Limits;
use freehold_machine::Process;
use freehold_trace::KnownLimits;
use freehold_trace::plan::TaskSteps;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// An address space that tasks run in. Its fault counts are added to the totals when the last task leaves it.
pub(super) struct Image {
    /// The process of the engine.
    process: Process,
    /// True if the base from which Linux places mappings is known, so that chosen addresses are compared.
    pub(super) places: bool,
    /// The words that private pages may contain: those of this address space, and of its ancestors before the
    /// fork.
    pub(super) lineage: Lineage,
    /// The pages of files that recorded events may have mapped here.
    pub(super) reached: Reached,
    /// The pages that recorded events have touched, here or before the fork.
    pub(super) touched: Touched,
    /// The userfaultfds, and the pages that they have supplied.
    pub(super) pagers: Pagers,
    /// The ranges in which memory may have grown without a recorded event.
    pub(super) holes: Holes,
    /// The pages that were accessed lately, in a replay in limited memory.
    pub(super) heat: Heat,
    /// True if all resource limits are known and the same as on Linux.
    pub(super) limited: AtomicBool,
    /// The totals to which the fault counts are added at the end.
    totals: Arc<Totals>,
}

impl Image {
    /// Creates the image of a process whose resource limits are not known.
    pub(super) fn new(
        totals: &Arc<Totals>,
        process: Process,
        places: bool,
        lineage: Lineage,
        reached: Reached,
        touched: Touched,
    ) -> Arc<Image> {
        let (pagers, limited, totals) = (Pagers::default(), AtomicBool::new(false), Arc::clone(totals));
        let (holes, heat) = (Holes::default(), Heat::default());
        Arc::new(Image { process, places, lineage, reached, touched, pagers, holes, heat, limited, totals })
    }

    /// Sets the known resource limits. Takes each unknown limit from `unless`.
    pub(super) fn limit(&self, known: &KnownLimits, unless: Limits) {
        let (data, data_hard) = known.data.unwrap_or((unless.data, unless.data_hard));
        self.process.limits().set(
            &unless
                .clone()
                .address_space(known.address_space.unwrap_or(unless.address_space))
                .data(data)
                .data_hard(data_hard)
                .stack(known.stack.unwrap_or(unless.stack))
                .memlock(known.memlock.unwrap_or(unless.memlock))
                .may_lock(known.may_lock.unwrap_or(unless.may_lock)),
        );
        self.limited.store(known.are_all(), Relaxed);
    }

    /// Returns the process of the engine.
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
    /// Index of the task in the segment.
    pub(super) slot: usize,
    /// Serial number of the task.
    pub(super) number: u32,
    /// The steps of the task in the segment.
    pub(super) steps: &'p TaskSteps,
    /// Index of the next step in `steps`.
    pub(super) at: usize,
    /// The address space. `None` if it could not be created.
    pub(super) image: Option<Arc<Image>>,
}

/// Fault counts of address spaces that have ended.
#[derive(Default)]
pub(super) struct Totals {
    /// Faults that ran under a VMA lock.
    vma_lock: AtomicU64,
    /// Faults that ran under the mmap lock.
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
