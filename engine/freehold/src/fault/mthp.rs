//! Blocks of anonymous memory: one store brings several small pages, all there at once.
//!
//! ```text
//! nothing in the block   write -> a frame for each of its pages
//! anything in it         write -> the next smaller block around the page; in the end the page alone
//! ```
//!
//! Linux takes a block from memory in one piece (a folio of multi-size THP), and maps it by an entry for each
//! of its small pages. Programs see those entries alone, so here each page has a frame of its own: what
//! takes, copies or shares a page needs to know of no block. A read brings one page of zeroes, and a copy is
//! one page, as where there are no blocks.

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

/// Frames of the largest block.
const MOST: usize = (Blocks::LARGEST / PAGE_SIZE) as usize;

impl<P: Platform> AddressSpace<P> {
    /// A store to `page`, where nothing is, fills the largest block around it that may come. `None`: the page
    /// comes alone.
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
            // Read without the table's lock: a hint. A block lies in one table.
            let free = addresses(*block).all(|address| table.peek(address).is_none());
            free && new.fill(vma, *block)
        })?;
        let rights = vma_pte_flags(vma.flags()) | written(vma.flags());
        if !self.vm.map_block(table, VirtAddr::new(block.start()), &new.frames, rights) {
            return Some(FaultOutcome::Retry);
        }
        // They are mapped.
        new.frames.clear();
        Some(FaultOutcome::Done)
    }

    /// Whether a block may come anywhere in `vma`.
    pub(super) fn may_hold_block(&self, vma: &Vma<P>) -> bool {
        let mut sizes = largest_first(if vma.is_anonymous() { self.block_sizes(vma) } else { 0 });
        // If one fits anywhere, then at the end.
        sizes.any(|bytes| {
            let last = vma.end().checked_sub(bytes);
            last.is_some_and(|last| block_around(vma, last, bytes).is_some())
        })
    }

    /// The sizes of blocks that may come in `vma`, added up.
    fn block_sizes(&self, vma: &Vma<P>) -> u64 {
        let (blocks, flags) = (self.engine.blocks(), vma.flags());
        if flags.intersects(VmFlags::NOHUGEPAGE | VmFlags::UFFD) || self.disables_thp(vma) {
            return 0;
        }
        blocks.always | if flags.contains(VmFlags::HUGEPAGE) { blocks.advised } else { 0 }
    }
}

/// The block of so many bytes that `page` lies in, if all of it lies in `vma`.
fn block_around<P: Platform>(vma: &Vma<P>, page: u64, bytes: u64) -> Option<UserRange> {
    let first = page & !(bytes - 1);
    let fits = first >= vma.start() && first < vma.end() && vma.end() - first >= bytes;
    fits.then(|| UserRange::at(first, bytes))
}

/// The pages of a block.
pub(super) fn addresses(block: UserRange) -> impl Iterator<Item = VirtAddr> + use<> {
    block.iter().map(VirtAddr::new)
}

/// The frames of a block that is not mapped yet; they go back if it never is.
struct BlockFrames<'e, P: Platform> {
    vm: &'e VmSpace<P>,
    frames: ArrayVec<Pfn, MOST>,
}

impl<P: Platform> BlockFrames<'_, P> {
    /// Takes frames of zeroes for `block`, each counted as mapped once. False: there are not so many, and it
    /// has none.
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

    fn discard(&mut self) {
        self.frames.drain(..).for_each(|frame| self.vm.memory().discard_anon(frame));
    }
}

impl<P: Platform> Drop for BlockFrames<'_, P> {
    fn drop(&mut self) {
        self.discard();
    }
}
