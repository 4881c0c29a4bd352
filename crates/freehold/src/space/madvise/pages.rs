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
    fault::{Held, Step},
    hugetlb::HugePageSize,
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
            && !(advice == Advice::GuardInstall && lacks_family(&vma))
        {
            return self.advise_part(&vma, range, advice, Held::Vma);
        }
        let guard = self.read_killable()?;
        let advise = |vma: &Vma<P>, part| self.advise_part(vma, part, advice, Held::Mmap(&guard));
        whole(guard.each_part(range, Holes::Skip, advise)?)
    }

    /// The caller holds the lock of `vma`, or the mmap lock.
    fn advise_part(
        &self,
        vma: &Vma<P>,
        part: Range<u64>,
        advice: Advice,
        held: Held<'_, '_, P>,
    ) -> Result<(), MadviseError> {
        check_seal(vma, advice)?;
        if vma.flags().intersects(refused(advice)) || (advice == Advice::Free && !vma.is_anonymous()) {
            return Err(MadviseError::Invalid);
        }
        match advice {
            Advice::DontNeed | Advice::DontNeedLocked => return self.discard_part(vma, part),
            Advice::GuardInstall => {
                if lacks_family(vma)
                    && let Err(Step::Failed(_)) = self.prepare_anon(vma, held)
                {
                    return Err(MadviseError::OutOfMemory);
                }
                self.install_guards(vma, part)?;
            }
            Advice::GuardRemove => self.remove_guards(part),
            // Freed, cold and unwanted pages go when memory is short; until then they keep their contents.
            _ => {}
        }
        Ok(())
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Of huge pages only whole ones go, and none that the range begins inside of (hazard C-29).
    fn discard_part(&self, vma: &Vma<P>, part: Range<u64>) -> Result<(), MadviseError> {
        let Some(bytes) = vma.huge_page_size().map(HugePageSize::bytes) else {
            self.discard(part, Zap::of(vma).keep_guards());
            return Ok(());
        };
        if !part.start.is_multiple_of(bytes) {
            return Err(MadviseError::Invalid);
        }
        let part = part.start..part.end - part.end % bytes;
        if !part.is_empty() {
            self.discard_huge_pages(vma, part);
        }
        Ok(())
    }
}

/// Private anonymous memory that guards would be the first thing in: it gets a family before, as for a page, which later
/// merges depend on, and choosing one needs the mmap lock.
fn lacks_family<P: Platform>(vma: &Vma<P>) -> bool {
    vma.is_anonymous() && !vma.anon().is_some()
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
