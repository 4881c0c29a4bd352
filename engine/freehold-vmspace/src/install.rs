//! Filling empty entries.

use crate::{
    AnonPage, NoMemory, PAGE_SIZE, Pfn, Rss, RssKind, VirtAddr, VmSpace, frame::NotMapped, platform::Platform,
};
use core::ops::ControlFlow;
use freehold_pagetable::{Kind, Level, Pte, PteFlags, PteGuard, PteTable, VaRange};

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Maps the frame of zeroes at `address`, if nothing is there.
    #[inline]
    pub fn map_zero(&self, table: PteTable<'_, P::Format, P>, address: VirtAddr, rights: PteFlags) {
        let zero = Pte::page(self.memory().zero(), rights | PteFlags::SPECIAL);
        // If the slot is not empty any more, or the table was reclaimed, the access will show what is there.
        let _ = table.lock_linked().map(|mut guard| guard.install(address, zero));
    }

    /// A frame for an anonymous page of this space; referenced and counted as mapped once, exclusive;
    /// zeroed if asked.
    #[inline]
    pub fn alloc_anon(&self, zero: bool, page: AnonPage) -> Result<Pfn, NoMemory> {
        self.memory().alloc_anon(self.mmu(), zero, page)
    }

    /// Maps `frame`, fresh from [`alloc_anon`](Self::alloc_anon); it goes back if something is there, or the
    /// table was reclaimed: false.
    #[inline(always)]
    pub fn map_anon(
        &self,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        frame: Pfn,
        rights: PteFlags,
    ) -> bool {
        // The lock ends here: nothing is freed under it.
        let install =
            |mut guard: PteGuard<'_, P::Format, P>| guard.install(address, Pte::page(frame, rights));
        let installed = table.lock_linked().is_some_and(|guard| install(guard).is_ok());
        self.count_or_discard(frame, installed);
        installed
    }

    /// Maps `frames`, fresh from [`alloc_anon`](Self::alloc_anon), at the addresses from `first` on, which
    /// lie in this table, if nothing is at any of them; false: something is, or the table was reclaimed, and
    /// they are still the caller's.
    pub fn map_block(
        &self,
        table: PteTable<'_, P::Format, P>,
        first: VirtAddr,
        frames: &[Pfn],
        rights: PteFlags,
    ) -> bool {
        let places = || pages_from(first).zip(frames);
        let Some(mut guard) = table.lock_linked() else { return false };
        if !places().all(|(address, _)| guard.get(address).is_none()) {
            return false;
        }
        places().for_each(|(address, frame)| guard.set(address, Pte::page(*frame, rights)));
        drop(guard);
        self.count_page(RssKind::Anon, frames.len() as i64);
        true
    }

    /// Maps frames that are not counted, a device's say, at the addresses from `first` on, which lie in this
    /// table; where something is already, it stays, and the result is false. It is also false if the table
    /// was reclaimed; then none is mapped.
    pub fn map_foreign(
        &self,
        table: PteTable<'_, P::Format, P>,
        first: VirtAddr,
        frames: impl Iterator<Item = Pfn>,
        rights: PteFlags,
    ) -> bool {
        let Some(mut guard) = table.lock_linked() else { return false };
        pages_from(first).zip(frames).fold(true, |all, (address, frame)| {
            guard.install(address, Pte::page(frame, rights)).is_ok() && all
        })
    }

    /// Locks a table that pages of caches are to be mapped by. `None`: it was reclaimed, walk again.
    #[inline]
    pub fn fill_cached<'v>(&'v self, table: PteTable<'v, P::Format, P>) -> Option<CacheFill<'v, P>> {
        Some(CacheFill { vm: self, rss: Rss::default(), stale: None, guard: table.lock_linked()? })
    }

    /// Whether a frame from [`alloc_anon`](Self::alloc_anon) was mapped is known now: it is resident, or goes
    /// back.
    ///
    /// # Locks
    ///
    /// None is held, of tables neither: memory is given back.
    #[inline(always)]
    pub fn count_or_discard(&self, frame: Pfn, mapped: bool) {
        if mapped {
            self.count_page(RssKind::Anon, 1);
        } else {
            self.memory().discard_anon(frame);
        }
    }
}

/// The addresses of pages, ascending.
pub(crate) fn pages_from(first: VirtAddr) -> impl Iterator<Item = VirtAddr> {
    (first.get()..).step_by(PAGE_SIZE as usize).map(VirtAddr::new)
}

/// A locked table, which is being filled with pages of caches.
#[doc(hidden)]
#[must_use = "what was mapped is counted by `finish`"]
pub struct CacheFill<'v, P: Platform> {
    vm: &'v VmSpace<P>,
    rss: Rss,
    /// A frame that had left its cache meanwhile, with a reference. There is room for one: nothing else is
    /// mapped then.
    stale: Option<Pfn>,
    guard: PteGuard<'v, P::Format, P>,
}

impl<P: Platform> CacheFill<'_, P> {
    /// What is there.
    #[inline]
    pub fn get(&self, address: VirtAddr) -> Pte<P::Format> {
        self.guard.get(address)
    }

    /// Whether nothing is there.
    #[inline]
    pub fn is_vacant(&self, address: VirtAddr) -> bool {
        self.guard.get(address).is_none()
    }

    /// Whether the entries of `range` are empty, or map pages of caches.
    pub fn is_cached(&mut self, range: VaRange) -> bool {
        let vm = self.vm;
        let cached = |_, pte: Pte<P::Format>| match pte.kind(Level::Pte) {
            Kind::Leaf { pfn, .. } if !vm.platform().frame(pfn).is_anon() => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        };
        self.guard.for_each(range, cached).is_continue()
    }

    /// Maps a page that was found in a cache where nothing is, or a marker that it takes the place of. An
    /// entry that is dirty from the start makes the page so. `is_still` looks again whether the cache has the
    /// page; false: it has not, or another one had gone before, and nothing was mapped.
    ///
    /// # Errors
    ///
    /// The frame has as many references as can be counted; it was not mapped.
    #[inline(always)]
    pub fn put(
        &mut self,
        address: VirtAddr,
        pfn: Pfn,
        rights: PteFlags,
        is_still: impl FnOnce() -> bool,
    ) -> Result<bool, NoMemory> {
        if self.stale.is_some() {
            return Ok(false);
        }
        let frame = self.vm.platform().frame(pfn);
        match frame.try_map_cached(is_still) {
            Ok(()) => {}
            Err(NotMapped::TooManyReferences) => return Err(NoMemory),
            Err(NotMapped::Gone) => return Ok(false),
            Err(NotMapped::Stale) => {
                self.stale = Some(pfn);
                return Ok(false);
            }
        }
        self.rss.add(frame.kind(), 1);
        if rights.contains(PteFlags::DIRTY) {
            frame.set_dirty();
        }
        self.guard.set(address, Pte::page(pfn, rights));
        Ok(true)
    }

    /// Puts an entry that counts no page where nothing is, or a marker that it takes the place of.
    pub fn put_uncounted(&mut self, address: VirtAddr, pte: Pte<P::Format>) {
        self.guard.set(address, pte);
    }

    /// Unlocks the table, ends the read section in which pages were looked up, and counts what was mapped as
    /// resident.
    #[inline(always)]
    pub fn finish<R>(self, section: R) {
        let CacheFill { vm, rss, stale, guard } = self;
        drop(guard);
        // Before a frame may be given back.
        drop(section);
        vm.count_rss(&rss);
        if let Some(stale) = stale {
            vm.memory().put_frame(stale);
        }
    }
}
