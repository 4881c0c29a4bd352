//! Blocks of anonymous memory: one store allocates and maps several small pages at once (multi-size THP).
//!
//! ```text
//! all entries of the block are empty   write -> a frame for each of its pages
//! any entry is in use                  write -> the next smaller block; finally the single page
//! ```
//!
//! Linux allocates a block as contiguous memory (a folio of multi-size THP) and maps it by one entry for each
//! small page. Programs can observe only those entries. Here each page therefore has its own frame, and code
//! that removes, copies or shares a page does not need to know about blocks. As without blocks, a read maps
//! only one zero page, and copy-on-write copies only one page.
//!
//! `anon.rs` calls [`block_fault`](AddressSpace::block_fault) for the first store to a page, while a lock
//! keeps the VMA unchanged. [`Engine::set_blocks`](crate::engine::Engine::set_blocks) sets the sizes, which
//! `engine/config.rs` defines; `shmem_mthp.rs` is the counterpart for shared memory. The entries of a block
//! are checked again under the lock of the table (`map_block` of `freehold-vmspace`), because the first check
//! reads them without a lock. `tests/huge/blocks.rs` tests which pages a store allocates.

use super::{FaultOutcome, vma_pte_flags, written};
use crate::{
    PAGE_SIZE, Pfn, VirtAddr,
    engine::Blocks,
    file::kinds::shmem_huge::largest_first,
    platform::Platform,
    space::AddressSpace,
    vma::{Vma, flags::VmFlags},
};
use arrayvec::ArrayVec;
use freehold_pagetable::PteTable;
use freehold_vmspace::{UserRange, VmSpace};

/// Number of frames in the largest block.
const MAX_BLOCK_FRAMES: usize = (Blocks::LARGEST / PAGE_SIZE) as usize;

impl<P: Platform> AddressSpace<P> {
    /// Fills the largest allowed block around `page`, for a store to an empty entry. Returns `None` if the
    /// store must allocate a single page.
    #[inline(never)]
    pub(super) fn block_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        table: PteTable<'_, P::Format, P>,
    ) -> Option<FaultOutcome<P>> {
        let mut new = BlockFrames { vm: &self.vm, frames: ArrayVec::new() };
        let mut around =
            largest_first(self.block_sizes(vma)).filter_map(|bytes| block_around(vma, page, bytes));
        let block = around.find(|block| {
            // The entries are read without the table's lock, so the result is a hint. A block lies in one
            // table.
            let free = addresses(*block).all(|address| table.peek(address).is_none());
            free && new.fill(vma, *block)
        })?;
        if self.may_have_lost_pages(vma) {
            return Some(FaultOutcome::Retry);
        }
        let rights = vma_pte_flags(vma.flags()) | written(vma.flags());
        if !self.vm.map_block(table, VirtAddr::new(block.start()), &new.frames, rights) {
            return Some(FaultOutcome::Retry);
        }
        // The frames are mapped now, so dropping `new` must not free them.
        new.frames.clear();
        Some(FaultOutcome::Done)
    }

    /// Returns true if `vma` may contain a block.
    pub(super) fn may_hold_block(&self, vma: &Vma<P>) -> bool {
        let mut sizes = largest_first(if vma.is_anonymous() { self.block_sizes(vma) } else { 0 });
        // If a block fits anywhere in the VMA, one fits at its end.
        sizes.any(|bytes| {
            let last = vma.end().checked_sub(bytes);
            last.is_some_and(|last| block_around(vma, last, bytes).is_some())
        })
    }

    /// Returns the sum of the sizes of blocks that are allowed in `vma`.
    fn block_sizes(&self, vma: &Vma<P>) -> u64 {
        let (blocks, flags) = (self.engine.blocks(), vma.flags());
        if flags.intersects(VmFlags::NOHUGEPAGE | VmFlags::UFFD) || self.disables_thp(vma) {
            return 0;
        }
        blocks.always | if flags.contains(VmFlags::HUGEPAGE) { blocks.advised } else { 0 }
    }
}

/// Returns the aligned block of `bytes` bytes that contains `page`, if the whole block lies in `vma`.
fn block_around<P: Platform>(vma: &Vma<P>, page: u64, bytes: u64) -> Option<UserRange> {
    let first = page & !(bytes - 1);
    let fits = first >= vma.start() && first < vma.end() && vma.end() - first >= bytes;
    fits.then(|| UserRange::at(first, bytes))
}

/// Iterates over the addresses of the pages of a block.
pub(super) fn addresses(block: UserRange) -> impl Iterator<Item = VirtAddr> + use<> {
    block.iter().map(VirtAddr::new)
}

/// The frames of a block that is not mapped yet. Dropping the value frees them.
struct BlockFrames<'e, P: Platform> {
    vm: &'e VmSpace<P>,
    frames: ArrayVec<Pfn, MAX_BLOCK_FRAMES>,
}

impl<P: Platform> BlockFrames<'_, P> {
    /// Allocates zeroed frames for `block`, each counted as mapped once. Returns false, and keeps no frame,
    /// if there are too few.
    fn fill(&mut self, vma: &Vma<P>, block: UserRange) -> bool {
        for address in addresses(block) {
            let Ok(frame) = self.vm.alloc_anon(true, vma.anon_page(address.get())) else {
                self.discard();
                return false;
            };
            self.frames.push(frame);
        }
        true
    }

    /// Frees the frames.
    fn discard(&mut self) {
        self.frames.drain(..).for_each(|frame| self.vm.memory().discard_anon(frame));
    }
}

impl<P: Platform> Drop for BlockFrames<'_, P> {
    fn drop(&mut self) {
        self.discard();
    }
}
