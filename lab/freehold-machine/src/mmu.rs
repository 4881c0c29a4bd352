//! The machine's data per address space, and flushing an address space from the CPUs.
//!
//! The engine gets an [`Mmu`] from `Platform::space_created` and passes it to every flush. `cpu.rs` marks
//! CPUs, and `space_slot.rs` has the marks. Guarantee: when [`Mmu::flush`] returns, no CPU holds or uses a
//! translation that the flush covers. `tests/tlb.rs` tests it. Mechanism:
//!
//! - A CPU that starts to run a space sets its bit in the space's mask. The CPU holds its own lock while it
//!   sets the bit, and sets the bit before its first walk.
//! - A flush happens after the change of the tables. The flush reads the mask, and drops the entries of each
//!   marked CPU under that CPU's lock.
//! - An access holds the CPU's lock from its look-up to its end. So an access either ends before the flush
//!   reaches its CPU, or begins afterwards and sees the changed tables.
//! - A full barrier is between the change of the tables and the read of the mask. A second full barrier is
//!   between the setting of a bit and the walk. So either the flush sees the bit or the walk sees the change.

use crate::cpu_shared::CpuShared;
use crate::host;
use crate::inner::{FlushKind, Inner};
use crate::oracle;
use crate::space_slot::SpaceSlot;
use crate::tlb::{SpaceTag, Tlb, bits};
use freehold_pagetable::{Flush, Format, Level, Pfn, VirtAddr};
use freehold_sync::atomic::Ordering::Acquire;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The machine's data of one address space: its root table and the set of CPUs that run it. Created by
/// `Platform::space_created`.
pub struct Mmu<F: Format> {
    inner: Arc<Inner<F>>,
    root: Pfn,
    tag: SpaceTag,
    index: usize,
}

impl<F: Format> Mmu<F> {
    pub(crate) fn new(inner: &Arc<Inner<F>>, root: Pfn) -> Option<Self> {
        let mut index = None;
        inner.spaces.lock().take(1, |number| index = Some(number));
        let index = index?;
        inner.tables.index_of(root);
        Some(Mmu { inner: Arc::clone(inner), root, tag: SpaceTag::new(index), index })
    }

    /// The root table.
    pub fn root(&self) -> Pfn {
        self.root
    }

    /// Returns the tag of the space's TLB entries.
    pub(crate) fn tag(&self) -> SpaceTag {
        self.tag
    }

    /// Returns true if this space belongs to the machine of `inner`.
    pub(crate) fn is_of(&self, inner: &Arc<Inner<F>>) -> bool {
        Arc::ptr_eq(&self.inner, inner)
    }

    /// Marks a CPU as running this space. The caller holds the CPU's lock.
    pub(crate) fn mark(&self, cpu: usize) {
        // SeqCst: a full barrier before the walks that follow; pairs with the fence in `marked`.
        self.slot().cpus[cpu / 64].fetch_or(1 << (cpu % 64), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Returns true if a CPU other than the CPU of the calling thread may hold translations of this space.
    pub(crate) fn runs_elsewhere(&self) -> bool {
        let own = self.inner.current_cpu();
        self.marked().any(|cpu| Some(cpu) != own)
    }

    /// Runs `f` if the calling thread's CPU runs this space. Holds that CPU's lock during `f`, so that
    /// flushes wait.
    pub(crate) fn walk<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        let tlb = self.inner.cpus[self.inner.current_cpu()?].lock();
        (tlb.active == Some(self.tag)).then(f)
    }

    /// Removes the translations that `what` covers from every CPU.
    pub(crate) fn flush(&self, what: &Flush) {
        let kind = if what.all { FlushKind::All } else { FlushKind::Range };
        self.inner.count_flush(kind, what.tables_freed);
        let own = self.inner.current_cpu();
        host::interrupt(|| self.marked().filter(move |cpu| Some(*cpu) != own));
        for number in self.marked() {
            let cpu = &self.inner.cpus[number];
            let mut tlb = cpu.lock();
            if F::BREAK_BEFORE_MAKE && self.inner.config.oracles {
                self.assert_nothing_made(&tlb, what, number);
            }
            let dropped = if what.all {
                tlb.flush_space(self.tag, what.tables_freed)
            } else {
                tlb.flush_range::<F>(self.tag, what)
            };
            tlb.counts.entries_flushed += dropped as u64;
            if own == Some(number) {
                tlb.counts.visits_local += 1;
            } else {
                tlb.counts.visits_remote += 1;
            }
            if what.all && what.tables_freed {
                self.unmark_idle(&tlb, number);
            }
        }
    }

    /// Checks that the tables have no entry of another size than an entry that the flush drops from the TLB:
    /// the old entry must be flushed before the new one is written. The caller holds the lock of the TLB, so
    /// no table is freed through which a cached entry was found.
    #[cold]
    fn assert_nothing_made(&self, tlb: &Tlb, what: &Flush, number: usize) {
        let range = if what.all { 0..u64::MAX } else { what.start.get()..what.end.get() };
        for (address, level, is_leaf) in tlb.cached(self.tag, range) {
            if self.has_other_size(VirtAddr::new(address), level, is_leaf) {
                oracle::made_before_break(address, level, number);
            }
        }
    }

    /// Returns true if the tables have an entry of another size for an address whose entry of `level` is
    /// cached: a leaf above the level, a leaf instead of a cached table, or a table instead of a cached leaf.
    fn has_other_size(&self, address: VirtAddr, level: Level, is_leaf: bool) -> bool {
        let (mut table, mut at) = (self.root, F::ROOT);
        loop {
            // Acquire: pairs with the release of the store that installed the entry.
            let raw = self.inner.table(table).entry(address.index(at)).load(Acquire);
            if !F::is_cached(raw) {
                return false;
            }
            if at == level || F::is_leaf(raw, at) {
                return at != level || F::is_leaf(raw, at) != is_leaf;
            }
            (table, at) = (F::pfn(raw), at.below());
        }
    }

    /// Clears the mark of a CPU if the CPU does not run the space. The caller has flushed all translations of
    /// the space from this CPU.
    fn unmark_idle(&self, tlb: &Tlb, number: usize) {
        if tlb.active != Some(self.tag) {
            self.slot().cpus[number / 64].fetch_and(!(1 << (number % 64)), Ordering::SeqCst);
        }
    }

    /// The marked CPUs, ascending.
    fn marked(&self) -> impl Iterator<Item = usize> {
        // SeqCst: a full barrier after the change of the tables and before the read of the mask; pairs with
        // `mark`.
        fence(Ordering::SeqCst);
        let words = self.slot().cpus.each_ref().map(|word| word.load(Ordering::SeqCst));
        words.into_iter().enumerate().flat_map(|(n, word)| bits(word).map(move |bit| n * 64 + bit))
    }

    fn slot(&self) -> &SpaceSlot {
        match self.inner.space_slots.get(self.index) {
            Some(slot) => slot,
            None => unreachable!("a slot's index comes from the bitmap of the same length"),
        }
    }
}

impl<F: Format> fmt::Debug for Mmu<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mmu {{ root: {:?}, cpus: {:?} }}", self.root, self.marked().collect::<Vec<_>>())
    }
}

impl<F: Format> Drop for Mmu<F> {
    /// Flushes the space from all CPUs, because its tag can be reused for another space. A CPU that still
    /// runs the space runs no space afterwards.
    fn drop(&mut self) {
        for number in self.marked() {
            let cpu: &CpuShared = &self.inner.cpus[number];
            let mut tlb = cpu.lock();
            tlb.flush_space(self.tag, true);
            if tlb.active == Some(self.tag) {
                tlb.active = None;
            }
            self.unmark_idle(&tlb, number);
        }
        let given = self.inner.spaces.lock().give([self.index].into_iter());
        debug_assert!(given.is_ok(), "a space's slot was freed twice");
    }
}
