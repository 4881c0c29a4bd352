//! The one walker over a range. What it does where it meets nothing, a table or a large leaf is decided
//! beforehand, by the constants of its [`Visitor`].

use crate::addr::{Level, Pfn, VaRange, VirtAddr};
use crate::format::{Format, Kind};
use crate::leaf::{LeafGuard, LockedTable};
use crate::memory::{OutOfTables, TableMemory};
use crate::page_table::{PageTable, TableError};
use crate::table::PteGuard;
use core::ops::ControlFlow;
use freehold_sync::atomic::{AtomicU64, Ordering};

/// What to do about a span without a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbsentPolicy {
    /// Go on behind it.
    Skip,
    /// Tell the visitor.
    Report,
    /// Make the tables and visit them. The caller may install: it holds the mmap lock or the VMA's.
    Make,
}

/// What to do about a leaf above 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LargeLeafPolicy {
    /// Show it to the visitor, whole, however little of it is in the range.
    Visit,
    /// Show it if the range covers it; otherwise split it and visit the parts.
    SplitPart,
    /// Split it and visit the parts.
    Split,
    /// Go on behind it.
    Skip,
}

/// The receiver of a walk: it is shown the tables of a range.
pub trait Visitor<F: Format, M: TableMemory> {
    /// What to do about a span without a table.
    const ABSENT: AbsentPolicy = AbsentPolicy::Skip;
    /// What to do about a leaf above 4 KiB.
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::SplitPart;

    /// Called before each `table` and `large`, now and then more than once, with the part of the range inside
    /// it, when the walk holds no table's lock: the place to flush.
    #[inline]
    fn unlocked(&mut self, range: VaRange) {
        let _ = range;
    }

    /// A table of the lowest level, locked, and the part of the range inside it.
    fn table(&mut self, table: PteGuard<'_, F, M>, range: VaRange) -> ControlFlow<()>;

    /// A leaf or a marker above the lowest level, its table locked, and the part of the range inside it.
    fn large(&mut self, leaf: LeafGuard<'_, F, M>, range: VaRange) -> ControlFlow<()>;

    /// A part of the range below which nothing hangs; one call for each empty entry of an upper table.
    fn absent(&mut self, range: VaRange) -> ControlFlow<()> {
        let _ = range;
        ControlFlow::Continue(())
    }
}

/// How far a walk came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Walked {
    /// To the end.
    All,
    /// The visitor stopped it in the part that starts here.
    Stopped(VirtAddr),
}

/// Why a walk ends early.
enum WalkEnd {
    Visitor(VirtAddr),
    OutOfTables,
}

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Shows `visitor` what hangs below `range`, ascending, one locked table at a time. `range` may start
    /// and end at any page.
    ///
    /// The caller holds the mmap lock, a VMA's lock or a reverse-mapping lock over the range; a table that
    /// somebody else installs meanwhile may be visited or missed.
    ///
    /// # Errors
    /// No memory for a table, where the visitor makes or splits. What was visited before stays visited.
    ///
    /// # Panics
    /// When `range` is not of whole pages; nothing was visited.
    pub fn walk<V: Visitor<F, M>>(
        &self,
        memory: &M,
        range: VaRange,
        visitor: &mut V,
    ) -> Result<Walked, OutOfTables> {
        assert!(range.is_of_pages(), "a range of parts of pages");
        let walk = Walk { tables: self, memory };
        match walk.whole(Self::clip(range), visitor) {
            Ok(()) => Ok(Walked::All),
            Err(WalkEnd::Visitor(at)) => Ok(Walked::Stopped(at)),
            Err(WalkEnd::OutOfTables) => Err(OutOfTables),
        }
    }
}

struct Walk<'a, F, M> {
    tables: &'a PageTable<F, M>,
    memory: &'a M,
}

impl<'a, F: Format, M: TableMemory> Walk<'a, F, M> {
    /// All of the range.
    #[inline]
    fn whole<V: Visitor<F, M>>(&self, range: VaRange, visitor: &mut V) -> Result<(), WalkEnd> {
        if let Some((entry, table)) = self.only_table(range)
            && let Some(flow) = self.leaves(entry, table, range, visitor)
        {
            return stop_at(range, flow);
        }
        self.below(self.tables.root(), F::ROOT, range, visitor)
    }

    /// The one table of the lowest level that the range lies in, as most ranges do, and its entry: reached in
    /// a loop, which costs less than the recursion. `None`: there is more, or another thing.
    #[inline]
    fn only_table(&self, range: VaRange) -> Option<(&'a AtomicU64, Pfn)> {
        if !range.is_below_entry(Level::Pmd) {
            return None;
        }
        let (mut table, mut level) = (self.tables.root(), F::ROOT);
        loop {
            let entry = self.memory.table(table).entry(range.start().index(level));
            // Acquire: as in `entry`, which decides about everything else by a reading of its own.
            match F::kind(entry.load(Ordering::Acquire), level) {
                Kind::Table { pfn } if level == Level::Pmd => return Some((entry, pfn)),
                Kind::Table { pfn } => (table, level) = (pfn, level.below()),
                Kind::None | Kind::Leaf { .. } | Kind::Marker { .. } => return None,
            }
        }
    }

    /// The part of the range below one table of an upper level.
    fn below<V: Visitor<F, M>>(
        &self,
        table: Pfn,
        level: Level,
        range: VaRange,
        visitor: &mut V,
    ) -> Result<(), WalkEnd> {
        let entries = self.memory.table(table);
        let mut rest = range;
        while !rest.is_empty() {
            let (part, next) = rest.split_at_entry(level);
            rest = next;
            self.entry(entries.entry(part.start().index(level)), level, part, visitor)?;
        }
        Ok(())
    }

    /// The part below one entry. What is done is decided by one reading of the entry; where a lock is
    /// needed, by one reading under the lock; and when the two differ we look again (hazard C-62).
    fn entry<V: Visitor<F, M>>(
        &self,
        entry: &'a AtomicU64,
        level: Level,
        part: VaRange,
        visitor: &mut V,
    ) -> Result<(), WalkEnd> {
        loop {
            // Acquire, pairs with the release that installed the entry: a table behind it is initialised.
            match F::kind(entry.load(Ordering::Acquire), level) {
                Kind::None if V::ABSENT == AbsentPolicy::Make => self.make(entry, level)?,
                Kind::None if V::ABSENT == AbsentPolicy::Report => {
                    return stop_at(part, visitor.absent(part));
                }
                Kind::None => return Ok(()),
                Kind::Table { pfn } if level == Level::Pmd => {
                    if let Some(flow) = self.leaves(entry, pfn, part, visitor) {
                        return stop_at(part, flow);
                    }
                }
                Kind::Table { pfn } => return self.below(pfn, level.below(), part, visitor),
                Kind::Leaf { .. } | Kind::Marker { .. } => {
                    if self.large(level, part, visitor)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Shows the part in one table of the lowest level, and returns whether to go on. `None`: the table was
    /// [reclaimed](crate::reclaim), and the entry has changed.
    fn leaves<V: Visitor<F, M>>(
        &self,
        entry: &'a AtomicU64,
        pfn: Pfn,
        part: VaRange,
        visitor: &mut V,
    ) -> Option<ControlFlow<()>> {
        visitor.unlocked(part);
        let table = PageTable::<F, M>::entry_table::<0>(self.memory, pfn, part.start(), Some((entry, pfn)));
        // As `lock_linked`, which would move the guard.
        let table = table.lock_any();
        table.is_linked().then(|| visitor.table(table, part))
    }

    // Apart from the walk, as `large` is: it is rare, and what it needs on the stack every level of the walk
    // would have.
    #[inline(never)]
    fn make(&self, entry: &AtomicU64, level: Level) -> Result<(), WalkEnd> {
        match PageTable::<F, M>::install_table(self.memory, entry, level) {
            Err(TableError::OutOfTables) => Err(WalkEnd::OutOfTables),
            // Made, or somebody else put something there: the caller looks again.
            Ok(_) | Err(TableError::Huge(_) | TableError::Marker(_)) => Ok(()),
        }
    }

    /// A leaf or marker was seen above the lowest level. Returns whether the part is done; otherwise the
    /// entry has changed.
    // Not inlined: see `make`.
    #[inline(never)]
    fn large<V: Visitor<F, M>>(&self, level: Level, part: VaRange, visitor: &mut V) -> Result<bool, WalkEnd> {
        if V::LARGE == LargeLeafPolicy::Skip {
            return Ok(true);
        }
        visitor.unlocked(part);
        let address = part.start();
        let split = match V::LARGE {
            LargeLeafPolicy::Split => true,
            LargeLeafPolicy::SplitPart => part != VaRange::entry(address, level),
            LargeLeafPolicy::Visit | LargeLeafPolicy::Skip => false,
        };
        let tables = self.tables;
        let table = if level == Level::Pmd {
            let Some(table) = tables.pmd_table(self.memory, address) else { return Ok(false) };
            if split && table.split(address).map_err(|_| WalkEnd::OutOfTables)? {
                return Ok(false);
            }
            LockedTable::Pmd(table.lock())
        } else {
            let Some(table) = tables.pud_table(self.memory, address) else { return Ok(false) };
            if split && table.split(address).map_err(|_| WalkEnd::OutOfTables)? {
                return Ok(false);
            }
            LockedTable::Pud(table.lock())
        };
        let leaf = LeafGuard::new(table, address);
        match leaf.kind() {
            Kind::None | Kind::Table { .. } => Ok(false),
            // A leaf that appeared after `split` found none has to be split first.
            Kind::Leaf { .. } if split => Ok(false),
            Kind::Leaf { .. } | Kind::Marker { .. } => {
                stop_at(part, visitor.large(leaf, part)).map(|()| true)
            }
        }
    }
}

fn stop_at(part: VaRange, flow: ControlFlow<()>) -> Result<(), WalkEnd> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(WalkEnd::Visitor(part.start())),
    }
}
