//! Iteration over the non-empty entries of one locked table.
//!
//! A caller can clear the entries, change them in place, or read them. All functions need the table's lock (a
//! [`PteGuard`]). The functions for a range use the group bits of the table (`groups.rs`) to skip empty
//! groups. For a longer range, `walk.rs` passes the tables to a visitor one after another. A new loop over
//! entries begins with `indices`, which checks the range, and `filled`, which finds the groups.
//!
//! The bit of a group is cleared only after every entry of the group was seen empty under the same lock.
//! Otherwise a later zap would miss an entry. The range that is reported to [`StaleTranslations`] must
//! contain every changed entry that hardware may have cached; `tests/gather.rs` checks the two ends of the
//! reported range.

use crate::addr::{ENTRIES, Level, Levels, PAGE_SIZE, VaRange, VirtAddr};
use crate::format::{Format, Pte};
use crate::groups::{self, GROUP};
use crate::memory::TableMemory;
use crate::table::{PteGuard, StaleTranslations};
use core::ops::{ControlFlow, Range};
use freehold_sync::atomic::{AtomicU64, Ordering};

/// The panic message for a range, or an address, that does not fit the table.
const NOT_OF_TABLE: &str = "the range leaves its table, or contains parts of pages";

/// A non-empty entry that a [zap](PteGuard::zap_each) may clear or keep.
pub struct ZapEntry<'a, F> {
    entry: &'a AtomicU64,
    pte: Pte<F>,
    cleared: bool,
}

impl<F: Format> ZapEntry<'_, F> {
    /// Returns the entry as it was read. The hardware may have set accessed and dirty bits since.
    #[inline]
    pub fn pte(&self) -> Pte<F> {
        self.pte
    }

    /// Clears the entry by a plain store. For callers that do not need the accessed and dirty bits.
    /// [`PteGuard::take_plain`] explains why this is correct while the hardware writes the entry.
    #[inline]
    pub fn clear(&mut self) {
        // Release: pairs with the acquire of `peek`. A lock-free reader that finds the entry empty also finds
        // the gather counted. The hardware needs no such order, because the flush waits for the hardware.
        self.entry.store(0, Ordering::Release);
        self.cleared = true;
    }

    /// Clears the entry by an exchange and returns it with the last accessed and dirty bits.
    #[inline]
    pub fn take(&mut self) -> Pte<F> {
        self.cleared = true;
        // Release: as in `clear`. No acquire: only the bits of the entry itself are used.
        Pte::from_raw(self.entry.swap(0, Ordering::Release))
    }

    /// Replaces the entry by a marker, by an exchange, and returns the old entry.
    #[inline]
    pub fn replace(&mut self, marker: Pte<F>) -> Pte<F> {
        debug_assert!(!marker.is_cached() && !marker.is_none(), "a zap may only store a marker");
        // Release: as in `clear`.
        Pte::from_raw(self.entry.swap(marker.raw(), Ordering::Release))
    }
}

impl<'a, F: Format, M: TableMemory> PteGuard<'a, F, M> {
    /// Calls `f` for every non-empty entry of `range`, in ascending order. `f` clears the entry or keeps it.
    /// `f` gets the address, the entry, and `stale`. `f` can pass frames to `stale`. Groups of empty entries
    /// are skipped.
    ///
    /// # Panics
    /// Panics if `range` leaves the table or does not consist of whole pages. Nothing has changed then.
    #[inline]
    pub fn zap_each<S: StaleTranslations>(
        &mut self,
        range: VaRange,
        stale: &mut S,
        mut f: impl FnMut(VirtAddr, &mut ZapEntry<'_, F>, &mut S),
    ) {
        let indices = self.indices(range);
        let mut groups = self.filled(&indices);
        if groups == 0 {
            return;
        }
        stale.begin_change();
        let mut emptied = 0;
        let mut dirty = ChangedEntries::none();
        while groups != 0 {
            let group = groups.trailing_zeros() as usize;
            groups &= groups - 1;
            let entries = clip(group, &indices);
            let mut kept = entries.len() < GROUP;
            let mut cached = CachedBits::default();
            for index in entries.clone() {
                let slot = self.slot(index);
                cached.push(slot.as_ref().is_some_and(|slot| slot.pte.is_cached()));
                let Some(mut slot) = slot else { continue };
                f(self.address(index), &mut slot, stale);
                kept |= !slot.cleared;
            }
            dirty.add(entries.end, cached);
            emptied |= u64::from(!kept) << group;
        }
        if emptied != 0 {
            groups::set_empty(self.table.meta, emptied);
        }
        dirty.report(self, stale);
    }

    /// Changes every non-empty entry of `range` in place, like [`change`](Self::change). `f` gets the address
    /// and the entry, and returns the new entry, which must not be empty. If the new entry equals the old
    /// one, nothing is written. `f` is called again for the same entry if the hardware wrote it during the
    /// change.
    ///
    /// # Panics
    /// Panics in the same cases as [`zap_each`](Self::zap_each).
    #[inline]
    pub fn change_each(
        &mut self,
        range: VaRange,
        stale: &mut impl StaleTranslations,
        mut f: impl FnMut(VirtAddr, Pte<F>) -> Pte<F>,
    ) {
        match range.len() {
            PAGE_SIZE if range.is_of_pages() => {
                self.change_filled(range.start(), stale, |pte| f(range.start(), pte));
            }
            _ => self.change_each_then(range, stale, f, |_, _| {}),
        }
    }

    /// [Changes](Self::change) the entry of the page that contains `address` in place, unless the entry is
    /// empty. Does not read the group bits, which do not help for a single entry.
    ///
    /// # Panics
    /// Panics if `address` is not in the span of this table. Nothing has changed then.
    #[inline]
    pub fn change_filled(
        &mut self,
        address: VirtAddr,
        stale: &mut impl StaleTranslations,
        f: impl FnMut(Pte<F>) -> Pte<F>,
    ) {
        // This check compares bases, unlike the check in `indices`, because the walk to this table has
        // computed the table's base from the address.
        assert!(address.span_down(Level::Pmd) == self.table.base, "{NOT_OF_TABLE}");
        let Some(slot) = self.slot(address.index(Level::Pte)) else { return };
        stale.begin_change();
        let (old, new) = self.modify_from(slot.entry, slot.pte, f);
        if old != new && old.is_cached() {
            stale.add_changed(VaRange::entry(address, Level::Pte), Levels::of(Level::Pte), false);
        }
    }

    /// Changes entries like [`change_each`](Self::change_each), and calls `then` with each non-empty entry
    /// after it was changed or left unchanged.
    ///
    /// # Panics
    /// Panics in the same cases as [`zap_each`](Self::zap_each).
    #[inline]
    pub fn change_each_then(
        &mut self,
        range: VaRange,
        stale: &mut impl StaleTranslations,
        mut f: impl FnMut(VirtAddr, Pte<F>) -> Pte<F>,
        mut then: impl FnMut(VirtAddr, Pte<F>),
    ) {
        let indices = self.indices(range);
        let mut groups = self.filled(&indices);
        if groups == 0 {
            return;
        }
        stale.begin_change();
        let mut dirty = ChangedEntries::none();
        while groups != 0 {
            let group = groups.trailing_zeros() as usize;
            groups &= groups - 1;
            let entries = clip(group, &indices);
            let mut cached = CachedBits::default();
            for index in entries.clone() {
                let Some(slot) = self.slot(index) else {
                    cached.push(false);
                    continue;
                };
                let address = self.address(index);
                let (old, new) = self.modify_from(slot.entry, slot.pte, |pte| f(address, pte));
                cached.push(old != new && old.is_cached());
                then(address, new);
            }
            dirty.add(entries.end, cached);
        }
        dirty.report(self, stale);
    }

    /// Calls `f` with the address and the value of every non-empty entry of `range`, in ascending order,
    /// until `f` breaks.
    ///
    /// # Panics
    /// Panics in the same cases as [`zap_each`](Self::zap_each).
    #[inline]
    pub fn for_each<B>(
        &self,
        range: VaRange,
        mut f: impl FnMut(VirtAddr, Pte<F>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let indices = self.indices(range);
        let mut groups = self.filled(&indices);
        while groups != 0 {
            let group = groups.trailing_zeros() as usize;
            groups &= groups - 1;
            for index in clip(group, &indices) {
                if let Some(slot) = self.slot(index) {
                    f(self.address(index), slot.pte)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns the indices of the entries of `range`. Panics if the range does not fit the table.
    #[inline]
    fn indices(&self, range: VaRange) -> Range<usize> {
        let first = range.start().index(Level::Pte);
        assert!(self.address(first) == range.start(), "{NOT_OF_TABLE}");
        let end = first + (range.len() / PAGE_SIZE) as usize;
        assert!(range.len().is_multiple_of(PAGE_SIZE) && end <= ENTRIES, "{NOT_OF_TABLE}");
        first..end
    }

    /// Returns the groups that may hold a non-empty entry among `indices`.
    #[inline]
    fn filled(&self, indices: &Range<usize>) -> u64 {
        if indices.is_empty() {
            return 0;
        }
        groups::filled(self.table.meta, indices.start, indices.end)
    }

    /// Returns the address that the entry at `index` translates.
    #[inline]
    fn address(&self, index: usize) -> VirtAddr {
        VirtAddr::new(self.table.base.get() + index as u64 * PAGE_SIZE)
    }

    /// Returns the entry at `index`, or `None` if it is empty.
    #[inline]
    fn slot(&self, index: usize) -> Option<ZapEntry<'a, F>> {
        let entry = self.table.table.entry_inside(index);
        // Relaxed: only the hardware's accessed and dirty bits are written without the lock that this guard
        // holds.
        let raw = entry.load(Ordering::Relaxed);
        (raw != 0).then_some(ZapEntry { entry, pte: Pte::from_raw(raw), cleared: false })
    }
}

/// Returns the part of `indices` that is inside `group`.
#[inline]
fn clip(group: usize, indices: &Range<usize>) -> Range<usize> {
    (group * GROUP).max(indices.start)..((group + 1) * GROUP).min(indices.end)
}

/// A bit for each visited entry of a group: set if hardware may have cached the entry. Bit 63 belongs to the
/// last entry visited. Recording an entry costs one shift in a register.
#[derive(Clone, Copy, Default)]
struct CachedBits(u64);

impl CachedBits {
    /// Records the next entry.
    #[inline]
    fn push(&mut self, cached: bool) {
        self.0 = self.0 >> 1 | u64::from(cached) << 63;
    }
}

/// The range from the first to the last changed entry that hardware may have cached.
struct ChangedEntries {
    first: usize,
    end: usize,
}

impl ChangedEntries {
    /// Returns an empty range.
    #[inline]
    fn none() -> Self {
        ChangedEntries { first: usize::MAX, end: 0 }
    }

    /// Adds the entries of a group that ends at `end`. Groups are added in ascending order.
    #[inline]
    fn add(&mut self, end: usize, cached: CachedBits) {
        if cached.0 != 0 {
            self.first = self.first.min(end - (u64::BITS - cached.0.trailing_zeros()) as usize);
            self.end = end - cached.0.leading_zeros() as usize;
        }
    }

    /// Passes the range to `stale`, unless it is empty.
    #[inline]
    fn report<F: Format, M: TableMemory>(
        &self,
        guard: &PteGuard<'_, F, M>,
        stale: &mut impl StaleTranslations,
    ) {
        if self.end > 0 {
            let last = VaRange::entry(guard.address(self.end - 1), Level::Pte);
            let span = VaRange::new(guard.address(self.first), last.end());
            stale.add_changed(span, Levels::of(Level::Pte), false);
        }
    }
}
