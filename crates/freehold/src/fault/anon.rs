//! Faults on private anonymous memory with nothing there yet.

use super::{Access, Held, Step, cow::written, vma_pte_flags};
use crate::{
    VirtAddr,
    error::NoMemory,
    platform::Platform,
    rmap::{FileRmap, home::Home},
    space::{
        AddressSpace, RssKind,
        locking::{ReadGuard, WriteGuard},
    },
    vma::{Family, Vma, flags::VmFlags},
};
use freehold_pagetable::{Pte, PteFlags, PteTable};

impl<P: Platform> AddressSpace<P> {
    /// A read maps the zero page; a write, a frame of its own, or a [block](super::block) of them. `table` is the one for `page`.
    #[inline]
    pub(super) fn anon_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        held: Held<'_, '_, P>,
        table: PteTable<'_, P::Format, P>,
    ) -> Step<P> {
        let (address, rights) = (VirtAddr::new(page), vma_pte_flags(vma.flags()));
        if !access.write {
            let zero = Pte::page(self.engine.zero, rights | PteFlags::SPECIAL);
            // If the slot is not empty any more, somebody else was faster, and the access will show what is there.
            let _ = table.lock().install(address, zero);
            return Step::Done;
        }
        if let Err(step) = self.prepare_anon(vma, held) {
            return step;
        }
        if self.engine.brings_blocks()
            && let Some(step) = self.block_fault(vma, page, table)
        {
            return step;
        }
        let Ok(frame) = self.engine.alloc_anon(true, vma, page) else { return Step::OUT_OF_MEMORY };
        let pte = Pte::page(frame, rights | written(vma.flags()));
        // The lock ends here: nothing is freed under it.
        let installed = table.lock().install(address, pte);
        match installed {
            Ok(()) => self.counters.count_page(RssKind::Anon, 1),
            Err(_) => self.engine.discard_anon(frame),
        }
        Step::Done
    }

    /// Makes sure that the VMA has a family before its first anonymous page.
    ///
    /// Choosing one looks at the neighbours, so it needs the mmap lock. With only the VMA's lock held the mmap lock may be
    /// tried for but not waited for: a writer may be waiting for this very VMA (`docs/locking.md`, order).
    #[inline]
    pub(crate) fn prepare_anon(&self, vma: &Vma<P>, held: Held<'_, '_, P>) -> Result<(), Step<P>> {
        if vma.anon().is_some() {
            return Ok(());
        }
        self.adopt_first(vma, held)
    }

    #[inline(never)]
    fn adopt_first(&self, vma: &Vma<P>, held: Held<'_, '_, P>) -> Result<(), Step<P>> {
        let adopted = match held {
            Held::Mmap(guard) => self.adopt_family(guard, vma),
            Held::Vma => self.adopt_family(&self.try_read().ok_or(Step::Climb)?, vma),
        };
        adopted.map_err(|NoMemory| Step::OUT_OF_MEMORY)
    }

    fn adopt_family(&self, guard: &ReadGuard<'_, P>, vma: &Vma<P>) -> Result<(), NoMemory> {
        let prev = vma.start().checked_sub(1).and_then(|at| guard.find(at));
        self.join_family(vma, prev, guard.find(vma.end()))
    }

    /// As [`prepare_anon`](Self::prepare_anon), with the mmap lock held for writing.
    pub(crate) fn prepare_anon_exclusive(
        &self,
        guard: &WriteGuard<'_, P>,
        vma: &Vma<P>,
    ) -> Result<(), NoMemory> {
        if vma.anon().is_some() {
            return Ok(());
        }
        let prev = vma.start().checked_sub(1).and_then(|at| guard.find(at));
        self.join_family(vma, prev, guard.find(vma.end()))
    }

    /// A neighbour's family where a later change of rights could make the two one VMA again; else a new one.
    fn join_family(
        &self,
        vma: &Vma<P>,
        prev: Option<&Vma<P>>,
        next: Option<&Vma<P>>,
    ) -> Result<(), NoMemory> {
        let next = next.filter(|next| continues(vma, next));
        let prev = prev.filter(|prev| continues(prev, vma));
        let usable = |vma: &&Vma<P>| vma.anon().is_some() && !vma.anon().is_forked();
        match next.filter(usable).or(prev.filter(usable)) {
            Some(neighbour) => vma.adopt(neighbour.family()),
            None => vma.adopt(Family {
                id: self.engine.new_anon(),
                tree: Some(&*Home::try_new(FileRmap::Shared, None)?),
            }),
        }
        Ok(())
    }
}

/// Whether two VMAs that touch could be one if their access rights were the same.
fn continues<P: Platform>(low: &Vma<P>, high: &Vma<P>) -> bool {
    let (a, b) = (low.attrs(), high.attrs());
    let differ = (a.flags ^ b.flags) - VmFlags::STICKY - VmFlags::ACCESS;
    low.end() == high.start()
        && differ.is_empty()
        && a.policy == b.policy
        && a.object.same(b.object)
        && a.pgoff + low.pages() == b.pgoff
}
