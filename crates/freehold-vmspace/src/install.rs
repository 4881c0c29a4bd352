//! Filling empty entries.

use crate::{AnonPage, NoMemory, Pfn, RssKind, VirtAddr, VmSpace, platform::Platform};
use freehold_pagetable::{Pte, PteFlags, PteTable};

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Maps the frame of zeroes at `address`, if nothing is there.
    #[inline(always)]
    pub fn map_zero(&self, table: PteTable<'_, P::Format, P>, address: VirtAddr, rights: PteFlags) {
        let zero = Pte::page(self.memory().zero(), rights | PteFlags::SPECIAL);
        // If the slot is not empty any more, somebody else was faster, and the access will show what is
        // there.
        let _ = table.lock().install(address, zero);
    }

    /// A frame for an anonymous page of this space; referenced and counted as mapped once, exclusive;
    /// zeroed if asked.
    #[inline(always)]
    pub fn alloc_anon(&self, zero: bool, page: AnonPage) -> Result<Pfn, NoMemory> {
        self.memory().alloc_anon(self.mmu(), zero, page)
    }

    /// Maps `frame`, fresh from [`alloc_anon`](Self::alloc_anon); it goes back if something is
    /// there: false.
    #[inline(always)]
    pub fn map_anon(
        &self,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        frame: Pfn,
        rights: PteFlags,
    ) -> bool {
        // The lock ends here: nothing is freed under it.
        let installed = table.lock().install(address, Pte::page(frame, rights));
        self.count_or_discard(frame, installed.is_ok());
        installed.is_ok()
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
