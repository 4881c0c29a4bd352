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
use freehold_vmspace::{PageCount, UserRange};

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
    pub total_vm: Pages,
    pub locked_vm: Pages,
    pub data_vm: Pages,
    pub exec_vm: Pages,
    pub stack_vm: Pages,
    /// Faults by [how they ended](Rung), as this CPU counts them.
    faults: PerCpu<[AtomicU64; ENDS], P>,
}

/// A live number of pages. It changes under the mmap lock held for writing alone, so by a plain load and
/// store (Relaxed).
pub(crate) struct Pages(AtomicU64);

impl Pages {
    fn none() -> Pages {
        Pages(AtomicU64::new(0))
    }

    #[inline]
    pub fn get(&self) -> PageCount {
        PageCount::new(self.0.load(Relaxed))
    }

    #[inline]
    fn grow(&self, by: PageCount) {
        self.0.store((self.get() + by).get(), Relaxed);
    }

    #[inline]
    fn shrink(&self, by: PageCount) {
        let rest = self.get().checked_sub(by).expect("a size of the address space went below zero");
        self.0.store(rest.get(), Relaxed);
    }
}

impl<P: Platform> Counters<P> {
    pub fn try_new() -> Result<Self, NoMemory> {
        Ok(Counters {
            map_count: AtomicU64::new(0),
            total_vm: Pages::none(),
            locked_vm: Pages::none(),
            data_vm: Pages::none(),
            exec_vm: Pages::none(),
            stack_vm: Pages::none(),
            faults: PerCpu::try_new(|_| core::array::from_fn(|_| AtomicU64::new(0)))?,
        })
    }

    /// Pages with these flags were mapped.
    pub fn count_mapped(&self, _: &WriteGuard<'_, P>, flags: VmFlags, pages: PageCount) {
        self.total_vm.grow(pages);
        if let Some(kind) = self.kind(flags) {
            kind.grow(pages);
        }
    }

    /// Pages with these flags were unmapped.
    pub fn count_unmapped(&self, _: &WriteGuard<'_, P>, flags: VmFlags, pages: PageCount) {
        self.total_vm.shrink(pages);
        if let Some(kind) = self.kind(flags) {
            kind.shrink(pages);
        }
    }

    /// What counts the pages of VMAs with these flags, beside the total.
    #[inline]
    fn kind(&self, flags: VmFlags) -> Option<&Pages> {
        if flags.is_exec() {
            Some(&self.exec_vm)
        } else if flags.is_stack() {
            Some(&self.stack_vm)
        } else if flags.is_data() {
            Some(&self.data_vm)
        } else {
            None
        }
    }

    /// The number of VMAs changed.
    pub fn count_vmas(&self, _: &WriteGuard<'_, P>, by: i64) {
        // Relaxed load and store: under the mmap lock, like the numbers of pages.
        let vmas = self.map_count.load(Relaxed).checked_add_signed(by);
        self.map_count.store(vmas.expect("a number of VMAs went below zero"), Relaxed);
    }

    /// Mapped pages were locked.
    pub fn count_locked(&self, _: &WriteGuard<'_, P>, pages: PageCount) {
        self.locked_vm.grow(pages);
    }

    /// Locked pages were unlocked, or unmapped.
    pub fn count_unlocked(&self, _: &WriteGuard<'_, P>, pages: PageCount) {
        self.locked_vm.shrink(pages);
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
            total_vm: self.total_vm.get().get(),
            locked_vm: self.locked_vm.get().get(),
            data_vm: self.data_vm.get().get(),
            exec_vm: self.exec_vm.get().get(),
            stack_vm: self.stack_vm.get().get(),
        }
    }

    /// Compares the sizes with a recount.
    pub fn check(&self, guard: &WriteGuard<'_, P>) {
        let mut recount = Counts::default();
        for vma in guard.vmas(UserRange::ALL) {
            let (flags, pages) = (vma.flags(), vma.pages().get());
            recount.map_count += 1;
            recount.total_vm += pages;
            if flags.contains(VmFlags::LOCKED) {
                recount.locked_vm += pages;
            }
            if flags.is_exec() {
                recount.exec_vm += pages;
            } else if flags.is_stack() {
                recount.stack_vm += pages;
            } else if flags.is_data() {
                recount.data_vm += pages;
            }
        }
        assert_eq!(
            self.counts(),
            recount,
            "the sizes differ from a recount (left: counted, right: recounted)"
        );
    }
}
