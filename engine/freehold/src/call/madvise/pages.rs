//! Advice that unmaps pages or changes their entries: DONTNEED (also of locked memory), FREE, COLD, and
//! guards. `pageout.rs` has PAGEOUT.
//!
//! Such advice needs only the lock of the VMA or the mmap lock for reading, because it does not change the
//! VMA. There is one exception: the first guard gives the VMA its anon_vma, and the choice of an anon_vma
//! needs the mmap lock. A userfaultfd that requested messages about removed pages is notified before the
//! pages are removed, with no lock held. The range is then looked up again.
//!
//! `guard.rs` installs and removes the guards. `mod.rs` lists the other kinds of advice and their locks. A
//! new advice of this kind needs an arm in `advise_part`, and an arm in `refusing_flags` with the flags of
//! VMAs that do not support the advice. If it unmaps pages, it also belongs in `discards`, so that a
//! userfaultfd is notified. `shuttle_engine/discard.rs` and `shuttle_engine/reclaim.rs` discard pages
//! concurrently with faults, munmap and each other.

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
    /// Applies an advice to pages. If the range lies in one VMA, takes only the VMA's lock, like a fault.
    /// Otherwise takes the mmap lock for reading. Each lock is released before another is taken, and results
    /// found under one lock are not reused under the next.
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
                    may_advise(self.platform(), vma, advice)?;
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

    /// Applies the advice to the VMA at the start of `part`, after a userfaultfd was notified. The mapping
    /// may have changed during the notification (hazard C-69). Returns the end of the processed part.
    fn discard_notified(&self, part: UserRange, advice: Advice) -> Result<u64, MadviseError> {
        let guard = self.read_killable()?;
        let vma = guard.find(part.start()).ok_or(MadviseError::NotMapped)?;
        let part = part.with_end(part.end().min(vma.end()));
        self.advise_part(vma, part, advice, HeldLock::Mmap(&guard))?;
        Ok(part.end())
    }

    /// Applies the advice to `part` of `vma`. The caller holds the lock of `vma`, or the mmap lock.
    fn advise_part(
        &self,
        vma: &Vma<P>,
        part: UserRange,
        advice: Advice,
        held: HeldLock<'_, '_, P>,
    ) -> Result<(), MadviseError> {
        may_advise(self.platform(), vma, advice)?;
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
            // Lazily freed pages keep their contents until they are taken away (`pageout.rs`).
            Advice::Free => self.vm.age(part, Aging::LazyFree(self.engine.files().reclaim.old_ages())),
            Advice::Cold => self.vm.age(part, Aging::Cold(self.engine.files().reclaim.old_ages())),
            _ => {}
        }
        Ok(())
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Unmaps the pages of `part`. In a VMA of huge pages, unmaps only pages that lie entirely in the part,
    /// and fails if the part begins inside a huge page (hazard C-29).
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

/// Reason to stop the loop over the parts before its end.
enum AdviceEnd<P: Platform> {
    /// The call fails.
    Error(MadviseError),
    /// A userfaultfd must first be notified that pages of this part will be unmapped.
    Notify(Notice<P>, UserRange),
}

impl<P: Platform> From<MadviseError> for AdviceEnd<P> {
    fn from(error: MadviseError) -> Self {
        AdviceEnd::Error(error)
    }
}

/// Returns true if the advice unmaps pages and a userfaultfd must be notified.
fn discards(advice: Advice) -> bool {
    matches!(advice, Advice::DontNeed | Advice::DontNeedLocked | Advice::Free)
}

/// Fails if the VMA does not support the advice.
pub(super) fn may_advise<P: Platform>(
    platform: &P,
    vma: &Vma<P>,
    advice: Advice,
) -> Result<(), MadviseError> {
    check_seal(platform, vma, advice)?;
    if vma.flags().intersects(refusing_flags(advice)) || (advice == Advice::Free && !vma.is_anonymous()) {
        return Err(MadviseError::Invalid);
    }
    Ok(())
}

/// Returns true for private anonymous memory without an anon_vma. Installing the first guard attaches an
/// anon_vma, as the first page does, because later merges depend on it. The choice of an anon_vma needs the
/// mmap lock.
fn lacks_anon_vma<P: Platform>(vma: &Vma<P>) -> bool {
    vma.is_anonymous() && !vma.anon().is_some()
}

/// Returns the flags of VMAs that do not support the advice.
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
