//! One table and its lock: what may be done to an entry, and by which task.

use crate::addr::{Level, Pfn, VaRange, VirtAddr};
use crate::format::{Format, Kind, Pte, PteFlags};
use crate::groups;
use crate::memory::{Table, TableMemory, TableMeta, same_memory};
use crate::split::PreallocatedTable;
use core::marker::PhantomData;
use freehold_sync::RawSpinGuard;
use freehold_sync::atomic::{AtomicU64, Ordering};
use freehold_sync::rank::Rank;

/// The receiver of translations that a TLB may still hold. Every operation that removes rights takes one, so
/// that the flush cannot be forgotten: a [`Gather`](crate::Gather), or [`NotCached`] from a caller that knows
/// better.
pub trait StaleTranslations {
    /// Something is about to be changed, before its first store.
    fn begin_change(&mut self);
    /// `span` was changed; with `tables`, an entry that pointed to a table was.
    fn add_changed(&mut self, span: VaRange, tables: bool);
}

/// The claim that no processor can hold a translation of what is changed: the space never ran, or the
/// caller flushes on its own.
#[derive(Clone, Copy, Debug)]
pub struct NotCached;

impl StaleTranslations for NotCached {
    #[inline]
    fn begin_change(&mut self) {}
    #[inline]
    fn add_changed(&mut self, _span: VaRange, _tables: bool) {}
}

/// A table of level number `LEVEL`, found by walking to an address; not locked.
///
/// The table stays what it is as long as no task may unlink it; see the [crate's protocol](crate). A table of
/// the lowest level may be [reclaimed](crate::reclaim) before it is locked.
pub struct EntryTable<'a, F, M, const LEVEL: usize> {
    pub(crate) memory: &'a M,
    pub(crate) table: &'a Table,
    pub(crate) meta: &'a TableMeta,
    /// Where the table's span starts.
    pub(crate) base: VirtAddr,
    /// The entry that points to the table; `None` for the root.
    pub(crate) parent: Option<(&'a AtomicU64, Pfn)>,
    pub(crate) format: PhantomData<F>,
}

impl<F, M, const LEVEL: usize> Clone for EntryTable<'_, F, M, LEVEL> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F, M, const LEVEL: usize> Copy for EntryTable<'_, F, M, LEVEL> {}

/// A table of 4 KiB entries.
pub type PteTable<'a, F, M> = EntryTable<'a, F, M, 0>;
/// A table whose entries are 2 MiB leaves or point to tables.
pub type PmdTable<'a, F, M> = EntryTable<'a, F, M, 1>;
/// A table whose entries are 1 GiB leaves or point to tables.
pub type PudTable<'a, F, M> = EntryTable<'a, F, M, 2>;

impl<'a, F: Format, M: TableMemory, const LEVEL: usize> EntryTable<'a, F, M, LEVEL> {
    /// The table's level.
    pub const LEVEL: Level = Level::from_number(LEVEL);

    const RANK: Rank = if LEVEL == 0 { Rank::PageTable } else { Rank::PageTableUpper };

    /// The addresses that the table translates.
    #[inline]
    pub fn span(&self) -> VaRange {
        VaRange::of(self.base.get(), self.base.get().saturating_add(Self::LEVEL.table_span()))
    }

    /// Takes the lock of a table that cannot be unlinked: one of an upper level, or one whose span is kept
    /// from being [reclaimed](crate::reclaim), by the VMA's lock for writing say.
    ///
    /// # Panics
    /// In test builds, when a table of the lowest level is linked no more.
    #[inline]
    pub fn lock(self) -> EntryGuard<'a, F, M, LEVEL> {
        let guard = self.lock_any();
        debug_assert!(LEVEL > 0 || guard.is_linked(), "the table of {:?} was reclaimed", self.span());
        guard
    }

    /// Takes the table's lock and makes sure that the table is still the one that its parent points to.
    /// `None`: it is not, walk again. For tables of the lowest level, which may be
    /// [reclaimed](crate::reclaim) before they are locked.
    #[inline]
    pub fn lock_linked(self) -> Option<EntryGuard<'a, F, M, LEVEL>> {
        let guard = self.lock_any();
        guard.is_linked().then_some(guard)
    }

    /// Takes the table's lock, whether it is linked or not.
    #[inline]
    pub(crate) fn lock_any(self) -> EntryGuard<'a, F, M, LEVEL> {
        let lock = self.meta.lock.lock::<M>(Self::RANK);
        EntryGuard { table: self, _lock: lock }
    }

    /// As [`lock_linked`](Self::lock_linked), without waiting: for walkers without a lock, for which a flush
    /// may wait while the table is locked. `None`: the lock is taken, or the table is not linked any more.
    pub fn try_lock_linked(self) -> Option<EntryGuard<'a, F, M, LEVEL>> {
        let lock = self.meta.lock.try_lock::<M>(Self::RANK)?;
        let guard = EntryGuard { table: self, _lock: lock };
        guard.is_linked().then_some(guard)
    }

    /// Locks two tables, in the order of their addresses, which every caller shares. The second guard is
    /// `None` when both are the same table. A caller that does not keep them from being reclaimed asks
    /// [whether they are linked](EntryGuard::is_linked).
    pub fn lock_two(self, other: Self) -> (EntryGuard<'a, F, M, LEVEL>, Option<EntryGuard<'a, F, M, LEVEL>>) {
        if core::ptr::eq(self.table, other.table) {
            return (self.lock_any(), None);
        }
        if core::ptr::from_ref(self.table) < core::ptr::from_ref(other.table) {
            let first = self.lock_any();
            (first, Some(other.lock_nested()))
        } else {
            let first = other.lock_any();
            (self.lock_nested(), Some(first))
        }
    }

    fn lock_nested(self) -> EntryGuard<'a, F, M, LEVEL> {
        let lock = self.meta.lock.lock::<M>(Rank::PageTableNested);
        EntryGuard { table: self, _lock: lock }
    }

    /// The entry for `address` as it is now, without the lock: a hint, except for what the caller's other
    /// locks keep still. It may be any word if the table was [reclaimed](crate::reclaim) after it was found.
    #[inline]
    pub fn peek(&self, address: VirtAddr) -> Pte<F> {
        // Acquire, pairs with the release that installed the entry: what is behind it is initialised.
        Pte::from_raw(self.entry(address).load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn entry(&self, address: VirtAddr) -> &'a AtomicU64 {
        debug_assert!(self.span().contains(address), "{address:?} is not in this table's {:?}", self.span());
        self.table.entry(address.index(Self::LEVEL))
    }

    #[inline]
    pub(crate) fn entry_span(address: VirtAddr) -> VaRange {
        VaRange::entry(address, Self::LEVEL)
    }
}

/// A locked table: the right to change its entries.
///
/// # Invariants
/// The table's lock is held.
#[must_use]
pub struct EntryGuard<'a, F: Format, M: TableMemory, const LEVEL: usize> {
    pub(crate) table: EntryTable<'a, F, M, LEVEL>,
    _lock: RawSpinGuard<'a, M>,
}

/// A locked table of 4 KiB entries.
pub type PteGuard<'a, F, M> = EntryGuard<'a, F, M, 0>;
/// A locked table of 2 MiB entries.
pub type PmdGuard<'a, F, M> = EntryGuard<'a, F, M, 1>;
/// A locked table of 1 GiB entries.
pub type PudGuard<'a, F, M> = EntryGuard<'a, F, M, 2>;

impl<'a, F: Format, M: TableMemory, const LEVEL: usize> EntryGuard<'a, F, M, LEVEL> {
    const LEVEL: Level = Level::from_number(LEVEL);

    /// The addresses that the table translates.
    #[inline]
    pub fn span(&self) -> VaRange {
        self.table.span()
    }

    /// Whether the table is still the one that its parent points to.
    #[inline]
    pub fn is_linked(&self) -> bool {
        // Acquire, pairs with the release of `fill`: after the table was found, it may have been freed and
        // hung there again. Otherwise the lock orders it: a table's last entry is taken, the table unlinked,
        // and an entry changed after the table has moved, under the lock that is ours now. So what is found
        // here is at least as new as the entries that are read next.
        self.table.parent.is_none_or(|(slot, pfn)| slot.load(Ordering::Acquire) == F::table(pfn))
    }

    /// The entry for `address`. Only the hardware's accessed and dirty bits can change under the lock, and
    /// above [`Level::Pte`] an empty slot may become a pointer to a table.
    #[inline]
    pub fn get(&self, address: VirtAddr) -> Pte<F> {
        // Relaxed: entries of the lowest level are written under the lock that we hold. Upper levels are also
        // filled by compare-and-swap: a caller that follows such a pointer uses `peek` or the walk.
        Pte::from_raw(self.table.entry(address).load(Ordering::Relaxed))
    }

    /// Fills the empty slot of `address`.
    ///
    /// The caller holds the mmap lock or the VMA's lock, in any mode, besides this table's.
    ///
    /// # Errors
    /// What is in the slot, when it is not empty.
    ///
    /// # Panics
    /// When `pte` points to a table, here and wherever else an entry above the lowest level is given: tables
    /// are hung in by [`PageTable`](crate::PageTable) alone, and go elsewhere by
    /// [`move_table`](Self::move_table).
    #[inline]
    pub fn install(&mut self, address: VirtAddr, pte: Pte<F>) -> Result<(), Pte<F>> {
        Self::refuse_table(pte);
        let entry = self.table.entry(address);
        if LEVEL == 0 {
            // Relaxed: see `get`; an empty entry of the lowest level is ours alone to fill.
            let found = entry.load(Ordering::Relaxed);
            if found != 0 {
                return Err(Pte::from_raw(found));
            }
            self.note_filled(address);
            // Release, pairs with the acquire of the hardware's walk and of `peek`.
            entry.store(pte.raw(), Ordering::Release);
            return Ok(());
        }
        // Release, pairs as above. The compare is against `PageTable`'s lock-free filling of the slot.
        match entry.compare_exchange(0, pte.raw(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(found) => Err(Pte::from_raw(found)),
        }
    }

    /// Adds rights or sets bits of the leaf of `address`, in place. A TLB that still has the old leaf costs a
    /// spurious fault at most, so nothing need be flushed. Returns the leaf as it then is.
    ///
    /// # Panics
    /// In test builds, when there is no leaf.
    pub fn grant(&mut self, address: VirtAddr, flags: PteFlags) -> Pte<F> {
        self.modify(address, |pte| {
            debug_assert!(pte.is_leaf(Self::LEVEL), "rights for {pte:?}, which is no leaf");
            pte.with_flags(Self::LEVEL, pte.flags() | flags)
        })
        .1
    }

    /// Changes the entry of `address` in place, keeping what the hardware writes meanwhile: `f` may run
    /// again with newer accessed and dirty bits. The entry is never empty in between (hazard C-61).
    /// Returns the entry before and after.
    ///
    /// Neither the old nor the new entry may be empty: that is [`install`](Self::install) and
    /// [`take`](Self::take).
    // Inlined, so that what is the same for many entries is not asked for each.
    #[inline]
    pub fn change(
        &mut self,
        address: VirtAddr,
        stale: &mut impl StaleTranslations,
        f: impl FnMut(Pte<F>) -> Pte<F>,
    ) -> (Pte<F>, Pte<F>) {
        stale.begin_change();
        let (old, new) = self.modify(address, f);
        if old != new && old.is_cached() {
            stale.add_changed(EntryTable::<F, M, LEVEL>::entry_span(address), self.is_table(old));
        }
        (old, new)
    }

    #[inline(always)]
    fn modify(&mut self, address: VirtAddr, f: impl FnMut(Pte<F>) -> Pte<F>) -> (Pte<F>, Pte<F>) {
        let entry = self.table.entry(address);
        // Relaxed: see `get`.
        self.modify_from(entry, Pte::from_raw(entry.load(Ordering::Relaxed)), f)
    }

    /// Changes an entry of this table, which was read as `old`.
    #[inline(always)]
    pub(crate) fn modify_from(
        &mut self,
        entry: &AtomicU64,
        mut old: Pte<F>,
        mut f: impl FnMut(Pte<F>) -> Pte<F>,
    ) -> (Pte<F>, Pte<F>) {
        loop {
            let new = f(old);
            debug_assert!(!old.is_none() && !new.is_none(), "a change in place from or to an empty slot");
            if new == old {
                return (old, new);
            }
            Self::refuse_table(new);
            // Release on success, pairs with the acquire of the hardware's walk: a new frame behind the
            // entry is initialised. Relaxed on failure: only accessed and dirty bits can have changed.
            match entry.compare_exchange(old.raw(), new.raw(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return (old, new),
                Err(now) => old = Pte::from_raw(now),
            }
        }
    }

    /// Replaces the entry of `address`, whatever it is, by one exchange, and returns what was there with
    /// the last accessed and dirty bits that the hardware could set.
    #[inline]
    pub fn replace(&mut self, address: VirtAddr, new: Pte<F>, stale: &mut impl StaleTranslations) -> Pte<F> {
        Self::refuse_table(new);
        stale.begin_change();
        if LEVEL == 0 && !new.is_none() {
            self.note_filled(address);
        }
        // Release, pairs with the acquire of the hardware's walk and of lock-free readers, for the new
        // entry and for `before`. Acquire, pairs with the release that installed a table found here.
        let old = Pte::from_raw(self.table.entry(address).swap(new.raw(), Ordering::AcqRel));
        if old.is_cached() {
            stale.add_changed(EntryTable::<F, M, LEVEL>::entry_span(address), self.is_table(old));
        }
        old
    }

    /// Empties the slot of `address` by an exchange; see [`replace`](Self::replace).
    #[inline]
    pub fn take(&mut self, address: VirtAddr, stale: &mut impl StaleTranslations) -> Pte<F> {
        self.replace(address, Pte::NONE, stale)
    }

    /// Moves the table that hangs at `from` to the slot of `to`: in `target`, or in this table where there is
    /// no other. False: there is no table, or the slot is not empty; then nothing has happened.
    ///
    /// The caller keeps faults and walkers of the reverse map away from both addresses, besides holding both
    /// tables' locks.
    ///
    /// # Panics
    /// When `target` is from another memory than this table.
    pub fn move_table(
        &mut self,
        from: VirtAddr,
        target: Option<&mut Self>,
        to: VirtAddr,
        stale: &mut impl StaleTranslations,
    ) -> bool {
        let target = target.map_or(self.table, |target| target.table);
        assert!(same_memory(target.memory, self.table.memory), "a table moves to another memory");
        let slot = target.entry(to);
        // Relaxed: a look before anything is done; the exchange decides.
        if !self.is_table(self.get(from)) || slot.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let table = self.take(from, stale).raw();
        // Release on success, pairs with the acquire of every walk. Relaxed on failure: nothing is followed.
        let hung = slot.compare_exchange(0, table, Ordering::Release, Ordering::Relaxed);
        assert!(hung.is_ok(), "somebody put a table where nothing can be mapped");
        true
    }

    /// Keeps `spare` for splitting a leaf of this table, which then cannot fail. The removal of a leaf that
    /// came with one [takes it back](Self::withdraw).
    ///
    /// # Panics
    /// When it is from another memory than this table.
    pub fn deposit(&mut self, spare: PreallocatedTable<'_, M>) {
        assert!(
            same_memory(spare.memory(), self.table.memory),
            "a table is kept with one from another memory"
        );
        let spare = spare.into_pfn();
        // Relaxed, here and below: under the lock.
        let next = self.table.meta.spare.load(Ordering::Relaxed);
        self.table.memory.table_meta(spare).spare.store(next, Ordering::Relaxed);
        self.table.meta.spare.store(spare.get() + 1, Ordering::Relaxed);
    }

    /// Takes back a table that was [kept](Self::deposit).
    pub fn withdraw(&mut self) -> Option<PreallocatedTable<'a, M>> {
        let spare = Pfn::new(self.table.meta.spare.load(Ordering::Relaxed).checked_sub(1)?);
        let record = self.table.memory.table_meta(spare);
        self.table.meta.spare.store(record.spare.load(Ordering::Relaxed), Ordering::Relaxed);
        record.spare.store(0, Ordering::Relaxed);
        Some(PreallocatedTable::from_pfn(self.table.memory, spare))
    }

    /// Returns how many tables are [kept](Self::deposit).
    pub(crate) fn deposited(&self) -> u64 {
        let next = |table: &TableMeta| Pfn::new(table.spare.load(Ordering::Relaxed).wrapping_sub(1));
        let mut kept = 0;
        let mut table = self.table.meta;
        // Relaxed: under the lock.
        while table.spare.load(Ordering::Relaxed) != 0 {
            table = self.table.memory.table_meta(next(table));
            kept += 1;
        }
        kept
    }

    /// Tables are hung in by [`PageTable`](crate::PageTable) alone: what it finds it follows, and what it
    /// unlinks it frees.
    #[inline]
    fn refuse_table(pte: Pte<F>) {
        assert!(
            LEVEL == 0 || !matches!(pte.kind(Self::LEVEL), Kind::Table { .. }),
            "a table is put into an entry from outside"
        );
    }

    #[inline]
    fn is_table(&self, pte: Pte<F>) -> bool {
        LEVEL > 0 && matches!(pte.kind(Self::LEVEL), Kind::Table { .. })
    }

    #[inline]
    fn note_filled(&mut self, address: VirtAddr) {
        groups::set_filled(self.table.meta, address.index(Level::Pte));
    }
}

impl<F: Format, M: TableMemory> EntryGuard<'_, F, M, 0> {
    /// Writes the slot of `address`, which is empty or holds a marker or a leaf without access: something
    /// that no TLB can have, so that a plain store does.
    ///
    /// Filling an empty slot needs the same locks as [`install`](Self::install).
    ///
    /// # Panics
    /// In test builds, when the hardware could have cached the old entry.
    #[inline]
    pub fn set(&mut self, address: VirtAddr, pte: Pte<F>) {
        let entry = self.table.entry(address);
        // Relaxed: see `get`.
        debug_assert!(
            !F::is_cached(entry.load(Ordering::Relaxed)),
            "a plain store over what hardware may be using at {address:?}"
        );
        if !pte.is_none() {
            self.note_filled(address);
        }
        // Release, pairs with the acquire of the hardware's walk and of `peek`.
        entry.store(pte.raw(), Ordering::Release);
    }

    /// Empties the slot of `address` by a plain store and returns what was there, perhaps without the last
    /// accessed and dirty bits: for pages whose contents nobody will ask for.
    ///
    /// The store is right although the hardware may be writing the same entry. It sets its bits by a locked
    /// compare-and-swap of the whole entry: before our store, and then they are overwritten; or after,
    /// and then it fails, looks again and faults. It cannot bring the entry back.
    #[inline]
    pub fn take_plain(&mut self, address: VirtAddr, stale: &mut impl StaleTranslations) -> Pte<F> {
        stale.begin_change();
        let entry = self.table.entry(address);
        // Relaxed: see `get`.
        let old = Pte::from_raw(entry.load(Ordering::Relaxed));
        // Release, pairs with the acquire of `peek`, for `before`.
        entry.store(0, Ordering::Release);
        if old.is_cached() {
            stale.add_changed(PteTable::<F, M>::entry_span(address), false);
        }
        old
    }
}
