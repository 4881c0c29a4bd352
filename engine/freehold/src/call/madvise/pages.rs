//! Advice about the pages that are mapped: taking them away.

use super::advice::{Advice, check_seal, fail_on_hole};
use crate::{
    error::MadviseError,
    platform::Platform,
    space::{
        AddressSpace,
        change::{
            anon::AnonVmaError,
            vma_ranges::{HolePolicy, VmaRanges},
        },
        held_lock::HeldLock,
    },
    uffd::event::Notice,
    vma::{Vma, flags::VmFlags},
};
use freehold_vmspace::{Aging, HugePageSize, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// Under the lock of the VMA alone where the range lies in one, like a fault: nothing but its pages
    /// changes. Otherwise under the mmap lock. Each lock is let go of before another is taken, and what
    /// was found under one is forgotten.
    pub(super) fn advise_pages(&self, range: UserRange, advice: Advice) -> Result<(), MadviseError> {
        if let Ok(vma) = self.lock_vma(range.start())
            && range.end() <= vma.end()
            && !(advice == Advice::GuardInstall && lacks_anon_vma(&vma))
            && !vma.flags().intersects(VmFlags::UFFD)
        {
            return self.advise_part(&vma, range, advice, HeldLock::Vma);
        }
        let (mut rest, mut no_holes) = (range, true);
        while !rest.is_empty() {
            let guard = self.read_killable()?;
            let advise = |vma: &Vma<P>, part: UserRange| {
                if discards(advice) && vma.uffd().is_some() {
                    may_advise(vma, advice)?;
                    if let Some(notice) = Notice::remove(vma, part) {
                        return Err(AdviceEnd::Notify(notice, part));
                    }
                }
                Ok(self.advise_part(vma, part, advice, HeldLock::Mmap(&guard))?)
            };
            match guard.for_each_vma_range(rest, HolePolicy::Skip, advise) {
                Ok(whole) => {
                    no_holes &= whole;
                    break;
                }
                Err(AdviceEnd::Error(error)) => return Err(error),
                Err(AdviceEnd::Notify(notice, part)) => {
                    no_holes &= !guard.has_hole(UserRange::new(rest.start(), part.start()));
                    drop(guard);
                    notice.send();
                    rest = rest.with_start(self.discard_notified(part, advice)?);
                }
            }
        }
        fail_on_hole(no_holes)
    }

    /// Advises the start of `part`, of which a userfaultfd has been told: what lies there may be something
    /// else by now (hazard C-69). Returns where it ends.
    fn discard_notified(&self, part: UserRange, advice: Advice) -> Result<u64, MadviseError> {
        let guard = self.read_killable()?;
        let vma = guard.find(part.start()).ok_or(MadviseError::NotMapped)?;
        let part = part.with_end(part.end().min(vma.end()));
        self.advise_part(vma, part, advice, HeldLock::Mmap(&guard))?;
        Ok(part.end())
    }

    /// The caller holds the lock of `vma`, or the mmap lock.
    fn advise_part(
        &self,
        vma: &Vma<P>,
        part: UserRange,
        advice: Advice,
        held: HeldLock<'_, '_, P>,
    ) -> Result<(), MadviseError> {
        may_advise(vma, advice)?;
        match advice {
            Advice::DontNeed | Advice::DontNeedLocked => return self.discard_part(vma, part),
            Advice::GuardInstall => {
                if lacks_anon_vma(vma)
                    && let Err(AnonVmaError::NoMemory) = self.prepare_anon(vma, held)
                {
                    return Err(MadviseError::OutOfMemory);
                }
                self.install_guards(vma, part)?;
            }
            Advice::GuardRemove => self.remove_guards(part),
            // Pages that are freed lazily keep their contents: nothing takes them when memory is short.
            Advice::Free => self.vm.age(part, Aging::LazyFree),
            Advice::Cold => self.vm.age(part, Aging::AccessedIfUnshared),
            _ => {}
        }
        Ok(())
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Of huge pages only whole ones go, and none that the range begins inside of (hazard C-29).
    fn discard_part(&self, vma: &Vma<P>, part: UserRange) -> Result<(), MadviseError> {
        let Some(bytes) = vma.huge_page_size().map(HugePageSize::bytes) else {
            let zap = vma.zap().keep_guards().keep_wp(vma.keeps_wp());
            match self.engine.reclaims_tables() {
                true => self.vm.discard_with_tables(part, zap),
                false => self.vm.discard(part, zap),
            }
            return Ok(());
        };
        if !part.start().is_multiple_of(bytes) {
            return Err(MadviseError::Invalid);
        }
        let part = part.with_end(part.end() - part.end() % bytes);
        if !part.is_empty() {
            self.discard_huge_pages(vma, part);
        }
        Ok(())
    }
}

/// What ends a pass over the parts before its end.
enum AdviceEnd<P: Platform> {
    Error(MadviseError),
    /// A userfaultfd is to be told first that pages of this part go.
    Notify(Notice<P>, UserRange),
}

impl<P: Platform> From<MadviseError> for AdviceEnd<P> {
    fn from(error: MadviseError) -> Self {
        AdviceEnd::Error(error)
    }
}

/// Whether pages go, as far as a userfaultfd is to hear of it.
fn discards(advice: Advice) -> bool {
    matches!(advice, Advice::DontNeed | Advice::DontNeedLocked | Advice::Free)
}

/// Whether a VMA takes an advice.
fn may_advise<P: Platform>(vma: &Vma<P>, advice: Advice) -> Result<(), MadviseError> {
    check_seal(vma, advice)?;
    if vma.flags().intersects(refusing_flags(advice)) || (advice == Advice::Free && !vma.is_anonymous()) {
        return Err(MadviseError::Invalid);
    }
    Ok(())
}

/// Private anonymous memory that guards would be the first thing in: it gets an anon_vma before, as for a
/// page, which later merges depend on, and choosing one needs the mmap lock.
fn lacks_anon_vma<P: Platform>(vma: &Vma<P>) -> bool {
    vma.is_anonymous() && !vma.anon().is_some()
}

/// VMAs that cannot take an advice.
fn refusing_flags(advice: Advice) -> VmFlags {
    match advice {
        Advice::DontNeedLocked => VmFlags::PFNMAP,
        Advice::DontNeed | Advice::Free => VmFlags::PFNMAP | VmFlags::LOCKED,
        Advice::Cold | Advice::PageOut => VmFlags::PFNMAP | VmFlags::LOCKED | VmFlags::HUGETLB,
        Advice::GuardInstall => VmFlags::SPECIAL | VmFlags::HUGETLB | VmFlags::LOCKED,
        Advice::GuardRemove => VmFlags::SPECIAL | VmFlags::HUGETLB,
        _ => VmFlags::empty(),
    }
}
