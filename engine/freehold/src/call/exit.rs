//! exec and exit: unmaps a whole address space. `trim` frees memory that a space keeps in reserve.
//!
//! `clear` empties a space that is used again, for example by exec. `Shared::end` empties a space whose last
//! reference was dropped. At that moment a walk of the reverse map can still find the space through a file
//! that it maps. The VMAs must therefore be unmapped in `Shared::end`, before the space is dropped.
//!
//! `space/change/unmap_all.rs` cannot fail. No munmap may be in progress at the same time, so both functions
//! first wait until each munmap has ended. The tests of `unmap_all.rs` test them.

use crate::space::AddressSpace;
use crate::{counted::Shared, platform::Platform};
use freehold_vmspace::UserRange;

impl<P: Platform> AddressSpace<P> {
    /// Unmaps all mappings in one step, for example on exec or after a process was killed. The break and the
    /// flags of mlockall for future mappings do not change.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing: with `Unmap::Released` for the VMAs only, and not while pages are unmapped,
    /// unless there is no memory for a node of the VMA tree. Waits for munmaps in progress.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.clear();
    /// assert_eq!(space.counts().map_count, 0);
    /// ```
    pub fn clear(&self) {
        let guard = self.write_exclusive_range_unkillable(UserRange::new(0, Self::TASK_SIZE));
        guard.unmap_all_unlocking();
    }
}

impl<P: Platform> Shared for AddressSpace<P> {
    /// Tells the listeners that the space ends, and unmaps all mappings. Afterwards no task reaches this
    /// space through a file.
    fn end(&self) {
        self.vm.release_listeners();
        let guard = self.write_exclusive_range_unkillable(UserRange::new(0, Self::TASK_SIZE));
        guard.unmap_all_unreferenced();
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Frees memory that this address space keeps for later changes: a few nodes of its VMA tree.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.munmap(at, PAGE_SIZE).unwrap();
    /// space.trim();
    /// assert_eq!(space.counts().total_vm, 3, "mappings stay");
    /// ```
    pub fn trim(&self) {
        self.write().trim_tree();
    }
}
