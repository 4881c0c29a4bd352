//! What an address space counts.
//!
//! Sizes in VMAs and pages change only under the mmap lock held for writing and may be read at any time;
//! faults are counted per CPU and summed when read, as are [resident pages](freehold_vmspace::VmSpace::rss).

use super::locking::WriteGuard;
use crate::{error::NoMemory, platform::Platform, vma::flags::VmFlags};
use freehold_sync::{
    PerCpu,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use freehold_vmspace::UserRange;

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// A fault served under the VMA's own lock.
    VmaLock,
    /// A fault served under the mmap lock.
    MmapLock,
    /// A fault that ended in a signal.
    Failed,
}

const ENDS: usize = 3;

/// Faults by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Served under the VMA's own lock.
    pub vma_lock: u64,
    /// Served under the mmap lock.
    pub mmap_lock: u64,
    /// Rung in a signal, or without memory.
    pub failed: u64,
}

/// Sizes of an address space in pages, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// VMAs.
    pub map_count: u64,
    /// Pages mapped.
    pub total_vm: u64,
    /// Pages in VMAs locked into memory.
    pub locked_vm: u64,
    /// Pages of private writable memory that is no stack.
    pub data_vm: u64,
    /// Pages of program text.
    pub exec_vm: u64,
    /// Pages of stacks.
    pub stack_vm: u64,
}

/// The live counters.
pub(crate) struct Counters<P: Platform> {
    pub map_count: AtomicU64,
    pub total_vm: AtomicU64,
    pub locked_vm: AtomicU64,
    pub data_vm: AtomicU64,
    pub exec_vm: AtomicU64,
    pub stack_vm: AtomicU64,
    /// Faults by [how they ended](Rung), as this CPU counts them.
    faults: PerCpu<[AtomicU64; ENDS], P>,
}

/// Adds under the mmap lock held for writing: a plain load and store.
fn bump(counter: &AtomicU64, by: i64) {
    let old = counter.load(Relaxed);
    let new = old.checked_add_signed(by).expect("a size of the address space went below zero");
    counter.store(new, Relaxed);
}

impl<P: Platform> Counters<P> {
    pub fn try_new() -> Result<Self, NoMemory> {
        Ok(Counters {
            map_count: AtomicU64::new(0),
            total_vm: AtomicU64::new(0),
            locked_vm: AtomicU64::new(0),
            data_vm: AtomicU64::new(0),
            exec_vm: AtomicU64::new(0),
            stack_vm: AtomicU64::new(0),
            faults: PerCpu::try_new(|_| core::array::from_fn(|_| AtomicU64::new(0)))?,
        })
    }

    /// Pages with these flags were mapped (or, negative, unmapped).
    pub fn account(&self, _: &WriteGuard<'_, P>, flags: VmFlags, pages: i64) {
        bump(&self.total_vm, pages);
        if flags.is_exec() {
            bump(&self.exec_vm, pages);
        } else if flags.is_stack() {
            bump(&self.stack_vm, pages);
        } else if flags.is_data() {
            bump(&self.data_vm, pages);
        }
    }

    /// The number of VMAs changed.
    pub fn count_vmas(&self, _: &WriteGuard<'_, P>, by: i64) {
        bump(&self.map_count, by);
    }

    /// The number of locked pages changed.
    pub fn count_locked(&self, _: &WriteGuard<'_, P>, by: i64) {
        bump(&self.locked_vm, by);
    }

    /// A fault ended.
    pub fn count_fault(&self, end: Rung) {
        self.faults.with(|ends| {
            let counter = &ends[end as usize];
            // Relaxed load and store: only this CPU writes its cell, inside `with`.
            counter.store(counter.load(Relaxed) + 1, Relaxed);
        });
    }

    /// Faults by how they ended.
    pub fn faults(&self) -> Faults {
        let count = |end: Rung| self.faults.iter().map(|ends| ends[end as usize].load(Relaxed)).sum();
        Faults {
            vma_lock: count(Rung::VmaLock),
            mmap_lock: count(Rung::MmapLock),
            failed: count(Rung::Failed),
        }
    }

    /// Sizes.
    pub fn counts(&self) -> Counts {
        // Relaxed: each by itself; they agree with each other under the mmap lock.
        Counts {
            map_count: self.map_count.load(Relaxed),
            total_vm: self.total_vm.load(Relaxed),
            locked_vm: self.locked_vm.load(Relaxed),
            data_vm: self.data_vm.load(Relaxed),
            exec_vm: self.exec_vm.load(Relaxed),
            stack_vm: self.stack_vm.load(Relaxed),
        }
    }

    /// Compares the sizes with a recount.
    pub fn check(&self, guard: &WriteGuard<'_, P>) {
        let mut recount = Counts::default();
        for vma in guard.vmas(UserRange::ALL) {
            recount.map_count += 1;
            recount.total_vm += vma.pages();
            let flags = vma.flags();
            if flags.contains(VmFlags::LOCKED) {
                recount.locked_vm += vma.pages();
            }
            if flags.is_exec() {
                recount.exec_vm += vma.pages();
            } else if flags.is_stack() {
                recount.stack_vm += vma.pages();
            } else if flags.is_data() {
                recount.data_vm += vma.pages();
            }
        }
        assert_eq!(
            self.counts(),
            recount,
            "the sizes differ from a recount (left: counted, right: recounted)"
        );
    }
}
