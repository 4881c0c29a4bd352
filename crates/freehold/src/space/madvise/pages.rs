//! Advice about the pages that are mapped: taking them away.

use super::{
    super::{
        AddressSpace,
        parts::{Holes, Parts},
        zap::Zap,
    },
    Advice, check_seal, whole,
};
use crate::{
    error::MadviseError,
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use core::ops::Range;

impl<P: Platform> AddressSpace<P> {
    /// Under the lock of the VMA alone where the range lies in one, like a fault: nothing but its pages changes. Otherwise
    /// under the mmap lock. Each lock is let go of before another is taken, and what was found under one is forgotten.
    pub(super) fn advise_pages(&self, range: Range<u64>, advice: Advice) -> Result<(), MadviseError> {
        if let Ok(vma) = self.lock_vma(range.start)
            && range.end <= vma.end()
        {
            return self.advise_part(&vma, range, advice);
        }
        let guard = self.read_killable()?;
        whole(guard.each_part(range, Holes::Skip, |vma, part| self.advise_part(vma, part, advice))?)
    }

    /// The caller holds the lock of `vma`, or the mmap lock.
    fn advise_part(&self, vma: &Vma<P>, part: Range<u64>, advice: Advice) -> Result<(), MadviseError> {
        check_seal(vma, advice)?;
        if vma.flags().intersects(refused(advice)) || (advice == Advice::Free && !vma.is_anonymous()) {
            return Err(MadviseError::Invalid);
        }
        match advice {
            Advice::DontNeed | Advice::DontNeedLocked => self.discard(part, Zap::of(vma).keep_guards()),
            Advice::GuardInstall => self.install_guards(vma, part)?,
            Advice::GuardRemove => self.remove_guards(part),
            // Freed, cold and unwanted pages go when memory is short; until then they keep their contents.
            _ => {}
        }
        Ok(())
    }
}

/// VMAs that cannot take an advice.
fn refused(advice: Advice) -> VmFlags {
    match advice {
        Advice::DontNeedLocked => VmFlags::PFNMAP,
        Advice::DontNeed | Advice::Free => VmFlags::PFNMAP | VmFlags::LOCKED,
        Advice::Cold | Advice::PageOut => VmFlags::PFNMAP | VmFlags::LOCKED | VmFlags::HUGETLB,
        Advice::GuardInstall => VmFlags::SPECIAL | VmFlags::HUGETLB | VmFlags::LOCKED,
        Advice::GuardRemove => VmFlags::SPECIAL | VmFlags::HUGETLB,
        _ => VmFlags::empty(),
    }
}
