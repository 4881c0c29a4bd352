//! Lookup of a translation for a device or a hypervisor that follows the changes of an address space as a
//! listener (Linux: hmm_range_fault).
//!
//! The lookup takes no reference that outlives it. The caller checks an [`Interval`](crate::space::Interval)
//! before it uses the frame, and its listener removes the translation before the space loses the page.
//! `page.rs` finds the page. `shuttle_engine/listeners.rs` explores lookups concurrent with changes.

use super::{AccessMode, PageAccess};
use crate::{Pfn, error::AccessError, platform::Platform, space::AddressSpace};

impl<P: Platform> AddressSpace<P> {
    /// Faults in the page at `addr` if necessary, for writing if `write` is true, and returns its frame.
    /// After a lookup for writing, the page counts as written, and the device may write to it until a
    /// listener hears of a change. After a lookup for reading, the device may only read the page.
    ///
    /// The result is a translation at a moment between the call and the return. It is valid only if no change
    /// of the page has started since [`Interval::read_begin`](crate::space::Interval::read_begin), which the
    /// caller called before; [`Interval`](crate::space::Interval) has the steps.
    ///
    /// # Errors
    ///
    /// The errors of [`read_memory`](Self::read_memory), with
    /// [`AccessMode::Plain`](crate::remote::AccessMode): secret memory and memory of special mappings has no
    /// translation.
    ///
    /// # Locks
    ///
    /// The locks of a fault. The caller holds no lock, in particular none that its listener takes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let frame = space.device_page(at, true).unwrap();
    /// assert_eq!(space.frame_at(at), Some(frame));
    /// assert!(space.device_page(at + 4 * PAGE_SIZE, false).is_err());
    /// ```
    pub fn device_page(&self, addr: u64, write: bool) -> Result<Pfn, AccessError> {
        let mut found = Pfn::new(0);
        let how = PageAccess { write, manner: AccessMode::Plain, own: false };
        self.with_page(addr, how, |pfn| found = pfn)?;
        Ok(found)
    }
}
