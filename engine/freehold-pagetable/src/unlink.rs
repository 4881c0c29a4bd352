#![expect(unsafe_code, reason = "unlinking a table that somebody still uses breaks the contract of memory")]

//! Unlinking tables, and asking whether there are any.

use crate::addr::{Level, Pfn, VaRange, VirtAddr};
use crate::format::{Format, Kind};
use crate::gather::{Gather, Tlb};
use crate::memory::{Table, TableMemory};
use crate::page_table::PageTable;
use crate::table::StaleTranslations;
use freehold_sync::atomic::{CHECKED, Ordering};

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Unlinks every table that overlaps `range` and whose whole span lies within `floor..ceiling`, and hands
    /// it to `gather`, which frees it after the flush. The root stays.
    ///
    /// `floor` is the end of the mapping before the range, or 0; `ceiling` the start of the one after, or the
    /// end of user space: a table that a neighbour uses as well stays.
    ///
    /// Needs: every entry of `range` was zapped; no other mapping lies within `floor..ceiling`.
    ///
    /// # Safety
    ///
    /// Until the tables are freed, nobody uses or finds a table whose span lies within
    /// `floor..ceiling`: no fault is possible there (no VMA can be found there, nor made), the
    /// range cannot be reached through a reverse mapping, no [`EntryTable`](crate::EntryTable) of it is held,
    /// and no other call unlinks there. Only hardware, and walkers that a flush with `tables_freed` waits
    /// for, may be reading. No table within `floor..ceiling` is [shared](Self::share). `memory` is the one
    /// that every call on these tables has named, and `gather`'s `Tlb` frees tables to it.
    ///
    /// # Panics
    /// In test builds, when an unlinked table is not empty (hazard C-3).
    pub unsafe fn unlink_tables<T: Tlb, const FRAMES: usize>(
        &self,
        memory: &M,
        range: VaRange,
        floor: VirtAddr,
        ceiling: VirtAddr,
        gather: &mut Gather<'_, T, FRAMES>,
    ) {
        let range = Self::clip(range);
        if floor.get() >= ceiling.get() || range.is_empty() {
            return;
        }
        let bounds = VaRange::new(floor, ceiling);
        debug_assert!(bounds.covers(range), "{range:?} is not within {bounds:?}");
        Unlink::<F, _, _, FRAMES> { memory, bounds, gather, format: core::marker::PhantomData }.below(
            self.root(),
            F::ROOT,
            range,
        );
    }

    /// Whether nothing hangs below `range`: no table of the lowest level, no leaf, no marker. Cheap, and
    /// takes no lock. `true` is exact as far as the caller's locks keep others from installing there;
    /// `false` may be said of a range with tables but nothing in them.
    #[inline]
    pub fn is_empty_range(&self, memory: &M, range: VaRange) -> bool {
        is_empty::<F, M>(memory, self.root(), F::ROOT, Self::clip(range))
    }
}

struct Unlink<'g, 'a, F, M, T: Tlb, const FRAMES: usize> {
    memory: &'g M,
    bounds: VaRange,
    gather: &'g mut Gather<'a, T, FRAMES>,
    format: core::marker::PhantomData<F>,
}

impl<F: Format, M: TableMemory, T: Tlb, const FRAMES: usize> Unlink<'_, '_, F, M, T, FRAMES> {
    fn below(&mut self, table: Pfn, level: Level, range: VaRange) {
        let memory = self.memory;
        let mut rest = range;
        while !rest.is_empty() {
            let (part, next) = rest.split_at_entry(level);
            rest = next;
            let entry = memory.table(table).entry(part.start().index(level));
            // Acquire, pairs with the release that linked the table: we read it below.
            let raw = entry.load(Ordering::Acquire);
            let Kind::Table { pfn } = F::kind(raw, level) else {
                debug_assert!(raw == 0, "an entry at {part:?} was not zapped: {raw:#x}");
                rest = from_first_used(memory.table(table), level, rest);
                continue;
            };
            if level.below() > Level::Pte {
                self.below(pfn, level.below(), part);
            }
            let span = VaRange::entry(part.start(), level);
            if self.bounds.covers(span) {
                self.gather.begin_change();
                // Release, pairs with the acquire of walks: one that sees the empty slot also sees this
                // gather counted (hazard C-4). No lock: nobody else may write here, as our caller promises,
                // and a compare-and-swap would guard against nothing.
                entry.store(0, Ordering::Release);
                debug_assert_eq!(memory.table_meta(pfn).shares.load(Ordering::Relaxed), 0, "a shared table");
                // A checker may switch threads at each load. Its memory looks at tables that are freed.
                debug_assert!(CHECKED || memory.table(pfn).is_zero(), "the table of {span:?} is not empty");
                self.gather.add_table(pfn, span);
            }
        }
    }
}

/// What is left of a range, which one table has entries for, from the first that is not empty: an upper table
/// of a process that ends is nearly empty.
#[inline]
fn from_first_used(table: &Table, level: Level, range: VaRange) -> VaRange {
    if range.is_empty() { range } else { skip_empty(table, level, range) }
}

#[inline(never)]
fn skip_empty(table: &Table, level: Level, range: VaRange) -> VaRange {
    let (first, last) = (range.start().index(level), VirtAddr::new(range.end().get() - 1).index(level));
    match table.first_used(first, last) {
        Some(at) if at == first => range,
        Some(at) => {
            let start = range.start().span_down(level).get() + (at - first) as u64 * level.span();
            VaRange::new(VirtAddr::new(start), range.end())
        }
        None => VaRange::new(range.end(), range.end()),
    }
}

fn is_empty<F: Format, M: TableMemory>(memory: &M, table: Pfn, level: Level, range: VaRange) -> bool {
    let mut rest = range;
    while !rest.is_empty() {
        let (part, next) = rest.split_at_entry(level);
        rest = next;
        // Acquire, pairs with the release that linked the table: we read it below.
        let raw = memory.table(table).entry(part.start().index(level)).load(Ordering::Acquire);
        match F::kind(raw, level) {
            Kind::None => rest = from_first_used(memory.table(table), level, rest),
            Kind::Table { pfn } if level > Level::Pmd && part != VaRange::entry(part.start(), level) => {
                if !is_empty::<F, M>(memory, pfn, level.below(), part) {
                    return false;
                }
            }
            Kind::Table { .. } | Kind::Leaf { .. } | Kind::Marker { .. } => return false,
        }
    }
    true
}
