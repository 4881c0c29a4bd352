//! One entry of any level, with its table's lock held: for callers that do the same to small pages and large
//! ones.

use crate::addr::{Level, VaRange, VirtAddr};
use crate::format::{Format, Kind, Pte};
use crate::memory::TableMemory;
use crate::page_table::PageTable;
use crate::split::PreallocatedTable;
use crate::table::{PmdGuard, PteGuard, PudGuard, StaleTranslations};

/// A leaf or a marker, or the slot where one was, with the lock of its table held.
pub struct LeafGuard<'a, F: Format, M: TableMemory> {
    table: LockedTable<'a, F, M>,
    address: VirtAddr,
}

/// The table's lock.
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

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Locks the table of `level`, one whose entries can be leaves, for `address`, if there is one, and shows
    /// that entry.
    ///
    /// The caller keeps the table from being unlinked, but for [reclaiming](crate::reclaim); see the [crate's
    /// protocol](crate).
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

    /// The level of the table that the entry is in.
    #[inline]
    pub fn level(&self) -> Level {
        match self.table {
            LockedTable::Pte(_) => Level::Pte,
            LockedTable::Pmd(_) => Level::Pmd,
            LockedTable::Pud(_) => Level::Pud,
        }
    }

    /// All addresses that the entry stands for.
    pub fn span(&self) -> VaRange {
        VaRange::entry(self.address, self.level())
    }

    /// The entry.
    #[inline]
    pub fn pte(&self) -> Pte<F> {
        table!(self, guard => guard.get(self.address))
    }

    /// What the entry says.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.pte().kind(self.level())
    }

    /// Whether other spaces use the entry's table, too; see [`PmdTable::is_shared`](crate::PmdTable).
    pub fn is_shared(&self) -> bool {
        matches!(&self.table, LockedTable::Pmd(guard) if guard.table.is_shared())
    }

    /// Takes back a table that was kept for splitting a leaf; see
    /// [`EntryGuard::withdraw`](crate::EntryGuard::withdraw).
    pub fn withdraw(&mut self) -> Option<PreallocatedTable<'a, M>> {
        table!(mut self, guard => guard.withdraw())
    }

    /// Fills the slot if it is empty; see [`EntryGuard::install`](crate::EntryGuard::install).
    ///
    /// # Errors
    /// What is there.
    pub fn install(&mut self, pte: Pte<F>) -> Result<(), Pte<F>> {
        let address = self.address;
        table!(mut self, guard => guard.install(address, pte))
    }

    /// Adds rights to the leaf; see [`EntryGuard::grant`](crate::EntryGuard::grant).
    pub fn grant(&mut self, flags: crate::format::PteFlags) -> Pte<F> {
        let address = self.address;
        table!(mut self, guard => guard.grant(address, flags))
    }

    /// Clears the entry by an exchange; see [`EntryGuard::take`](crate::EntryGuard::take).
    pub fn take(&mut self, stale: &mut impl StaleTranslations) -> Pte<F> {
        let address = self.address;
        table!(mut self, guard => guard.take(address, stale))
    }

    /// Puts another entry in its place; see [`EntryGuard::replace`](crate::EntryGuard::replace).
    #[inline]
    pub fn replace(&mut self, new: Pte<F>, stale: &mut impl StaleTranslations) -> Pte<F> {
        let address = self.address;
        table!(mut self, guard => guard.replace(address, new, stale))
    }

    /// Changes it in place; see [`EntryGuard::change`](crate::EntryGuard::change).
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
