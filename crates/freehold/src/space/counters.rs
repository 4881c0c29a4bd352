//! What an address space counts.
//!
//! Sizes in VMAs and pages change only under the mmap lock held for writing and may be read at any time; resident pages
//! and faults are counted per CPU and summed when read.

use super::locking::WriteGuard;
use crate::{error::NoMemory, frame::Frame, platform::Platform, vma::flags::VmFlags};
use freehold_sync::{
    PerCpu,
    atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
};

/// Kinds of resident pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RssKind {
    /// Pages of ordinary files.
    File,
    /// Anonymous pages, private copies of file pages included.
    Anon,
    /// Pages of shared memory.
    Shmem,
}

impl RssKind {
    /// The kind that a mapping of this frame counts as.
    pub(crate) fn of(frame: &Frame) -> Self {
        frame.kind()
    }
}

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

const KINDS: usize = 3;
const ENDS: usize = 3;

/// Resident pages by kind, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    /// Pages of ordinary files.
    pub file: i64,
    /// Anonymous pages.
    pub anon: i64,
    /// Pages of shared memory.
    pub shmem: i64,
}

impl Rss {
    /// Adds `pages` of a kind.
    pub fn add(&mut self, kind: RssKind, pages: i64) {
        match kind {
            RssKind::File => self.file += pages,
            RssKind::Anon => self.anon += pages,
            RssKind::Shmem => self.shmem += pages,
        }
    }

    /// All kinds together.
    pub fn total(&self) -> i64 {
        self.file + self.anon + self.shmem
    }
}

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
    per_cpu: PerCpu<Cell, P>,
}

/// One CPU's share: signed, since a page may come on one CPU and go on another.
struct Cell {
    rss: [AtomicI64; KINDS],
    ends: [AtomicI64; ENDS],
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
            per_cpu: PerCpu::try_new(|_| Cell {
                rss: core::array::from_fn(|_| AtomicI64::new(0)),
                ends: core::array::from_fn(|_| AtomicI64::new(0)),
            })?,
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

    /// Resident pages came or went. Takes no lock.
    pub fn count_rss(&self, rss: &Rss) {
        self.per_cpu.with(|cell| {
            for (counter, by) in cell.rss.iter().zip([rss.file, rss.anon, rss.shmem]) {
                if by != 0 {
                    // Relaxed load and store: only this CPU writes its cell, inside `with`.
                    counter.store(counter.load(Relaxed) + by, Relaxed);
                }
            }
        });
    }

    /// As [`count_rss`](Self::count_rss) for one kind.
    pub fn count_page(&self, kind: RssKind, pages: i64) {
        self.per_cpu.with(|cell| {
            let counter = &cell.rss[kind as usize];
            counter.store(counter.load(Relaxed) + pages, Relaxed);
        });
    }

    /// A fault ended.
    pub fn count_fault(&self, end: Rung) {
        self.per_cpu.with(|cell| {
            let counter = &cell.ends[end as usize];
            counter.store(counter.load(Relaxed) + 1, Relaxed);
        });
    }

    /// Resident pages; exact when nobody changes them meanwhile.
    pub fn rss(&self) -> Rss {
        let mut sum = [0; KINDS];
        for cell in self.per_cpu.iter() {
            for (sum, counter) in sum.iter_mut().zip(&cell.rss) {
                *sum += counter.load(Relaxed);
            }
        }
        Rss { file: sum[0], anon: sum[1], shmem: sum[2] }
    }

    /// Faults by how they ended.
    pub fn faults(&self) -> Faults {
        let count = |end: Rung| {
            let sum: i64 = self.per_cpu.iter().map(|cell| cell.ends[end as usize].load(Relaxed)).sum();
            u64::try_from(sum).expect("a fault was counted down")
        };
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
        for vma in guard.vmas(0..u64::MAX) {
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
