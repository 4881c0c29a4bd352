//! Unmapping a batch of pages with one flush for each address space: [`Flushes`].
//!
//! The removal of an entry requires a flush before the frame is released, and before its contents are used. A
//! batch first removes the entries of several pages of files, or replaces those of several anonymous pages by
//! markers. The gather of each space keeps the references of the removed entries, and is finished at the end
//! of the batch: it flushes the TLBs once, and then releases the frames. Until then each page has a
//! reference, so it neither leaves its cache nor is it freed.
//!
//! A gather may be used only while the page tables of its space stay. The rmap locks of all pages of a batch
//! are therefore held until its flushes have ended. They are taken by tries, so their order does not matter.
//! A batch visits a bounded number of entries ([`MOST_ENTRIES`]), because tasks that change mappings wait for
//! these locks.
//!
//! A space with a listener, and a space for which a batch has no more room, is flushed for each entry.

use crate::{
    Pfn, VirtAddr,
    platform::Platform,
    rmap::{
        tree::{IMmap, RmapKind, RmapReadGuard, root::RmapRoot},
        walk::{AnyRmapRoot, Page},
    },
    vma::flags::VmFlags,
};
use arrayvec::ArrayVec;
use freehold_pagetable::{Level, Pte};
use freehold_sync::atomic::CHECKED;
use freehold_vmspace::{PageRange, VmGather, VmSpace};

/// Maximum number of pages of a batch (Linux: SWAP_CLUSTER_MAX).
pub(super) const BATCH: usize = if CHECKED { 2 } else { 32 };
/// Maximum number of spaces that a batch flushes once each.
const SPACES: usize = if CHECKED { 2 } else { 8 };
/// Number of visited entries after which a batch ends.
const MOST_ENTRIES: u64 = if CHECKED { 2 } else { 1 << 10 };

/// The locks of the homes of a batch, held for reading.
pub(super) struct Homes<'b, P: Platform, W: RmapKind>(ArrayVec<LockedHome<'b, P, W>, BATCH>);

type LockedHome<'b, P, W> = (&'b RmapRoot<P, W>, RmapReadGuard<'b, P, W>);

impl<'b, P: Platform, W: RmapKind> Homes<'b, P, W> {
    /// Locks these homes of at most [`BATCH`] pages, except those whose locks are taken.
    pub fn try_lock(wanted: impl Iterator<Item = &'b RmapRoot<P, W>>) -> Self {
        let mut homes = Homes(ArrayVec::new());
        for home in wanted {
            if homes.of(home).is_none()
                && let Some(lookups) = home.try_read()
            {
                homes.0.push((home, lookups));
            }
        }
        homes
    }

    /// Returns the lock of a home, if it is held.
    pub fn of(&self, home: &RmapRoot<P, W>) -> Option<&RmapReadGuard<'b, P, W>> {
        self.0.iter().find(|(locked, _)| core::ptr::eq(*locked, home)).map(|(_, lookups)| lookups)
    }
}

/// Returns the home of a page of a file.
pub(super) fn home_of<'b, P: Platform>(page: &'b Page<'_, P>) -> Option<&'b RmapRoot<P, IMmap>> {
    match page.home() {
        AnyRmapRoot::File(home) => Some(home),
        AnyRmapRoot::Anon(_) => None,
    }
}

/// The flushes that the spaces of a batch need, with the frames that wait for them.
pub(super) struct Flushes<'h, P: Platform> {
    spaces: ArrayVec<(&'h VmSpace<P>, VmGather<'h, P, BATCH>), SPACES>,
    /// Number of visited entries.
    entries: u64,
}

impl<'h, P: Platform> Flushes<'h, P> {
    pub fn new() -> Self {
        Flushes { spaces: ArrayVec::new(), entries: 0 }
    }

    /// Returns true if the batch has visited enough entries.
    pub fn is_full(&self) -> bool {
        self.entries >= MOST_ENTRIES
    }

    /// Removes every entry that maps a page of a file. Returns false if the page stays mapped: its memory is
    /// locked, or the frame is locked. `lookups` is the lock of the page's home.
    pub fn unmap(&mut self, page: &Page<'_, P>, lookups: &'h RmapReadGuard<'_, P, IMmap>) -> bool {
        if page.frame().maps() == 0 {
            return true;
        }
        let Some(_identity) = page.try_lock() else { return false };
        if !page.is_at_home() {
            return false;
        }
        for place in lookups.mappers(PageRange::one(page.index())) {
            if place.vma.flags().contains(VmFlags::LOCKED) {
                return false;
            }
            self.entries += 1;
            self.remove(place.vm, VirtAddr::new(place.range.start()), page.pfn());
        }
        page.frame().maps() == 0
    }

    /// Removes the entry at `address` if it maps `pfn`.
    fn remove(&mut self, vm: &'h VmSpace<P>, address: VirtAddr, pfn: Pfn) {
        match self.gather_of(vm) {
            Some(gather) => {
                gather.make_capacity(1);
                vm.gather_entry(address, Level::Pte, pfn, Pte::NONE, gather);
            }
            None => _ = vm.take_entry(address, Level::Pte, pfn, Pte::NONE),
        }
    }

    /// Replaces the entry at `address` by a migration marker if it maps `pfn`. See
    /// [`VmSpace::set_migration_entry`].
    pub fn mark(&mut self, vm: &'h VmSpace<P>, address: VirtAddr, pfn: Pfn) {
        self.entries += 1;
        match self.gather_of(vm) {
            Some(gather) => vm.gather_migration_entry(address, Level::Pte, pfn, gather),
            None => vm.set_migration_entry(address, Level::Pte, pfn),
        }
    }

    /// Returns the gather of a space. Returns `None` if the space must be flushed immediately.
    fn gather_of(&mut self, vm: &'h VmSpace<P>) -> Option<&mut VmGather<'h, P, BATCH>> {
        let found = self.spaces.iter().position(|(space, _)| core::ptr::eq(*space, vm));
        if found.is_none() {
            self.spaces.try_push((vm, vm.batch_gather()?)).ok()?;
        }
        let at = found.unwrap_or(self.spaces.len() - 1);
        Some(&mut self.spaces[at].1)
    }

    /// Flushes each space, and releases the frames.
    // Not by value, because the copy would need 5 KiB of stack.
    pub fn finish(&mut self) {
        self.spaces.iter_mut().for_each(|(_, gather)| gather.finish());
    }
}
