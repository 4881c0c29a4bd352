//! The file /proc/PID/clear_refs: clears the accessed bits of a process's pages, so that smaps later shows
//! which pages were used after the call.
//!
//! `clear_refs` visits one VMA at a time under the lock of that VMA (`with_next_vma` in `maps.rs`).
//! `freehold-vmspace/src/aging.rs` clears the bits and flushes the TLBs of each VMA. Without the flush, CPUs
//! would not set a cleared bit again.
//! `reports::usage::clear_refs_clears_accessed_bits_of_the_selected_memory` (`engine/freehold/tests`) tests
//! this file.

use crate::space::AddressSpace;
use crate::{
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use freehold_vmspace::Aging;

/// The VMAs whose accessed bits are cleared, with Linux's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClearRefs {
    /// All VMAs.
    All = 1,
    /// VMAs without a file.
    Anonymous = 2,
    /// VMAs with a file, and shared memory.
    Mapped = 3,
}

impl ClearRefs {
    /// Returns true if the accessed bits of `vma` are to be cleared.
    fn concerns<P: Platform>(self, vma: &Vma<P>) -> bool {
        // Linux skips huge pages of pools and frames of drivers.
        let is_known = !vma.flags().intersects(VmFlags::HUGETLB | VmFlags::PFNMAP);
        let has_file = vma.object().file().is_some();
        is_known
            && match self {
                ClearRefs::All => true,
                ClearRefs::Anonymous => !has_file,
                ClearRefs::Mapped => has_file,
            }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Clears the accessed bits of the pages of the selected VMAs. [`smaps`](Self::smaps) counts pages whose
    /// bit is set as referenced.
    ///
    /// Flushes the TLB entries of each VMA. An access that begins after this call has returned therefore sets
    /// the bit again.
    ///
    /// # Locks
    ///
    /// The locks of [`smaps`](Self::smaps).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*};
    /// # use freehold::report::clear_refs::ClearRefs;
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// assert_eq!(space.smaps(at).next().unwrap().usage.referenced, PAGE_SIZE);
    /// space.clear_refs(ClearRefs::All);
    /// assert_eq!(space.smaps(at).next().unwrap().usage.referenced, 0);
    /// ```
    pub fn clear_refs(&self, which: ClearRefs) {
        let mut at = 0;
        let clear = |vma: &Vma<P>, part| {
            if which.concerns(vma) {
                self.vm.age(part, Aging::Accessed);
            }
            vma.end()
        };
        while let Some(end) = self.with_next_vma(at, clear) {
            at = end;
        }
    }
}
