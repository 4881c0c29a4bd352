//! Filling empty entries, as faults do. `huge.rs` fills the entries of huge pages, and `copy_on_write.rs`
//! handles stores to pages that are already mapped.
//!
//! The caller holds the mmap lock or the VMA's lock, in any mode, so the table stays linked, unless it is
//! reclaimed. Each function takes the lock of the table and fills a slot only if the slot is empty, because
//! another task may have filled it first. If the table was reclaimed, nothing is mapped. No memory is freed
//! under the lock of a table. `fault/` and `uffd/` of `freehold` call these functions, and `tests/fault/` and
//! `tests/uffd/fill.rs` test them there. A new function begins with `lock_linked`, because the table may have
//! been reclaimed since the caller found it.

use crate::{
    AnonPage, NoMemory, PAGE_SIZE, Pfn, Rss, RssKind, VirtAddr, VmSpace, frame::NotMapped, platform::Platform,
};
use core::ops::ControlFlow;
use freehold_pagetable::{Kind, Level, Pte, PteFlags, PteGuard, PteTable, VaRange};

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Maps the frame of zeroes at `address` if the slot is empty.
    #[inline]
    pub fn map_zero(&self, table: PteTable<'_, P::Format, P>, address: VirtAddr, rights: PteFlags) {
        let zero = Pte::page(self.memory().zero(), rights | PteFlags::SPECIAL);
        // If the slot is no longer empty, or the table was reclaimed, the retried access handles that case.
        let _ = table.lock_linked().map(|mut guard| guard.install(address, zero));
    }

    /// Allocates a frame for an anonymous page of this space. The frame has one reference, counts as mapped
    /// once, and is exclusive; its contents are zeroed if `zero` is set.
    #[inline]
    pub fn alloc_anon(&self, zero: bool, page: AnonPage) -> Result<Pfn, NoMemory> {
        self.memory().alloc_anon(self.mmu(), zero, page)
    }

    /// Maps `frame`, which [`alloc_anon`](Self::alloc_anon) has just returned. If the slot is not empty or
    /// the table was reclaimed, frees the frame and returns false.
    #[inline(always)]
    pub fn map_anon(
        &self,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        frame: Pfn,
        rights: PteFlags,
    ) -> bool {
        // The closure drops the lock, because nothing may be freed under the lock.
        let install =
            |mut guard: PteGuard<'_, P::Format, P>| guard.install(address, Pte::page(frame, rights));
        let installed = table.lock_linked().is_some_and(|guard| install(guard).is_ok());
        self.count_or_discard(frame, installed);
        installed
    }

    /// Maps `frames`, which [`alloc_anon`](Self::alloc_anon) has just returned, at consecutive addresses from
    /// `first`, all in this table. If a slot is not empty or the table was reclaimed, maps none, returns
    /// false, and leaves the frames to the caller.
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

    /// Maps frames that are not counted, for example those of a device, at consecutive addresses from
    /// `first`, all in this table. A slot that is not empty stays unchanged, and the result is false. If the
    /// table was reclaimed, no frame is mapped, and the result is also false.
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

    /// Locks a table in which pages of a page cache are to be mapped. Returns `None` if the table was
    /// reclaimed; the caller walks again.
    #[inline]
    pub fn fill_cached<'v>(&'v self, table: PteTable<'v, P::Format, P>) -> Option<CacheFill<'v, P>> {
        Some(CacheFill { vm: self, rss: Rss::default(), stale: None, guard: table.lock_linked()? })
    }

    /// Counts a frame from [`alloc_anon`](Self::alloc_anon) as resident if it was `mapped`, and frees it
    /// otherwise.
    ///
    /// # Locks
    ///
    /// The caller holds no lock, not even of a table, because this may free memory.
    #[inline(always)]
    pub fn count_or_discard(&self, frame: Pfn, mapped: bool) {
        if mapped {
            self.count_page(RssKind::Anon, 1);
        } else {
            self.memory().discard_anon(frame);
        }
    }
}

/// Returns the addresses of consecutive pages, ascending.
pub(crate) fn pages_from(first: VirtAddr) -> impl Iterator<Item = VirtAddr> {
    (first.get()..).step_by(PAGE_SIZE as usize).map(VirtAddr::new)
}

/// A locked table that is being filled with pages of a page cache.
#[doc(hidden)]
#[must_use = "`finish` counts the mapped pages"]
pub struct CacheFill<'v, P: Platform> {
    vm: &'v VmSpace<P>,
    rss: Rss,
    /// A frame that left its cache while it was being mapped, with a reference that `finish` releases. One
    /// slot is enough: after a stale frame, `put` maps no other page.
    stale: Option<Pfn>,
    guard: PteGuard<'v, P::Format, P>,
}

impl<P: Platform> CacheFill<'_, P> {
    /// Returns the entry at `address`.
    #[inline]
    pub fn get(&self, address: VirtAddr) -> Pte<P::Format> {
        self.guard.get(address)
    }

    /// Returns true if the entry at `address` is empty.
    #[inline]
    pub fn is_vacant(&self, address: VirtAddr) -> bool {
        self.guard.get(address).is_none()
    }

    /// Returns true if every entry of `range` is empty or maps a page of a cache.
    pub fn is_cached(&mut self, range: VaRange) -> bool {
        let vm = self.vm;
        let cached = |_, pte: Pte<P::Format>| match pte.kind(Level::Pte) {
            Kind::Leaf { pfn, .. } if !vm.platform().frame(pfn).is_anon() => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        };
        self.guard.for_each(range, cached).is_continue()
    }

    /// Maps a page that was found in a cache. The slot is empty, or holds a marker that the page replaces. An
    /// entry that is dirty from the start also makes the page dirty. `is_still` checks again that the cache
    /// has the page. Returns false and maps nothing if the page has left the cache, or if an earlier call
    /// found such a page.
    ///
    /// # Errors
    ///
    /// Fails if the frame has the maximum number of references. The frame is not mapped then.
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

    /// Installs an entry that counts no page. The slot is empty, or holds a marker that the entry replaces.
    pub fn put_uncounted(&mut self, address: VirtAddr, pte: Pte<P::Format>) {
        self.guard.set(address, pte);
    }

    /// Unlocks the table, ends the read section in which pages were looked up, and counts the mapped pages as
    /// resident.
    #[inline(always)]
    pub fn finish<R>(self, section: R) {
        let CacheFill { vm, rss, stale, guard } = self;
        drop(guard);
        // The section ends before a frame may be freed.
        drop(section);
        vm.count_rss(&rss);
        if let Some(stale) = stale {
            vm.memory().put_frame(stale);
        }
    }
}
