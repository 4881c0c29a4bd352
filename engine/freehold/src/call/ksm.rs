//! PR_SET_MEMORY_MERGE: allows equal pages of a program to be merged with other pages. The engine only
//! records the setting and does not search for equal pages.
//!
//! The setting is the flag `MERGEABLE` in `default_flags` of the address space. mmap and brk give the flags
//! in `default_flags` to new VMAs. A mapping that cannot be merged does not get the flag
//! ([`with_mergeable`]). `madvise/flags.rs` sets and clears the flag of single VMAs.
//!
//! `default_flags` also contains the lock flags of mlockall. The mmap lock, held for writing, guards the
//! word, and a call that changes one kind of flag must keep the other kind. `tests/mmap/merging.rs` tests
//! this, and the model's `ksm.rs` has the rules.

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

/// Flags of VMAs whose pages are never merged.
const NOT_MERGEABLE: VmFlags = VmFlags::SPECIAL
    .union(VmFlags::SHARED)
    .union(VmFlags::MAYSHARE)
    .union(VmFlags::HUGETLB)
    .union(VmFlags::DROPPABLE);

/// Returns true if memory of this object with these flags can be [`MERGEABLE`](VmFlags::MERGEABLE).
pub(super) fn may_merge<P: Platform>(flags: VmFlags, object: &Object<P>) -> bool {
    !flags.intersects(NOT_MERGEABLE) && !object.is_direct()
}

/// Returns the flags for a new mapping: `flags`, without `MERGEABLE` if the mapping cannot be mergeable.
#[inline]
pub(super) fn with_mergeable<P: Platform>(flags: VmFlags, object: &Object<P>) -> VmFlags {
    let wrong = flags.contains(VmFlags::MERGEABLE) && !may_merge(flags, object);
    if wrong { flags - VmFlags::MERGEABLE } else { flags }
}

impl<P: Platform> AddressSpace<P> {
    /// Returns true if new private mappings become mergeable.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// assert!(!space.memory_merge());
    /// space.set_memory_merge(true).unwrap();
    /// assert!(space.memory_merge() && space.fork().unwrap().memory_merge());
    /// ```
    pub fn memory_merge(&self) -> bool {
        // Relaxed: a single word. The caller sees either the old or the new setting.
        VmFlags::from_bits_retain(self.default_flags.load(Relaxed)).contains(VmFlags::MERGEABLE)
    }

    /// Sets whether equal pages may be merged in all present and future private mappings. A forked child and
    /// an address space created by exec inherit the setting. Setting the current value changes nothing.
    ///
    /// # Errors
    ///
    /// See [`MergeError`]. After an error, new mappings follow the setting, but some existing mappings might
    /// keep the previous setting.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*, vma::flags::VmFlags};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.set_memory_merge(true).unwrap();
    /// assert!(space.vma_info(at).unwrap().flags.contains(VmFlags::MERGEABLE));
    /// ```
    pub fn set_memory_merge(&self, on: bool) -> Result<(), MergeError> {
        let guard = self.write_killable()?;
        if on == self.memory_merge() {
            return Ok(());
        }
        // Relaxed: the mmap lock orders all accesses that must agree with each other.
        let defaults = VmFlags::from_bits_retain(self.default_flags.load(Relaxed)) - VmFlags::MERGEABLE;
        let wanted = if on { VmFlags::MERGEABLE } else { VmFlags::empty() };
        self.default_flags.store((defaults | wanted).bits(), Relaxed);
        let mut rounds = Rounds::new();
        // As on Linux, VMAs that become equal to their neighbours by this call do not merge.
        guard.vmas(UserRange::ALL).filter(|vma| can_change(vma, on)).try_for_each(|vma| {
            rounds.again::<P>()?;
            let flags = (vma.flags() - VmFlags::MERGEABLE) | wanted;
            guard.lock_vma_killable(vma)?.set_flags(flags);
            Ok(())
        })
    }
}

/// Returns true if the flag `MERGEABLE` of `vma` differs from `on` and can be set to `on`.
fn can_change<P: Platform>(vma: &Vma<P>, on: bool) -> bool {
    vma.flags().contains(VmFlags::MERGEABLE) != on && (!on || may_merge(vma.flags(), vma.object()))
}
