//! One table and its lock: the operations on an entry, and the locks that they need.
//!
//! An [`EntryTable`] is a table that a walk found and did not lock, so an entry read from it is a hint. An
//! [`EntryGuard`] is a locked table. Only an [`EntryGuard`] may change entries, except entries that point to
//! tables. A change that removes rights gets a receiver for stale translations, so that the flush cannot be
//! forgotten. `entries.rs` iterates over a locked table, and `page_table.rs` finds tables. The [crate's
//! protocol](crate#writers-of-an-entry) lists the writers. Before a new operation stores an entry, it calls
//! `refuse_table` above the lowest level and `note_filled` at the lowest level. `tests/tables.rs`,
//! `tests/kept.rs` and `tests/loom.rs` test the operations.
//!
//! A *deposited* table is an empty table in a list of an upper table, stored for the split of a leaf there.
//! No entry points to it, so neither the hardware nor a walk reaches it. A task that installs a huge leaf
//! [deposits](EntryGuard::deposit) a table, so that a split of a leaf of this upper table needs no
//! allocation. A task that removes such a leaf [withdraws](EntryGuard::withdraw) a table. The list belongs to
//! the upper table and is guarded by its lock. A split may use any table of the list, whichever leaf the
//! table was deposited for. Before the deposit and after the withdrawal, the table is a [`PreallocatedTable`]
//! that its task owns.

use crate::addr::{Level, Levels, Pfn, VaRange, VirtAddr};
use crate::format::{Format, Kind, Pte, PteFlags};
use crate::groups;
use crate::memory::{Table, TableMemory, TableMeta, same_memory};
use crate::split::PreallocatedTable;
use core::marker::PhantomData;
use freehold_sync::RawSpinGuard;
use freehold_sync::atomic::{AtomicU64, Ordering};
use freehold_sync::rank::Rank;

/// Receives the translations that a TLB may still hold. Every operation that removes rights takes a receiver,
/// so that no caller forgets the flush. A receiver is a [`Gather`](crate::Gather), or [`NotCached`] if no
/// flush is needed.
pub trait StaleTranslations {
    /// Records that a change is about to begin, before its first store.
    fn begin_change(&mut self);
    /// Records that entries over `span` were changed, whose levels are in `levels`. If an entry pointed to a
    /// table, `tables` is set, and `levels` includes the levels of the entries of that table.
    fn add_changed(&mut self, span: VaRange, levels: Levels, tables: bool);
}

/// States that no processor can hold a translation through the changed entries: the space never ran, or the
/// caller flushes.
#[derive(Clone, Copy, Debug)]
pub struct NotCached;

impl StaleTranslations for NotCached {
    #[inline]
    fn begin_change(&mut self) {}
    #[inline]
    fn add_changed(&mut self, _span: VaRange, _levels: Levels, _tables: bool) {}
}

/// A table of level number `LEVEL`, found by walking to an address. Not locked.
///
/// The table stays valid as long as no task may unlink it; see the [crate's protocol](crate). A table of the
/// lowest level may be [reclaimed](crate::reclaim) before it is locked.
pub struct EntryTable<'a, F, M, const LEVEL: usize> {
    pub(crate) memory: &'a M,
    pub(crate) table: &'a Table,
    pub(crate) meta: &'a TableMeta,
    /// The start of the table's span.
    pub(crate) base: VirtAddr,
    /// The entry that points to the table, and the table's number. `None` for the root.
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
    /// The level of the table.
    pub const LEVEL: Level = Level::from_number(LEVEL);

    const RANK: Rank = if LEVEL == 0 { Rank::PageTable } else { Rank::PageTableUpper };

    /// Returns the addresses that the table translates.
    #[inline]
    pub fn span(&self) -> VaRange {
        VaRange::of(self.base.get(), self.base.get().saturating_add(Self::LEVEL.table_span()))
    }

    /// Takes the lock of a table that cannot be unlinked. The table belongs to an upper level, or its span is
    /// protected from [reclaiming](crate::reclaim), for example by the VMA's lock for writing.
    ///
    /// # Panics
    /// Panics in test builds if a table of the lowest level is no longer linked.
    #[inline]
    pub fn lock(self) -> EntryGuard<'a, F, M, LEVEL> {
        let guard = self.lock_any();
        debug_assert!(LEVEL > 0 || guard.is_linked(), "the table of {:?} was reclaimed", self.span());
        guard
    }

    /// Takes the table's lock and checks that the parent still points to the table. If the parent points
    /// elsewhere, returns `None`; the caller then walks again. For tables of the lowest level, which may be
    /// [reclaimed](crate::reclaim) before they are locked.
    #[inline]
    pub fn lock_linked(self) -> Option<EntryGuard<'a, F, M, LEVEL>> {
        let guard = self.lock_any();
        guard.is_linked().then_some(guard)
    }

    /// Takes the table's lock, without checking that the table is linked.
    #[inline]
    pub(crate) fn lock_any(self) -> EntryGuard<'a, F, M, LEVEL> {
        let lock = self.meta.lock.lock::<M>(Self::RANK);
        EntryGuard { table: self, _lock: lock }
    }

    /// Takes the lock of a linked table like [`lock_linked`](Self::lock_linked), without waiting. For walkers
    /// that hold no lock. Such a walker must not wait for the table's lock, because the holder of the lock
    /// may be in a flush that waits for the walker. Returns `None` if the lock is held or the table is no
    /// longer linked.
    pub fn try_lock_linked(self) -> Option<EntryGuard<'a, F, M, LEVEL>> {
        let lock = self.meta.lock.try_lock::<M>(Self::RANK)?;
        let guard = EntryGuard { table: self, _lock: lock };
        guard.is_linked().then_some(guard)
    }

    /// Locks two tables in the order of their addresses, which is the same for all callers. The second guard
    /// is `None` if both are the same table. A caller that does not exclude reclaiming must check that [the
    /// tables are linked](EntryGuard::is_linked).
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

    /// Returns the current entry for `address`, without the lock. The result is a hint, unless other locks of
    /// the caller keep the entry unchanged. The result may be any word if the table was
    /// [reclaimed](crate::reclaim) after it was found.
    #[inline]
    pub fn peek(&self, address: VirtAddr) -> Pte<F> {
        // Acquire: pairs with the release store that installed the entry, so the memory behind the entry is
        // initialised.
        Pte::from_raw(self.entry(address).load(Ordering::Acquire))
    }

    /// Returns the entry of `address`, which lies in this table.
    #[inline]
    pub(crate) fn entry(&self, address: VirtAddr) -> &'a AtomicU64 {
        debug_assert!(self.span().contains(address), "{address:?} is not in this table's {:?}", self.span());
        self.table.entry(address.index(Self::LEVEL))
    }

    /// Returns the addresses that the entry of `address` translates.
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

    /// Returns the addresses that the table translates.
    #[inline]
    pub fn span(&self) -> VaRange {
        self.table.span()
    }

    /// Returns true if the parent still points to the table.
    #[inline]
    pub fn is_linked(&self) -> bool {
        // Acquire: pairs with the release in `install_table`. The table may have been freed and linked at the
        // same place again after it was found. All other changes are ordered by the table's lock, which this
        // guard holds: the removal of a table's last entry, the unlinking, and the change of an entry after
        // the table has moved. So the slot read here is at least as new as the entries that are read next.
        self.table.parent.is_none_or(|(slot, pfn)| slot.load(Ordering::Acquire) == F::table(pfn))
    }

    /// Returns the entry for `address`. Under the lock, only the hardware changes the entry, by setting
    /// accessed and dirty bits. Above [`Level::Pte`], an empty slot may also become a pointer to a table.
    #[inline]
    pub fn get(&self, address: VirtAddr) -> Pte<F> {
        // Relaxed: entries of the lowest level are written under the lock that this guard holds. Upper levels
        // are also filled by compare-and-swap; a caller that follows a pointer to a table uses `peek` or the
        // walk.
        Pte::from_raw(self.table.entry(address).load(Ordering::Relaxed))
    }

    /// Fills the empty slot of `address`.
    ///
    /// The caller holds the mmap lock or the VMA's lock, in any mode, in addition to this table's lock.
    ///
    /// # Errors
    /// Returns the current entry if the slot is not empty.
    ///
    /// # Panics
    /// Panics if `pte` points to a table. The same holds for every other function that stores an entry above
    /// the lowest level: only [`PageTable`](crate::PageTable) links tables, and
    /// [`move_table`](Self::move_table) moves them.
    #[inline]
    pub fn install(&mut self, address: VirtAddr, pte: Pte<F>) -> Result<(), Pte<F>> {
        Self::refuse_table(pte);
        let entry = self.table.entry(address);
        if LEVEL == 0 {
            // Relaxed: see `get`. Only the holder of the lock fills an empty entry of the lowest level.
            let found = entry.load(Ordering::Relaxed);
            if found != 0 {
                return Err(Pte::from_raw(found));
            }
            self.note_filled(address);
            self.publish(Pte::NONE, pte);
            // Release: pairs with the acquire of the hardware's walk and of `peek`.
            entry.store(pte.raw(), Ordering::Release);
            return Ok(());
        }
        self.publish(Pte::NONE, pte);
        // Release: pairs with the same acquires as above. A compare-exchange, because `PageTable` may fill
        // the slot without the lock.
        match entry.compare_exchange(0, pte.raw(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(found) => Err(Pte::from_raw(found)),
        }
    }

    /// Adds rights or sets bits of the leaf of `address`, in place. A TLB that still has the old leaf causes
    /// at most a spurious fault, so no flush is needed. Returns the new leaf.
    ///
    /// # Panics
    /// Panics in test builds if there is no leaf.
    pub fn grant(&mut self, address: VirtAddr, flags: PteFlags) -> Pte<F> {
        self.modify(address, |pte| {
            debug_assert!(pte.is_leaf(Self::LEVEL), "{pte:?} is not a leaf");
            pte.with_flags(Self::LEVEL, pte.flags() | flags)
        })
        .1
    }

    /// Changes the entry of `address` in place, and keeps bits that the hardware sets during the change: `f`
    /// is called again with newer accessed and dirty bits if the hardware wrote the entry. The entry is never
    /// empty in between (hazard C-61). Returns the entry before and after.
    ///
    /// Neither the old nor the new entry may be empty; [`install`](Self::install) and [`take`](Self::take)
    /// handle empty entries.
    // Inlined, so that a loop over many entries evaluates the common checks once.
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
            self.report(address, old, stale);
        }
        (old, new)
    }

    /// Does the work of [`change`](Self::change) without recording stale translations.
    #[inline(always)]
    fn modify(&mut self, address: VirtAddr, f: impl FnMut(Pte<F>) -> Pte<F>) -> (Pte<F>, Pte<F>) {
        let entry = self.table.entry(address);
        // Relaxed: see `get`.
        self.modify_from(entry, Pte::from_raw(entry.load(Ordering::Relaxed)), f)
    }

    /// Changes an entry of this table. The caller has read the entry as `old`.
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
            Self::check_break_before_make(old, new);
            self.publish(old, new);
            // Release on success: pairs with the acquire of the hardware's walk, so a new frame behind the
            // entry is initialised. Relaxed on failure: only accessed and dirty bits can have changed.
            match entry.compare_exchange(old.raw(), new.raw(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return (old, new),
                Err(now) => old = Pte::from_raw(now),
            }
        }
    }

    /// Replaces the entry of `address`, of any kind, by one exchange. Returns the old entry with all accessed
    /// and dirty bits that the hardware has set.
    #[inline]
    pub fn replace(&mut self, address: VirtAddr, new: Pte<F>, stale: &mut impl StaleTranslations) -> Pte<F> {
        Self::refuse_table(new);
        stale.begin_change();
        if LEVEL == 0 && !new.is_none() {
            self.note_filled(address);
        }
        self.publish(Pte::NONE, new);
        // Release: pairs with the acquire of the hardware's walk and of lock-free readers. A reader of the
        // new entry sees the memory behind it initialised, and the gather counted by `begin_change`. Acquire:
        // pairs with the release that installed a table found here.
        let old = Pte::from_raw(self.table.entry(address).swap(new.raw(), Ordering::AcqRel));
        Self::check_break_before_make(old, new);
        if old.is_cached() {
            self.report(address, old, stale);
        }
        old
    }

    /// Passes the span of the entry `old` of `address`, which a TLB may hold, to `stale`.
    #[inline(always)]
    fn report(&self, address: VirtAddr, old: Pte<F>, stale: &mut impl StaleTranslations) {
        let tables = self.is_table(old);
        let levels = if tables { Levels::ALL } else { Levels::of(EntryTable::<F, M, LEVEL>::LEVEL) };
        stale.add_changed(EntryTable::<F, M, LEVEL>::entry_span(address), levels, tables);
    }

    /// Empties the slot of `address` by an exchange; see [`replace`](Self::replace).
    #[inline]
    pub fn take(&mut self, address: VirtAddr, stale: &mut impl StaleTranslations) -> Pte<F> {
        self.replace(address, Pte::NONE, stale)
    }

    /// Moves the table that the entry of `from` points to into the slot of `to`. The slot is in `target`, or
    /// in this table if `target` is `None`. Returns false and changes nothing if there is no table or the
    /// slot is not empty.
    ///
    /// The caller holds the locks of both tables, and excludes faults and walkers of the reverse map at both
    /// addresses.
    ///
    /// # Panics
    /// Panics if `target` is from another memory than this table.
    pub fn move_table(
        &mut self,
        from: VirtAddr,
        target: Option<&mut Self>,
        to: VirtAddr,
        stale: &mut impl StaleTranslations,
    ) -> bool {
        let target = target.map_or(self.table, |target| target.table);
        assert!(same_memory(target.memory, self.table.memory), "the target table is from another memory");
        let slot = target.entry(to);
        // Relaxed: an early check before anything is changed. The exchange below decides.
        if !self.is_table(self.get(from)) || slot.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let table = self.take(from, stale).raw();
        // Release on success: pairs with the acquire of every walk. Relaxed on failure: the entry found there
        // is not followed.
        let hung = slot.compare_exchange(0, table, Ordering::Release, Ordering::Relaxed);
        assert!(hung.is_ok(), "the target slot was filled during the move");
        true
    }

    /// Deposits `spare` with this table: stores it for the split of a leaf, so that the split cannot fail. A
    /// caller that removes a leaf for which a table was deposited [withdraws](Self::withdraw) a table.
    ///
    /// # Panics
    /// Panics if `spare` is from another memory than this table.
    pub fn deposit(&mut self, spare: PreallocatedTable<'_, M>) {
        assert!(same_memory(spare.memory(), self.table.memory), "the deposited table is from another memory");
        let spare = spare.into_pfn();
        // Relaxed, here and below: these words are accessed under the lock.
        let next = self.table.meta.spare.load(Ordering::Relaxed);
        self.table.memory.table_meta(spare).spare.store(next, Ordering::Relaxed);
        self.table.meta.spare.store(spare.get() + 1, Ordering::Relaxed);
    }

    /// Withdraws a table that was [deposited](Self::deposit), if there is one.
    pub fn withdraw(&mut self) -> Option<PreallocatedTable<'a, M>> {
        let spare = Pfn::new(self.table.meta.spare.load(Ordering::Relaxed).checked_sub(1)?);
        let record = self.table.memory.table_meta(spare);
        self.table.meta.spare.store(record.spare.load(Ordering::Relaxed), Ordering::Relaxed);
        record.spare.store(0, Ordering::Relaxed);
        Some(PreallocatedTable::from_pfn(self.table.memory, spare))
    }

    /// Returns the number of tables that are [deposited](Self::deposit).
    pub(crate) fn deposited(&self) -> u64 {
        let next = |table: &TableMeta| Pfn::new(table.spare.load(Ordering::Relaxed).wrapping_sub(1));
        let mut kept = 0;
        let mut table = self.table.meta;
        // Relaxed: these words are accessed under the lock.
        while table.spare.load(Ordering::Relaxed) != 0 {
            table = self.table.memory.table_meta(next(table));
            kept += 1;
        }
        kept
    }

    /// Asserts that `pte` does not point to a table. Only [`PageTable`](crate::PageTable) links tables: it
    /// follows the tables that it finds, and frees the tables that it unlinks.
    #[inline]
    fn refuse_table(pte: Pte<F>) {
        assert!(
            LEVEL == 0 || !matches!(pte.kind(Self::LEVEL), Kind::Table { .. }),
            "a caller stores an entry that points to a table"
        );
    }

    /// Publishes the frames of `new` to instruction fetches, if `new` permits fetches that `old` does not
    /// permit. Called before `new` is stored.
    #[inline(always)]
    fn publish(&self, old: Pte<F>, new: Pte<F>) {
        if F::COHERENT_FETCH || !new.permits_fetch(Self::LEVEL) {
            return;
        }
        if !old.permits_fetch(Self::LEVEL) || old.pfn() != new.pfn() {
            self.table.memory.publish_code(new.pfn(), Self::LEVEL.frames());
        }
    }

    /// Checks the rule of [`Format::BREAK_BEFORE_MAKE`] in test builds, for a change of an entry in one step:
    /// if the hardware can use both entries, they differ only in rights and in bits.
    #[inline]
    fn check_break_before_make(old: Pte<F>, new: Pte<F>) {
        if !F::BREAK_BEFORE_MAKE || !cfg!(debug_assertions) || !old.is_cached() || !new.is_cached() {
            return;
        }
        let cache = PteFlags::WRITE_THROUGH | PteFlags::NO_CACHE | PteFlags::GLOBAL;
        let of = |pte: Pte<F>| (pte.is_leaf(Self::LEVEL), pte.pfn(), pte.flags() & cache);
        assert_eq!(
            of(old),
            of(new),
            "a live entry was replaced without break-before-make (leaf, frame, flags)"
        );
    }

    /// Returns true if `pte` points to a table.
    #[inline]
    fn is_table(&self, pte: Pte<F>) -> bool {
        LEVEL > 0 && matches!(pte.kind(Self::LEVEL), Kind::Table { .. })
    }

    /// Records that the entry of `address` is filled, for `groups.rs`. Called before the entry is stored.
    #[inline]
    fn note_filled(&mut self, address: VirtAddr) {
        groups::set_filled(self.table.meta, address.index(Level::Pte));
    }
}

impl<F: Format, M: TableMemory> EntryGuard<'_, F, M, 0> {
    /// Writes the slot of `address`. The slot is empty, or holds a marker or a leaf without access. No TLB
    /// can hold such an entry, so a plain store is enough.
    ///
    /// Filling an empty slot needs the same locks as [`install`](Self::install).
    ///
    /// # Panics
    /// Panics in test builds if the hardware could have cached the old entry.
    #[inline]
    pub fn set(&mut self, address: VirtAddr, pte: Pte<F>) {
        let entry = self.table.entry(address);
        // Relaxed: see `get`.
        debug_assert!(
            !F::is_cached(entry.load(Ordering::Relaxed)),
            "a plain store over an entry at {address:?} that hardware may have cached"
        );
        if !pte.is_none() {
            self.note_filled(address);
        }
        self.publish(Pte::NONE, pte);
        // Release: pairs with the acquire of the hardware's walk and of `peek`.
        entry.store(pte.raw(), Ordering::Release);
    }

    /// Empties the slot of `address` by a plain store and returns the old entry, perhaps without the last
    /// accessed and dirty bits. For pages whose contents are no longer needed.
    ///
    /// The store is correct even if the hardware writes the same entry concurrently. The hardware sets its
    /// bits by a locked compare-and-swap of the whole entry. If the compare-and-swap comes before the store,
    /// the store overwrites it. If the compare-and-swap comes after the store, it fails; the hardware then
    /// reads the entry again and faults. So the hardware cannot restore the entry.
    #[inline]
    pub fn take_plain(&mut self, address: VirtAddr, stale: &mut impl StaleTranslations) -> Pte<F> {
        stale.begin_change();
        let entry = self.table.entry(address);
        // Relaxed: see `get`.
        let old = Pte::from_raw(entry.load(Ordering::Relaxed));
        // Release: pairs with the acquire of `peek`. A reader of the empty entry sees the gather counted by
        // `begin_change`.
        entry.store(0, Ordering::Release);
        if old.is_cached() {
            stale.add_changed(PteTable::<F, M>::entry_span(address), Levels::of(Level::Pte), false);
        }
        old
    }
}
