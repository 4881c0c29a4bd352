//! Readahead of swapped pages: a fault that must read a page from a device also begins reads of pages near
//! it.
//!
//! The pages that are read ahead are a *window*: the page of the fault and the next ones in the direction of
//! the faults, in the same VMA. Only pages that the window finds on a device are read. The fault does not
//! wait for them, and a failure to read them is no error. They are in the swap cache afterwards, where faults
//! find them and reclaim can drop them.
//!
//! `swap/window.rs` determines the window, and `file/swap_in.rs` sends the reads.
//!
//! `swap.rs` calls this file. `tests/swapped/ahead.rs` tests it.

use crate::{
    PAGE_SIZE, VirtAddr,
    file::SwapWindow,
    platform::Platform,
    space::AddressSpace,
    swap::SwapEntry,
    vma::{Vma, flags::VmFlags},
};
use freehold_vmspace::SwapMark;

impl<P: Platform> AddressSpace<P> {
    /// Returns the entries that are to be read ahead beside a fault at `page`, ordered by slots. The caller
    /// holds a lock of the VMA, which keeps its tables.
    pub(super) fn swap_window(&self, vma: &Vma<P>, page: u64) -> SwapWindow {
        let mut ahead = SwapWindow::new();
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
}
