//! One entry of any level, with its table's lock held. For callers that treat small and large pages alike:
//! the reverse map, the huge pages of pools, and walks at a leaf above 4 KiB
//! ([`Visitor::large`](crate::Visitor)).
//!
//! A [`LeafGuard`] forwards each operation to the guard of its level. `table.rs` has these guards and
//! describes the operations, so a new operation belongs in `table.rs` first. The caller keeps the table from
//! being unlinked. Code for pages of 4 KiB uses [`PteGuard`](crate::PteGuard), whose level is fixed.
//! `tests/walker_model.rs` changes large leaves through this type.

use crate::addr::{Level, VaRange, VirtAddr};
use crate::format::{Format, Kind, Pte};
use crate::gather::{Gather, Tlb};
use crate::memory::TableMemory;
use crate::page_table::PageTable;
use crate::split::PreallocatedTable;
use crate::table::{PmdGuard, PteGuard, PudGuard, StaleTranslations};

/// A leaf, a marker or an empty slot, with the lock of its table held.
pub struct LeafGuard<'a, F: Format, M: TableMemory> {
    table: LockedTable<'a, F, M>,
    address: VirtAddr,
}

/// A locked table of one of the levels that can have leaves.
pub(crate) enum LockedTable<'a, F: Format, M: TableMemory> {
    Pte(PteGuard<'a, F, M>),
    Pmd(PmdGuard<'a, F, M>),
    Pud(PudGuard<'a, F, M>),
}

macro_rules! table {
    ($self:ident, $guard:ident => $body:expr) => {
        match &$self.table {
            LockedTable::Pte($guard) => $body,
            LockedTable::Pmd($guard) => $body,
            LockedTable::Pud($guard) => $body,
        }
    };
    (mut $self:ident, $guard:ident => $body:expr) => {
        match &mut $self.table {
            LockedTable::Pte($guard) => $body,
            LockedTable::Pmd($guard) => $body,
            LockedTable::Pud($guard) => $body,
        }
    };
}

#[cfg(doc)]
use crate::format::PteFlags;

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Locks the table of `level` for `address`, if there is one, and returns the entry of `address` in it.
    /// `level` must be a level whose entries can be leaves.
    ///
    /// The caller keeps the table from being unlinked, except by [reclaiming](crate::reclaim); see the
    /// [crate's protocol](crate).
    pub fn lock_leaf<'a>(
        &'a self,
        memory: &'a M,
        address: VirtAddr,
        level: Level,
    ) -> Option<LeafGuard<'a, F, M>> {
        let table = match level {
            Level::Pte => LockedTable::Pte(self.lock_pte_table(memory, address)?),
            Level::Pmd => LockedTable::Pmd(self.pmd_table(memory, address)?.lock()),
            _ => LockedTable::Pud(self.pud_table(memory, address)?.lock()),
        };
        Some(LeafGuard { table, address })
    }
}

impl<'a, F: Format, M: TableMemory> LeafGuard<'a, F, M> {
    pub(crate) fn new(table: LockedTable<'a, F, M>, address: VirtAddr) -> Self {
        LeafGuard { table, address }
    }

    /// Returns the level of the table that the entry is in.
    #[inline]
    pub fn level(&self) -> Level {
        match self.table {
            LockedTable::Pte(_) => Level::Pte,
            LockedTable::Pmd(_) => Level::Pmd,
            LockedTable::Pud(_) => Level::Pud,
        }
    }

    /// Returns all addresses that the entry covers.
    pub fn span(&self) -> VaRange {
        VaRange::entry(self.address, self.level())
    }

    /// Returns the entry.
    #[inline]
    pub fn pte(&self) -> Pte<F> {
        table!(self, guard => guard.get(self.address))
    }

    /// Returns the decoded entry.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.pte().kind(self.level())
    }

    /// Returns true if other spaces also use the entry's table; see [`PmdTable::is_shared`](crate::PmdTable).
    pub fn is_shared(&self) -> bool {
        matches!(&self.table, LockedTable::Pmd(guard) if guard.table.is_shared())
    }

    /// Withdraws a table that was deposited for splitting a leaf; see
    /// [`EntryGuard::withdraw`](crate::EntryGuard::withdraw).
    pub fn withdraw(&mut self) -> Option<PreallocatedTable<'a, M>> {
        table!(mut self, guard => guard.withdraw())
    }

    /// Fills the slot if it is empty; see [`EntryGuard::install`](crate::EntryGuard::install).
    ///
    /// # Errors
    /// Returns the current entry if the slot is not empty.
    pub fn install(&mut self, pte: Pte<F>) -> Result<(), Pte<F>> {
        let address = self.address;
        table!(mut self, guard => guard.install(address, pte))
    }

    /// Adds rights to the leaf; see [`EntryGuard::grant`](crate::EntryGuard::grant).
    pub fn grant(&mut self, flags: crate::format::PteFlags) -> Pte<F> {
        let address = self.address;
        table!(mut self, guard => guard.grant(address, flags))
    }

    /// Prepares the leaf to be [taken](Self::take) while other tasks may fill the empty slot. Does nothing if
    /// the format permits another entry at once. On a format with
    /// [break-before-make](Format::BREAK_BEFORE_MAKE), closes the leaf (sets
    /// [`NO_ACCESS`](PteFlags::NO_ACCESS)) and flushes. So no TLB holds the leaf when a task links a table in
    /// the empty slot, which needs no lock.
    ///
    /// Does nothing for an exclusive `gather`, because no other task fills the slot before its flush.
    #[inline]
    pub fn close<T: Tlb, const FRAMES: usize>(&mut self, gather: &mut Gather<'_, T, FRAMES>) {
        if F::BREAK_BEFORE_MAKE && !gather.is_exclusive() && self.pte().is_cached() {
            let level = self.level();
            self.change(gather, |pte| pte.closed(level));
            gather.flush();
        }
    }

    /// Clears the entry by an exchange; see [`EntryGuard::take`](crate::EntryGuard::take).
    pub fn take(&mut self, stale: &mut impl StaleTranslations) -> Pte<F> {
        let address = self.address;
        table!(mut self, guard => guard.take(address, stale))
    }

    /// Replaces the entry; see [`EntryGuard::replace`](crate::EntryGuard::replace).
    #[inline]
    pub fn replace(&mut self, new: Pte<F>, stale: &mut impl StaleTranslations) -> Pte<F> {
        let address = self.address;
        table!(mut self, guard => guard.replace(address, new, stale))
    }

    /// Changes the entry in place; see [`EntryGuard::change`](crate::EntryGuard::change).
    #[inline]
    pub fn change(
        &mut self,
        stale: &mut impl StaleTranslations,
        f: impl FnMut(Pte<F>) -> Pte<F>,
    ) -> (Pte<F>, Pte<F>) {
        let address = self.address;
        table!(mut self, guard => guard.change(address, stale, f))
    }
}
