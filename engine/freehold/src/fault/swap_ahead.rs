//! Readahead of swapped pages: a fault that must read a page from a device also begins reads of pages near
//! it.
//!
//! The pages that are read ahead are a *window*: the page of the fault and the next ones in the direction of
//! the faults, in the same VMA. Only pages that the window finds on a device are read. The fault does not
//! wait for them, and a failure to read them is no error. They are in the swap cache afterwards, where faults
//! find them and reclaim can drop them.
//!
//! `swap/window.rs` determines the window.
//!
//! `swap.rs` calls this file. `tests/swapped/ahead.rs` tests it.

use crate::{
    PAGE_SIZE, VirtAddr,
    platform::{PageOwner, Platform},
    space::AddressSpace,
    swap::{SwapEntry, SwapRead, SwapWindows},
    vma::{Vma, flags::VmFlags},
};
use arrayvec::ArrayVec;
use freehold_vmspace::SwapMark;

/// Entries of a window besides that of the fault.
pub(super) type Ahead = ArrayVec<SwapEntry, { SwapWindows::LARGEST as usize - 1 }>;

impl<P: Platform> AddressSpace<P> {
    /// Returns the entries that are to be read ahead beside a fault at `page`, ordered by slots. The caller
    /// holds a lock of the VMA, which keeps its tables.
    pub(super) fn swap_window(&self, vma: &Vma<P>, page: u64) -> Ahead {
        let mut ahead = Ahead::new();
        if vma.flags().contains(VmFlags::RAND_READ) {
            return ahead;
        }
        let of = |number: u64| {
            let at = number.checked_mul(PAGE_SIZE).filter(|at| (vma.start()..vma.end()).contains(at))?;
            SwapMark::of_entry(self.vm.peek(VirtAddr::new(at)).0)
                .map(|mark| SwapEntry::from_payload(mark.slot))
        };
        let number = page / PAGE_SIZE;
        let window = self.swap_windows.next(number, |page| page != number && of(page).is_some());
        ahead.extend(window.filter(|page| *page != number).filter_map(of));
        ahead.sort_unstable_by_key(|entry| entry.payload());
        ahead
    }

    /// Sends the read of a page, and begins reads of the pages of its window. The caller holds no lock.
    pub(super) fn read_ahead(&self, mut request: SwapRead<P>, entry: SwapEntry, ahead: &Ahead) {
        let (swap, memory) = (self.engine.swap(), self.engine.memory());
        let owner = PageOwner::Space(self.vm.mmu());
        // The last page of the request.
        let mut last = entry;
        for next in ahead.iter().filter(|next| **next != entry) {
            // Without memory, no page is read ahead.
            let Ok(pfn) = memory.alloc_swap(owner) else { break };
            let follows = last.device() == next.device() && last.slot() + 1 == next.slot();
            if follows && request.extend(pfn) {
                last = *next;
            } else if let Some(another) = swap.begin_read(*next, pfn) {
                swap.send_read(core::mem::replace(&mut request, another));
                last = *next;
            }
            // The cache has a reference if the read has begun.
            memory.put_frame(pfn);
        }
        swap.send_read(request);
    }
}
