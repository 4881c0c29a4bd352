//! Filling empty entries.

use crate::{Pfn, RssKind, VirtAddr, VmSpace, platform::Platform};
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

    /// Maps `frame`, fresh from [`alloc_anon`](crate::Memory::alloc_anon); it goes back if something is
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
        match installed {
            Ok(()) => self.count_page(RssKind::Anon, 1),
            Err(_) => self.memory().discard_anon(frame),
        }
        installed.is_ok()
    }
}
