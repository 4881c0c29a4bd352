//! Choosing the anon_vma of a VMA that is to have its first anonymous page.

use crate::space::{
    AddressSpace,
    held_lock::HeldLock,
    locking::{NeedMmapLock, ReadGuard, WriteGuard},
};
use crate::{
    error::NoMemory,
    platform::Platform,
    rmap::tree::{lock::GATHERING, root::RmapRoot},
    vma::{AnonVma, Vma, flags::VmFlags},
};
use freehold_sync::{Rank, RwSem};

/// Why a VMA has no anon_vma yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnonVmaError {
    /// No memory.
    NoMemory,
    /// The mmap lock could not be had at once.
    NeedMmapLock,
}

impl<P: Platform> AddressSpace<P> {
    /// Makes sure that the VMA has an anon_vma before its first anonymous page.
    ///
    /// Choosing one looks at the neighbours, so it needs the mmap lock, or beside range writers the
    /// neighbours' locks. With only the VMA's lock held these may be tried for but not waited for: a writer
    /// may be waiting for this very VMA (`docs/locking.md`, part 3).
    #[inline]
    pub(crate) fn prepare_anon(&self, vma: &Vma<P>, held: HeldLock<'_, '_, P>) -> Result<(), AnonVmaError> {
        if vma.anon().is_some() {
            return Ok(());
        }
        self.attach_first_anon_vma(vma, held)
    }

    #[inline(never)]
    fn attach_first_anon_vma(&self, vma: &Vma<P>, held: HeldLock<'_, '_, P>) -> Result<(), AnonVmaError> {
        let attached = match held {
            HeldLock::Mmap(guard) => self.attach_anon_vma(guard, vma),
            HeldLock::Vma if self.has_range_writers() => return self.attach_by_neighbour_locks(vma),
            HeldLock::Vma => self.attach_anon_vma(&self.try_read().ok_or(AnonVmaError::NeedMmapLock)?, vma),
        };
        attached.map_err(|NoMemory| AnonVmaError::NoMemory)
    }

    /// The same beside range writers: the neighbours stand still by their own locks, which are tried for.
    fn attach_by_neighbour_locks(&self, vma: &Vma<P>) -> Result<(), AnonVmaError> {
        let neighbour = |addr: u64| match self.lock_vma(addr) {
            Ok(read) => Ok(Some(read)),
            Err(NeedMmapLock::Hole) => Ok(None),
            Err(NeedMmapLock::Busy) => Err(AnonVmaError::NeedMmapLock),
        };
        let prev = if vma.start() > 0 { neighbour(vma.start() - 1)? } else { None };
        let next = neighbour(vma.end())?;
        self.join_anon_vma(vma, prev.as_deref(), next.as_deref()).map_err(|NoMemory| AnonVmaError::NoMemory)
    }

    fn attach_anon_vma(&self, guard: &ReadGuard<'_, P>, vma: &Vma<P>) -> Result<(), NoMemory> {
        let (prev, next) = guard.neighbours(vma);
        self.join_anon_vma(vma, prev, next)
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
        let (prev, next) = guard.neighbours(vma.range());
        let Some(part) = guard.range_writer() else { return self.join_anon_vma(vma, prev, next) };
        // A neighbour beyond what is claimed, of a VMA that has grown. If that is being changed, it is passed
        // over: so it is when the change comes later.
        let (from, to) = part.map.claimed_range();
        let beyond = |at: Option<u64>| at.and_then(|at| self.lock_vma(at).ok());
        let before = beyond((vma.start() == from).then(|| from.checked_sub(1)).flatten());
        let behind = beyond((vma.end() == to).then_some(to));
        self.join_anon_vma(vma, prev.or(before.as_deref()), next.or(behind.as_deref()))
    }

    /// A neighbour's anon_vma where a later change of rights could make the two one VMA again; else a new
    /// one.
    fn join_anon_vma(
        &self,
        vma: &Vma<P>,
        prev: Option<&Vma<P>>,
        next: Option<&Vma<P>>,
    ) -> Result<(), NoMemory> {
        let next = next.filter(|next| continues(vma, next));
        let prev = prev.filter(|prev| continues(prev, vma));
        let usable = |vma: &&Vma<P>| vma.anon().is_some() && !vma.anon().is_forked();
        match next.filter(usable).or(prev.filter(usable)) {
            Some(neighbour) => vma.attach_anon_vma(neighbour.anon_vma()),
            None => vma.attach_anon_vma(AnonVma {
                id: self.engine.new_anon(),
                tree: Some(&*RmapRoot::try_new(RwSem::new(Rank::AnonVma).with_passing_writers(GATHERING))?),
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
