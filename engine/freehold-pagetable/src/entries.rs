//! Going through the entries of one locked table that hold something.

use crate::addr::{ENTRIES, Level, PAGE_SIZE, VaRange, VirtAddr};
use crate::format::{Format, Pte};
use crate::groups::{self, GROUP};
use crate::memory::TableMemory;
use crate::table::{PteGuard, StaleTranslations};
use core::ops::{ControlFlow, Range};
use freehold_sync::atomic::{AtomicU64, Ordering};

/// The message of the panic about a range, or an address, that does not fit.
const NOT_OF_TABLE: &str = "the range leaves its table, or is of parts of pages";

/// A non-empty entry that a [zap](PteGuard::zap_each) may clear or keep.
pub struct ZapEntry<'a, F> {
    entry: &'a AtomicU64,
    pte: Pte<F>,
    cleared: bool,
}

impl<F: Format> ZapEntry<'_, F> {
    /// The entry as it was read; the hardware may have set accessed and dirty bits since.
    #[inline]
    pub fn pte(&self) -> Pte<F> {
        self.pte
    }

    /// Clears the entry by a plain store, when accessed and dirty bits are not wanted. Why that is right
    /// beside the hardware: see [`PteGuard::take_plain`].
    #[inline]
    pub fn clear(&mut self) {
        // Release, pairs with the acquire of `peek`: a look without the lock that finds the entry gone finds
        // that a gather is under way. The hardware, which takes no lock, is waited for by the flush.
        self.entry.store(0, Ordering::Release);
        self.cleared = true;
    }

    /// Clears the entry by an exchange and returns it with the last accessed and dirty bits.
    #[inline]
    pub fn take(&mut self) -> Pte<F> {
        self.cleared = true;
        // Release: as in `clear`. Not acquire: only the bits of the entry itself are wanted.
        Pte::from_raw(self.entry.swap(0, Ordering::Release))
    }

    /// Replaces the entry by a marker, by an exchange, and returns what it was.
    #[inline]
    pub fn replace(&mut self, marker: Pte<F>) -> Pte<F> {
        debug_assert!(!marker.is_cached() && !marker.is_none(), "a zap leaves markers or nothing");
        // Release: as in `clear`.
        Pte::from_raw(self.entry.swap(marker.raw(), Ordering::Release))
    }
}

impl<'a, F: Format, M: TableMemory> PteGuard<'a, F, M> {
    /// Calls `f` with the address of every non-empty entry of `range`, ascending, to clear it or keep it.
    /// `f` gets `stale` back to hand frames to it. Empty entries cost next to nothing.
    ///
    /// # Panics
    /// When `range` leaves the table or is not of whole pages; nothing has changed.
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

    /// Changes every non-empty entry of `range` in place, as [`change`](Self::change) does: `f` gets its
    /// address and what it is, and returns what it shall be (the same: nothing is written), never empty.
    /// `f` may be called again for one entry when the hardware wrote it meanwhile.
    ///
    /// # Panics
    /// As [`zap_each`](Self::zap_each).
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

    /// [Changes](Self::change) the entry of the page around `address` in place unless it is empty. A single
    /// entry needs no groups.
    ///
    /// # Panics
    /// When `address` is not in the span of this table; nothing has changed.
    #[inline]
    pub fn change_filled(
        &mut self,
        address: VirtAddr,
        stale: &mut impl StaleTranslations,
        f: impl FnMut(Pte<F>) -> Pte<F>,
    ) {
        // Not as in `indices`: a walk to this table has computed its base from the address.
        assert!(address.span_down(Level::Pmd) == self.table.base, "{NOT_OF_TABLE}");
        let Some(slot) = self.slot(address.index(Level::Pte)) else { return };
        stale.begin_change();
        let (old, new) = self.modify_from(slot.entry, slot.pte, f);
        if old != new && old.is_cached() {
            stale.add_changed(VaRange::entry(address, Level::Pte), false);
        }
    }

    /// As [`change_each`](Self::change_each), and shows each entry to `then` when it has been changed, or
    /// left as it was.
    ///
    /// # Panics
    /// As [`zap_each`](Self::zap_each).
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

    /// Calls `f` with the address and the value of every non-empty entry of `range`, ascending, until it
    /// breaks.
    ///
    /// # Panics
    /// As [`zap_each`](Self::zap_each).
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

    #[inline]
    fn indices(&self, range: VaRange) -> Range<usize> {
        let first = range.start().index(Level::Pte);
        assert!(self.address(first) == range.start(), "{NOT_OF_TABLE}");
        let end = first + (range.len() / PAGE_SIZE) as usize;
        assert!(range.len().is_multiple_of(PAGE_SIZE) && end <= ENTRIES, "{NOT_OF_TABLE}");
        first..end
    }

    #[inline]
    fn filled(&self, indices: &Range<usize>) -> u64 {
        if indices.is_empty() {
            return 0;
        }
        groups::filled(self.table.meta, indices.start, indices.end)
    }

    #[inline]
    fn address(&self, index: usize) -> VirtAddr {
        VirtAddr::new(self.table.base.get() + index as u64 * PAGE_SIZE)
    }

    #[inline]
    fn slot(&self, index: usize) -> Option<ZapEntry<'a, F>> {
        let entry = self.table.table.entry_inside(index);
        // Relaxed: written under the lock that we hold, but for accessed and dirty bits.
        let raw = entry.load(Ordering::Relaxed);
        (raw != 0).then_some(ZapEntry { entry, pte: Pte::from_raw(raw), cleared: false })
    }
}

/// The part of `indices` inside `group`.
#[inline]
fn clip(group: usize, indices: &Range<usize>) -> Range<usize> {
    (group * GROUP).max(indices.start)..((group + 1) * GROUP).min(indices.end)
}

/// The entries of a group that hardware may have cached, one bit for each entry visited: the last is bit 63.
/// One shift per entry, in a register.
#[derive(Clone, Copy, Default)]
struct CachedBits(u64);

impl CachedBits {
    #[inline]
    fn push(&mut self, cached: bool) {
        self.0 = self.0 >> 1 | u64::from(cached) << 63;
    }
}

/// The entries among which something was changed that hardware may have cached.
struct ChangedEntries {
    first: usize,
    end: usize,
}

impl ChangedEntries {
    #[inline]
    fn none() -> Self {
        ChangedEntries { first: usize::MAX, end: 0 }
    }

    /// Adds the entries of a group that ends at `end`; groups come in ascending order.
    #[inline]
    fn add(&mut self, end: usize, cached: CachedBits) {
        if cached.0 != 0 {
            self.first = self.first.min(end - (u64::BITS - cached.0.trailing_zeros()) as usize);
            self.end = end - cached.0.leading_zeros() as usize;
        }
    }

    #[inline]
    fn report<F: Format, M: TableMemory>(
        &self,
        guard: &PteGuard<'_, F, M>,
        stale: &mut impl StaleTranslations,
    ) {
        if self.end > 0 {
            let last = VaRange::entry(guard.address(self.end - 1), Level::Pte);
            stale.add_changed(VaRange::new(guard.address(self.first), last.end()), false);
        }
    }
}
