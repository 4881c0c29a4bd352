//! The walker that all operations on ranges use: [`PageTable::walk`] calls a [`Visitor`] with each locked
//! table and each large leaf. The constants of the visitor decide what the walk does at an empty span or at a
//! large leaf that the range covers only in part. A new policy is a variant of [`AbsentPolicy`] or
//! [`LargeLeafPolicy`], with its case in `Walk::entry` or `Walk::large`.
//!
//! Three rules must hold. The walk holds one table lock at a time, and none while it calls
//! [`Visitor::unlocked`], where a visitor flushes. An entry that was read without the lock is read again
//! under the lock; if the two values differ, the walk starts over at this entry (hazard C-62). A table of the
//! lowest level may have been [reclaimed](crate::reclaim) before it is locked.
//!
//! The caller's locks must keep upper tables linked; see the [crate's protocol](crate#the-protocol).
//! `tests/walker_model.rs` compares walks with a model.

use crate::addr::{Level, Pfn, VaRange, VirtAddr};
use crate::format::{Format, Kind};
use crate::gather::Tlb;
use crate::leaf::{LeafGuard, LockedTable};
use crate::memory::{OutOfTables, TableMemory};
use crate::page_table::{PageTable, TableError};
use crate::table::PteGuard;
use core::ops::ControlFlow;
use freehold_sync::atomic::{AtomicU64, Ordering};

/// The action of a walk at a span without a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbsentPolicy {
    /// Skips the span.
    Skip,
    /// Reports the span to the visitor.
    Report,
    /// Creates the tables and visits them. The caller must hold the mmap lock or the VMA's lock, as for an
    /// install.
    Make,
}

/// The action of a walk at a leaf above 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LargeLeafPolicy {
    /// Shows the whole leaf to the visitor, even if the range covers only a part of it.
    Visit,
    /// Shows the leaf if the range covers it. Otherwise splits it and visits the parts.
    SplitPart,
    /// Splits the leaf and visits the parts.
    Split,
    /// Skips the leaf.
    Skip,
}

/// The receiver of a walk, which is called with the tables of a range.
pub trait Visitor<F: Format, M: TableMemory> {
    /// The action at a span without a table.
    const ABSENT: AbsentPolicy = AbsentPolicy::Skip;
    /// The action at a leaf above 4 KiB.
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::SplitPart;

    /// Called before each `table` and `large`, sometimes more than once, with the part of the range inside
    /// the table or leaf. The walk holds no table lock during the call, so a visitor flushes here.
    #[inline]
    fn unlocked(&mut self, range: VaRange) {
        let _ = range;
    }

    /// Called with a locked table of the lowest level, and the part of the range inside it.
    fn table(&mut self, table: PteGuard<'_, F, M>, range: VaRange) -> ControlFlow<()>;

    /// Called with a leaf or a marker above the lowest level, with its table locked, and the part of the
    /// range inside it.
    fn large(&mut self, leaf: LeafGuard<'_, F, M>, range: VaRange) -> ControlFlow<()>;

    /// Called with a part of the range that has no table. There is one call for each empty entry of an upper
    /// table.
    fn absent(&mut self, range: VaRange) -> ControlFlow<()> {
        let _ = range;
        ControlFlow::Continue(())
    }
}

/// The end of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Walked {
    /// The walk reached the end of the range.
    All,
    /// The visitor stopped the walk in the part that starts at this address.
    Stopped(VirtAddr),
}

/// Reasons why a walk ends early.
enum WalkEnd {
    /// The visitor stopped the walk, in the part that starts at this address.
    Visitor(VirtAddr),
    /// The walk needed a table, and there is no memory.
    OutOfTables,
}

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Calls `visitor` for everything in `range`, in ascending order, with one locked table at a time.
    /// `range` may start and end at any page.
    ///
    /// The caller holds the mmap lock, a VMA's lock or a reverse-mapping lock over the range. A table that
    /// another task installs during the walk may be visited or missed.
    ///
    /// # Errors
    /// Fails with [`OutOfTables`] if the walk needs a table, to create or to split, and there is no memory.
    /// The parts visited before stay visited.
    ///
    /// # Panics
    /// Panics if `range` does not consist of whole pages. Nothing is visited then.
    pub fn walk<T: Tlb, V: Visitor<F, M>>(
        &self,
        memory: &M,
        tlb: &T,
        range: VaRange,
        visitor: &mut V,
    ) -> Result<Walked, OutOfTables> {
        assert!(range.is_of_pages(), "the range contains parts of pages");
        let walk = Walk { tables: self, memory, tlb };
        match walk.whole(Self::clip(range), visitor) {
            Ok(()) => Ok(Walked::All),
            Err(WalkEnd::Visitor(at)) => Ok(Walked::Stopped(at)),
            Err(WalkEnd::OutOfTables) => Err(OutOfTables),
        }
    }
}

/// The tables that one call of [`PageTable::walk`] visits.
struct Walk<'a, F, M, T> {
    tables: &'a PageTable<F, M>,
    memory: &'a M,
    /// The TLBs from which [splits](EntryTable::split) flush leaves.
    tlb: &'a T,
}

impl<'a, F: Format, M: TableMemory, T: Tlb> Walk<'a, F, M, T> {
    /// Walks the whole range.
    #[inline]
    fn whole<V: Visitor<F, M>>(&self, range: VaRange, visitor: &mut V) -> Result<(), WalkEnd> {
        if let Some((entry, table)) = self.only_table(range)
            && let Some(flow) = self.leaves(entry, table, range, visitor)
        {
            return stop_at(range, flow);
        }
        self.below(self.tables.root(), F::ROOT, range, visitor)
    }

    /// Returns the table of the lowest level that contains the whole range, and the entry that points to the
    /// table. This is the most frequent case. A loop finds the table at a lower cost than the recursion.
    /// Returns `None` if the range is larger than one table or there is no table.
    #[inline]
    fn only_table(&self, range: VaRange) -> Option<(&'a AtomicU64, Pfn)> {
        if !range.is_below_entry(Level::Pmd) {
            return None;
        }
        let (mut table, mut level) = (self.tables.root(), F::ROOT);
        loop {
            let entry = self.memory.table(table).entry(range.start().index(level));
            // Acquire: as in `entry`. If this function returns `None`, `entry` decides by its own load.
            match F::kind(entry.load(Ordering::Acquire), level) {
                Kind::Table { pfn } if level == Level::Pmd => return Some((entry, pfn)),
                Kind::Table { pfn } => (table, level) = (pfn, level.below()),
                Kind::None | Kind::Leaf { .. } | Kind::Marker { .. } => return None,
            }
        }
    }

    /// Walks the part of the range in one table of an upper level. A mapping may have very many upper tables
    /// without tables of the lowest level.
    fn below<V: Visitor<F, M>>(
        &self,
        table: Pfn,
        level: Level,
        range: VaRange,
        visitor: &mut V,
    ) -> Result<(), WalkEnd> {
        M::cond_resched();
        let entries = self.memory.table(table);
        let mut rest = range;
        while !rest.is_empty() {
            let (part, next) = rest.split_at_entry(level);
            rest = next;
            self.entry(entries.entry(part.start().index(level)), level, part, visitor)?;
        }
        Ok(())
    }

    /// Walks the part of the range in one entry. One load of the entry decides what is done. If the action
    /// needs a lock, the entry is loaded again under the lock. If the two loads differ, the walk starts over
    /// at this entry (hazard C-62).
    fn entry<V: Visitor<F, M>>(
        &self,
        entry: &'a AtomicU64,
        level: Level,
        part: VaRange,
        visitor: &mut V,
    ) -> Result<(), WalkEnd> {
        loop {
            // Acquire: pairs with the release that installed the entry, so a table behind it is initialised.
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

    /// Shows the part in one table of the lowest level to the visitor, and returns the visitor's result.
    /// Returns `None` if the entry has changed because the table was [reclaimed](crate::reclaim).
    fn leaves<V: Visitor<F, M>>(
        &self,
        entry: &'a AtomicU64,
        pfn: Pfn,
        part: VaRange,
        visitor: &mut V,
    ) -> Option<ControlFlow<()>> {
        visitor.unlocked(part);
        let table = PageTable::<F, M>::entry_table::<0>(self.memory, pfn, part.start(), Some((entry, pfn)));
        // These two lines do the work of `lock_linked`. A call of `lock_linked` would move the guard in
        // memory.
        let table = table.lock_any();
        table.is_linked().then(|| visitor.table(table, part))
    }

    // Not inlined, like `large`: the call is rare, and inlining would add its stack space to every level of
    // the walk.
    /// Links a table into an empty entry, unless another task fills the entry first. The caller loads the
    /// entry again.
    #[inline(never)]
    fn make(&self, entry: &AtomicU64, level: Level) -> Result<(), WalkEnd> {
        match PageTable::<F, M>::install_table(self.memory, self.tables.root(), entry, level) {
            Err(TableError::OutOfTables) => Err(WalkEnd::OutOfTables),
            // The table was created, or another task filled the entry: the caller loads the entry again.
            Ok(_) | Err(TableError::Huge(_) | TableError::Marker(_)) => Ok(()),
        }
    }

    /// Handles a leaf or marker that was seen above the lowest level. Returns true if the part is done, and
    /// false if the entry has changed.
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
            if split && table.split(self.tlb, tables.root(), address).map_err(|_| WalkEnd::OutOfTables)? {
                return Ok(false);
            }
            LockedTable::Pmd(table.lock())
        } else {
            let Some(table) = tables.pud_table(self.memory, address) else { return Ok(false) };
            if split && table.split(self.tlb, tables.root(), address).map_err(|_| WalkEnd::OutOfTables)? {
                return Ok(false);
            }
            LockedTable::Pud(table.lock())
        };
        let leaf = LeafGuard::new(table, address);
        match leaf.kind() {
            Kind::None | Kind::Table { .. } => Ok(false),
            // The leaf appeared after `split` had found no leaf, so it must be split first.
            Kind::Leaf { .. } if split => Ok(false),
            Kind::Leaf { .. } | Kind::Marker { .. } => {
                stop_at(part, visitor.large(leaf, part)).map(|()| true)
            }
        }
    }
}

/// Turns the result of a visitor for `part` into the result of the walk.
fn stop_at(part: VaRange, flow: ControlFlow<()>) -> Result<(), WalkEnd> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(WalkEnd::Visitor(part.start())),
    }
}
