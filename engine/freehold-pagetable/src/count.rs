//! Counts the page tables of an address space: [`PageTable::count_tables`] and [`TableCount`], for VmPTE in
//! `/proc`.
//!
//! The caller counts the ranges of its VMAs one after another, in ascending order, so a table that two ranges
//! share is counted once. Entries are read without the locks of their tables. Each table of 2 MiB entries is
//! locked briefly, to count the tables that are deposited there. So the result is exact only if no task
//! installs or frees tables. The test `every_page_table_except_the_root_counts_once` of `freehold-tests`
//! compares the result with the tables of a process.

use crate::addr::{Level, Pfn, VaRange};
use crate::format::{Format, Kind};
use crate::memory::TableMemory;
use crate::page_table::PageTable;
use crate::table::PmdGuard;
use freehold_sync::atomic::Ordering;

/// Number of levels whose tables are counted. Linux counts the tables of the same levels as VmPTE. The root
/// and a fifth level are not counted.
const COUNTED: usize = 3;

/// The number of tables counted so far. Ranges are counted in ascending order. A table over several ranges is
/// counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCount {
    tables: u64,
    /// For each level, the end of the span of the last table that was counted.
    counted_to: [u64; COUNTED],
}

impl TableCount {
    /// Returns the number of tables counted.
    pub fn get(&self) -> u64 {
        self.tables
    }

    /// Counts the table of `level` over `span`, unless it is already counted. Returns true if this call
    /// counted the table.
    fn add(&mut self, level: Level, span: VaRange) -> bool {
        let Some(counted_to) = self.counted_to.get_mut(level as usize) else { return false };
        let is_new = span.start().get() >= *counted_to;
        if is_new {
            *counted_to = span.end().get();
            self.tables += 1;
        }
        is_new
    }
}

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Adds the tables over `range` to `count`, including the tables [deposited](crate::EntryGuard::deposit)
    /// for splitting leaves. `range` lies behind all ranges that were counted before.
    ///
    /// The caller holds the mmap lock, a VMA's lock or a reverse-mapping lock over the range. A table that
    /// another task installs during the call may be counted or missed.
    pub fn count_tables(&self, memory: &M, range: VaRange, count: &mut TableCount) {
        self.count_below(memory, (self.root(), F::ROOT), Self::clip(range), count);
    }

    /// Adds the tables below one upper table. `range` lies within the span of that table.
    fn count_below(&self, memory: &M, (table, level): (Pfn, Level), range: VaRange, count: &mut TableCount) {
        let mut rest = range;
        while !rest.is_empty() {
            let (part, next) = rest.split_at_entry(level);
            rest = next;
            // Acquire: pairs with the release that linked the table, whose entries are read below.
            let raw = memory.table(table).entry(part.start().index(level)).load(Ordering::Acquire);
            let Kind::Table { pfn } = F::kind(raw, level) else { continue };
            let below = level.below();
            if count.add(below, VaRange::entry(part.start(), level)) && below == Level::Pmd {
                let guard: PmdGuard<'_, F, M> =
                    PageTable::<F, M>::entry_table(memory, pfn, part.start(), None).lock();
                count.tables += guard.deposited();
            }
            if below > Level::Pte {
                self.count_below(memory, (pfn, below), part, count);
            }
        }
    }
}
