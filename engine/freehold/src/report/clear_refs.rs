//! The file /proc/PID/clear_refs: clears the accessed bits of a process's pages, so that smaps later shows
//! which pages were used after the call, or the soft-dirty bits, so that pagemap later shows which pages were
//! written.
//!
//! `clear_refs` visits one VMA at a time under the lock of that VMA (`with_next_vma` in `maps.rs`).
//! `freehold-vmspace/src/aging.rs` clears the bits and flushes the TLBs of each VMA. Without the flush, CPUs
//! would not set a cleared bit again.
//! `reports::usage::clear_refs_clears_accessed_bits_of_the_selected_memory` (`engine/freehold/tests`) tests
//! it.
//!
//! # Soft-dirty pages
//!
//! A page counts as soft-dirty if its entry has `PteFlags::SOFT_DIRTY` or its VMA has `VmFlags::SOFTDIRTY`.
//!
//! | bit | set by | cleared by |
//! | --- | --- | --- |
//! | `SOFT_DIRTY` of an entry | a fault for a store, a fill by a userfaultfd's pager, a move of the page to another address. fork copies the bit | `clear_soft_dirty`, together with the right to write |
//! | `SOFTDIRTY` of a VMA | mmap, brk, mremap that moves or grows; a merge with a VMA that has the flag. fork copies the flag | `clear_soft_dirty` |
//!
//! In a VMA without the flag, a writable entry has the bit (`check.rs` tests this rule). So every store after
//! `clear_soft_dirty` either finds the bit set, or faults and sets it. `clear_soft_dirty` holds the write
//! lock of a VMA while it changes the flag and the entries: a fault reads the flag and installs an entry, and
//! a transfer (`remote/`) checks the bit and stores, under the read lock. `tests/reports/soft_dirty.rs` tests
//! soft-dirty pages.
//!
//! A format of page tables may have no soft-dirty bit. Its entries are then decoded with the bit set, so
//! every page counts as soft-dirty.

use crate::space::AddressSpace;
use crate::{
    error::SoftDirtyError,
    platform::{Format, Platform, PteFlags},
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
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
    /// the bit again. After a fatal signal of the calling task the bits of some VMAs may stay.
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
        let mut rounds = Rounds::new();
        while let Some(end) = self.with_next_vma(at, clear) {
            at = end;
            if rounds.again::<P>().is_err() {
                break;
            }
        }
    }

    /// Clears the soft-dirty bits of all pages (a write of 4 to clear_refs). A page that is written after
    /// this call, or mapped by a call that begins after this call, is soft-dirty again:
    /// [`page_entries`](Self::page_entries) reports its entry, or [`maps`](Self::maps) the flag
    /// [`VmFlags::SOFTDIRTY`] of its VMA.
    ///
    /// Pinned anonymous pages, frames of drivers and huge pages of pools keep their bits, as on Linux.
    ///
    /// # Errors
    ///
    /// Fails with `NotSupported` if the [format](Format::FLAGS) of the page tables has no soft-dirty bit.
    /// Every page then counts as written. Fails with `Killed` if a fatal signal arrives. Some VMAs are
    /// cleared then.
    ///
    /// # Locks
    ///
    /// For each VMA, the mmap lock and the VMA's lock for writing, killably; under them each page table's
    /// lock. The caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use core::ops::ControlFlow;
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*, vma::flags::VmFlags};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 2 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// space.handle_fault(at + PAGE_SIZE, Access::WRITE).unwrap();
    /// space.clear_soft_dirty().unwrap();
    /// assert!(!space.maps(at).next().unwrap().flags.contains(VmFlags::SOFTDIRTY));
    /// // The next store to a page faults, because the page lost the right to write.
    /// space.handle_fault(at + PAGE_SIZE, Access::WRITE).unwrap();
    /// let mut dirty = Vec::new();
    /// space.page_entries(at..at + 2 * PAGE_SIZE, |run| {
    ///     dirty.push(run.soft_dirty);
    ///     ControlFlow::Continue(())
    /// });
    /// assert_eq!(dirty, [false, true]);
    /// ```
    pub fn clear_soft_dirty(&self) -> Result<(), SoftDirtyError> {
        if !P::Format::FLAGS.contains(PteFlags::SOFT_DIRTY) {
            return Err(SoftDirtyError::NotSupported);
        }
        let (mut at, mut rounds) = (0, Rounds::new());
        loop {
            rounds.again::<P>()?;
            let guard = self.write_killable()?;
            let Some(vma) = guard.next(at) else { return Ok(()) };
            let right = guard.lock_vma_killable(vma)?;
            at = vma.end();
            right.set_flags(vma.flags() - VmFlags::SOFTDIRTY);
            if !vma.flags().intersects(VmFlags::HUGETLB | VmFlags::PFNMAP) {
                self.vm.clear_soft_dirty(vma.range());
            }
        }
    }
}
