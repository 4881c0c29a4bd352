#![expect(unsafe_code, reason = "unlinking a table that is in use breaks the contract of `TableMemory`")]

//! Unlinks the tables of a range, and checks whether a range has tables.
//!
//! Unlinking takes no lock, because the caller has made the range unreachable for faults and for the reverse
//! map; only hardware may still read there. Tables that tasks can still find must be reclaimed (`reclaim.rs`)
//! or unshared (`share.rs`) instead. The [`Gather`] frees the tables after the flush. Munmap, exit and
//! collapsing use this file; `tests/tables.rs` tests the bounds of the unlinked tables.

use crate::addr::{Level, Pfn, VaRange, VirtAddr};
use crate::format::{Format, Kind};
use crate::gather::{Gather, Tlb};
use crate::memory::{Table, TableMemory};
use crate::page_table::PageTable;
use crate::table::StaleTranslations;
use freehold_sync::atomic::{CHECKED, Ordering};

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Unlinks every table that overlaps `range` and whose whole span lies within `floor..ceiling`. Hands
    /// each table to `gather`, which frees it after the flush. The root stays.
    ///
    /// `floor` is the end of the mapping before the range, or 0. `ceiling` is the start of the mapping after
    /// the range, or the end of user space. So a table that a neighbour also uses is not unlinked.
    ///
    /// Every entry of `range` must be zapped, and no other mapping may lie within `floor..ceiling`.
    ///
    /// # Safety
    ///
    /// Until the tables are freed, no task uses or finds a table whose span lies within `floor..ceiling`. The
    /// following must hold:
    ///
    /// * No fault is possible there: no VMA can be found or created there.
    /// * The reverse map does not lead to the range.
    /// * No [`EntryTable`](crate::EntryTable) of the range is held, and no other call unlinks there.
    /// * Only hardware, and walkers that a flush with `tables_freed` waits for, may be reading there.
    /// * No table within `floor..ceiling` is [shared](Self::share).
    /// * `memory` is the same memory in every call on these tables, and the `Tlb` of `gather` frees tables to
    ///   this memory.
    ///
    /// # Panics
    /// Panics in test builds if an unlinked table is not empty (hazard C-3).
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

    /// Returns true if `range` has no table of the lowest level, no leaf and no marker. Cheap, and takes no
    /// lock. The result `true` is exact if the caller's locks exclude installs in the range. The result may
    /// be `false` if the range has tables without entries.
    #[inline]
    pub fn is_empty_range(&self, memory: &M, range: VaRange) -> bool {
        is_empty::<F, M>(memory, self.root(), F::ROOT, Self::clip(range))
    }
}

/// The state of one call of [`PageTable::unlink_tables`].
struct Unlink<'g, 'a, F, M, T: Tlb, const FRAMES: usize> {
    memory: &'g M,
    /// The addresses within which the whole span of every unlinked table lies.
    bounds: VaRange,
    gather: &'g mut Gather<'a, T, FRAMES>,
    format: core::marker::PhantomData<F>,
}

impl<F: Format, M: TableMemory, T: Tlb, const FRAMES: usize> Unlink<'_, '_, F, M, T, FRAMES> {
    /// Unlinks the tables below one upper table over a part of the range, lowest levels first.
    fn below(&mut self, table: Pfn, level: Level, range: VaRange) {
        let memory = self.memory;
        let mut rest = range;
        while !rest.is_empty() {
            let (part, next) = rest.split_at_entry(level);
            rest = next;
            let entry = memory.table(table).entry(part.start().index(level));
            // Acquire: pairs with the release that linked the table, which is read below.
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
                // Release: pairs with the acquire of walks. A walk that sees the empty slot also sees this
                // gather counted (hazard C-4). A plain store without a lock is enough: the caller promises
                // that no other task writes here.
                entry.store(0, Ordering::Release);
                debug_assert_eq!(
                    memory.table_meta(pfn).shares.load(Ordering::Relaxed),
                    0,
                    "the table is shared"
                );
                // Not checked in builds of a model checker, which may switch threads at each load. In those
                // builds, the memory of the tests checks freed tables.
                debug_assert!(CHECKED || memory.table(pfn).is_zero(), "the table of {span:?} is not empty");
                self.gather.add_table(pfn, span, level);
            }
        }
    }
}

/// Returns the part of a range within one table that begins at the first non-empty entry. Skips empty entries
/// fast, because the upper tables of an exiting process are nearly empty.
#[inline]
fn from_first_used(table: &Table, level: Level, range: VaRange) -> VaRange {
    if range.is_empty() { range } else { skip_empty(table, level, range) }
}

/// Does the work of [`from_first_used`] for a range that is not empty.
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

/// Does the work of [`PageTable::is_empty_range`] below one upper table.
fn is_empty<F: Format, M: TableMemory>(memory: &M, table: Pfn, level: Level, range: VaRange) -> bool {
    let mut rest = range;
    while !rest.is_empty() {
        let (part, next) = rest.split_at_entry(level);
        rest = next;
        // Acquire: pairs with the release that linked the table, which is read below.
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
