//! Unmapping a batch of pages with one flush for each address space: [`Flushes`].
//!
//! The removal of an entry requires a flush before the frame is released, and before its contents are used. A
//! batch first removes the entries of several pages of files, or replaces those of several anonymous pages by
//! markers. The gather of each space is finished at the end of the batch, and flushes the TLBs once. The task
//! has a reference to each page until then, so the page neither leaves its cache nor is it freed. The
//! references of the removed entries are therefore dropped at once, and no gather has a list of frames.
//!
//! All lists are on the stack, because reclaim must not need memory. `stack_depth.rs` (`tests/`) measures the
//! stack.
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
use freehold_vmspace::{BatchGather, Memory, PageRange, VmSpace};

/// Maximum number of pages of a batch (Linux: SWAP_CLUSTER_MAX).
pub(super) const BATCH: usize = if CHECKED { 2 } else { 32 };
/// Maximum number of spaces that a batch flushes once each.
const SPACES: usize = if CHECKED { 2 } else { 8 };
/// Maximum number of homes whose locks a batch holds.
const HOMES: usize = if CHECKED { 2 } else { 8 };
/// Number of visited entries after which a batch ends.
const MOST_ENTRIES: u64 = if CHECKED { 2 } else { 1 << 10 };

/// The locks of the homes of the first pages of a batch, held for reading.
pub(super) struct Homes<'b, P: Platform, W: RmapKind> {
    locked: ArrayVec<LockedHome<'b, P, W>, HOMES>,
    /// Number of pages.
    pages: usize,
}

type LockedHome<'b, P, W> = (&'b RmapRoot<P, W>, RmapReadGuard<'b, P, W>);

impl<'b, P: Platform, W: RmapKind> Homes<'b, P, W> {
    /// Locks the homes of pages, except those whose locks are taken. Ends before the first page for which
    /// there is no room.
    pub fn try_lock(wanted: impl Iterator<Item = Option<&'b RmapRoot<P, W>>>) -> Self {
        let mut homes = Homes { locked: ArrayVec::new(), pages: 0 };
        for home in wanted {
            if let Some(home) = home
                && homes.of(home).is_none()
            {
                if homes.locked.is_full() {
                    break;
                }
                homes.locked.extend(home.try_read().map(|lookups| (home, lookups)));
            }
            homes.pages += 1;
        }
        homes
    }

    /// Returns the number of pages whose homes are locked, or were found locked.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Returns the lock of a home, if it is held.
    pub fn of(&self, home: &RmapRoot<P, W>) -> Option<&RmapReadGuard<'b, P, W>> {
        self.locked.iter().find(|(locked, _)| core::ptr::eq(*locked, home)).map(|(_, lookups)| lookups)
    }
}

/// Returns the home of a page of a file.
pub(super) fn home_of<'b, P: Platform>(page: &'b Page<'_, P>) -> Option<&'b RmapRoot<P, IMmap>> {
    match page.home() {
        AnyRmapRoot::File(home) => Some(home),
        AnyRmapRoot::Anon(_) => None,
    }
}

/// The flushes that the spaces of a batch need. The caller has a reference to each page, and keeps it until
/// [`finish`](Self::finish).
pub(super) struct Flushes<'h, P: Platform> {
    spaces: ArrayVec<(&'h VmSpace<P>, BatchGather<'h, P>), SPACES>,
    /// Number of visited entries.
    entries: u64,
    /// The pages of files that had dirty entries.
    written: ArrayVec<Pfn, BATCH>,
}

impl<'h, P: Platform> Flushes<'h, P> {
    pub fn new() -> Self {
        Flushes { spaces: ArrayVec::new(), entries: 0, written: ArrayVec::new() }
    }

    /// Returns true if the batch has visited enough entries.
    pub fn is_full(&self) -> bool {
        self.entries >= MOST_ENTRIES
    }

    /// Removes every entry that maps a page of a file. Returns false if the page stays mapped: its memory is
    /// locked, or the frame is locked. `lookups` is the lock of the page's home. Called once for each of at
    /// most [`BATCH`] pages.
    pub fn unmap(&mut self, page: &Page<'_, P>, lookups: &'h RmapReadGuard<'_, P, IMmap>) -> bool {
        if page.frame().maps() == 0 {
            return true;
        }
        let Some(_identity) = page.try_lock() else { return false };
        if !page.is_at_home() {
            return false;
        }
        let (mut written, mut is_locked) = (false, false);
        for place in lookups.mappers(PageRange::one(page.index())) {
            is_locked = place.vma.flags().contains(VmFlags::LOCKED);
            if is_locked {
                break;
            }
            self.entries += 1;
            written |= self.remove(place.vm, VirtAddr::new(place.range.start()), page.pfn());
        }
        if written {
            self.written.push(page.pfn());
        }
        !is_locked && page.frame().maps() == 0
    }

    /// Removes the entry at `address` if it maps `pfn`. Returns true if the entry was dirty.
    fn remove(&mut self, vm: &'h VmSpace<P>, address: VirtAddr, pfn: Pfn) -> bool {
        match self.gather_of(vm) {
            Some(gather) => vm.gather_entry(address, pfn, gather),
            None => {
                vm.take_entry(address, Level::Pte, pfn, Pte::NONE);
                false
            }
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
    fn gather_of(&mut self, vm: &'h VmSpace<P>) -> Option<&mut BatchGather<'h, P>> {
        let found = self.spaces.iter().position(|(space, _)| core::ptr::eq(*space, vm));
        if found.is_none() {
            self.spaces.try_push((vm, vm.batch_gather()?)).ok()?;
        }
        let at = found.unwrap_or(self.spaces.len() - 1);
        Some(&mut self.spaces[at].1)
    }

    /// Flushes each space.
    pub fn finish(&mut self, memory: &Memory<P>) {
        self.spaces.iter_mut().for_each(|(_, gather)| gather.finish());
        // Again: until the flush, processors may have stored through old translations, even after a
        // concurrent write-back.
        self.written.drain(..).for_each(|pfn| memory.set_dirty_late(memory.platform().frame(pfn)));
    }
}
