//! Whether all memory of a program may share its equal pages with others (prctl's `PR_SET_MEMORY_MERGE`). It
//! is only noted: nobody here looks for equal pages.

use crate::space::AddressSpace;
use crate::{
    error::MergeError,
    file::Object,
    platform::Platform,
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::UserRange;

/// Memory whose pages are never compared with others.
const NOT_MERGEABLE: VmFlags = VmFlags::SPECIAL
    .union(VmFlags::SHARED)
    .union(VmFlags::MAYSHARE)
    .union(VmFlags::HUGETLB)
    .union(VmFlags::DROPPABLE);

/// Whether memory with these flags can be [`MERGEABLE`](VmFlags::MERGEABLE).
pub(super) fn may_merge<P: Platform>(flags: VmFlags, object: &Object<P>) -> bool {
    !flags.intersects(NOT_MERGEABLE) && !object.is_direct()
}

/// The flags of a new mapping, which is marked only if it can be.
#[inline]
pub(super) fn with_mergeable<P: Platform>(flags: VmFlags, object: &Object<P>) -> VmFlags {
    let wrong = flags.contains(VmFlags::MERGEABLE) && !may_merge(flags, object);
    if wrong { flags - VmFlags::MERGEABLE } else { flags }
}

impl<P: Platform> AddressSpace<P> {
    /// Whether equal pages may become one wherever that can be.
    pub fn memory_merge(&self) -> bool {
        // Relaxed: one word; a change meanwhile comes before or after.
        VmFlags::from_bits_retain(self.default_flags.load(Relaxed)).contains(VmFlags::MERGEABLE)
    }

    /// Equal pages may become one, in all private memory that is mapped and will be; or nowhere any more. A
    /// forked child is like its parent, and so is an address space that an exec makes. To say what holds
    /// already changes nothing.
    ///
    /// # Errors
    ///
    /// See [`MergeError`]. New mappings are what was asked for, older ones perhaps not all.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably.
    pub fn set_memory_merge(&self, on: bool) -> Result<(), MergeError> {
        let guard = self.write_killable()?;
        if on == self.memory_merge() {
            return Ok(());
        }
        // Relaxed: under the mmap lock, like every access that must agree with another.
        let defaults = VmFlags::from_bits_retain(self.default_flags.load(Relaxed)) - VmFlags::MERGEABLE;
        let wanted = if on { VmFlags::MERGEABLE } else { VmFlags::empty() };
        self.default_flags.store((defaults | wanted).bits(), Relaxed);
        let mut rounds = Rounds::new();
        // As on Linux, neighbours that have become alike stay apart.
        guard.vmas(UserRange::ALL).filter(|vma| can_change(vma, on)).try_for_each(|vma| {
            rounds.again::<P>()?;
            let flags = (vma.flags() - VmFlags::MERGEABLE) | wanted;
            guard.lock_vma_killable(vma)?.set_flags(flags);
            Ok(())
        })
    }
}

/// Whether `vma` is not yet what it is to be, and can.
fn can_change<P: Platform>(vma: &Vma<P>, on: bool) -> bool {
    vma.flags().contains(VmFlags::MERGEABLE) != on && (!on || may_merge(vma.flags(), vma.object()))
}
