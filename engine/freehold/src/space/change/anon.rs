//! Choice of the anon_vma for a VMA that is about to get its first anonymous page.
//!
//! A VMA gets its anon_vma once, before its first page. The choice reads the neighbours of the VMA, because
//! adjacent VMAs with different anon_vmas cannot merge later. The choice is therefore made under the mmap
//! lock, or with the neighbours locked. `vma/anon_vma.rs` has the words in the VMA, and `rmap/tree/` the tree
//! of an anon_vma.
//!
//! Every fault that makes an anonymous page calls `prepare_anon` first, and so do calls that fill pages. The
//! choice must be Linux's, because it decides which VMAs merge later: `lab/freehold-model/tests/merges.rs`
//! compares it with the model.

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

/// The reason why a VMA could not get an anon_vma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnonVmaError {
    /// There is no memory.
    NoMemory,
    /// The mmap lock, or a neighbour's lock, could not be taken without waiting.
    NeedMmapLock,
}

impl<P: Platform> AddressSpace<P> {
    /// Ensures that the VMA has an anon_vma, before its first anonymous page.
    ///
    /// The choice depends on the neighbours, so it needs the mmap lock or, if there are range writers, the
    /// neighbours' locks. A caller that holds only the VMA's lock may try to take these locks but must not
    /// wait for them, because a writer may be waiting for this VMA (`docs/guide/locking.md`, part 3).
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

    /// Attaches an anon_vma if there are range writers. Tries to take the neighbours' locks, to keep the
    /// neighbours unchanged.
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

    /// Performs [`prepare_anon`](Self::prepare_anon) with the right of a writer.
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
        // A VMA that has grown can have a neighbour outside the claim. If another task is changing that
        // neighbour, this task ignores the neighbour. The result is the same as if that change came later.
        let (from, to) = part.map.claimed_range();
        let beyond = |at: Option<u64>| at.and_then(|at| self.lock_vma(at).ok());
        let before = beyond((vma.start() == from).then(|| from.checked_sub(1)).flatten());
        let behind = beyond((vma.end() == to).then_some(to));
        self.join_anon_vma(vma, prev.or(before.as_deref()), next.or(behind.as_deref()))
    }

    /// Attaches a neighbour's anon_vma, if a later change of access rights could merge the two VMAs again.
    /// Otherwise attaches a new anon_vma.
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

/// Returns true if two adjacent VMAs could merge if their access rights were equal.
fn continues<P: Platform>(low: &Vma<P>, high: &Vma<P>) -> bool {
    let (a, b) = (low.attrs(), high.attrs());
    let differ = (a.flags ^ b.flags) - VmFlags::STICKY - VmFlags::ACCESS;
    low.end() == high.start()
        && differ.is_empty()
        && a.policy == b.policy
        && a.object.same(b.object)
        && a.pgoff + low.pages() == b.pgoff
}
