//! A space by itself, without an address space above it. Its single owner maps, protects and unmaps pages,
//! and needs no lock. Examples are the second stage of a hypervisor and a kernel's own mappings
//! (`examples/second_stage` of the repository).
//!
//! The methods that change a space take `&mut self`, so the compiler excludes concurrent changes, and this
//! file may free tables without the locks that `freehold` would hold. When a method returns, its change is
//! complete, and no processor uses an old translation. `tests/vmspace/numbers.rs` tests the methods with
//! ranges at every edge.

use crate::{
    AnonPage, NoMemory, PAGE_SIZE, PageIndex, Pfn, Protect, UserRange, VirtAddr, VmGather, VmSpace, Zap,
    platform::Platform,
};
use core::ops::Range;
use freehold_pagetable::{Format, Kind, PteFlags, TableError, VaRange};

freehold_sync::error_enum! {
    /// The reason why nothing was mapped.
    #[non_exhaustive]
    pub enum MapError {
        /// The range is not whole pages, or ends beyond what the format translates.
        Invalid,
        /// Another mapping is in the range.
        Occupied,
        /// There is no memory for pages or page tables.
        NoMemory,
    }
}

impl From<NoMemory> for MapError {
    fn from(_: NoMemory) -> Self {
        MapError::NoMemory
    }
}

impl From<TableError> for MapError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::OutOfTables => MapError::NoMemory,
            TableError::Huge(_) | TableError::Marker(_) => MapError::Occupied,
        }
    }
}

/// The frame of a mapped page and the flags of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The frame of the page.
    pub pfn: Pfn,
    /// The rights and marks of the entry, including the marks that processors set.
    pub flags: PteFlags,
}

impl<P: Platform> VmSpace<P> {
    /// Maps new pages of zeroes over `range` with these rights. On hardware that leaves accessed and dirty
    /// bits to software, the rights must include [`PteFlags::ACCESSED`] and [`PteFlags::DIRTY`].
    ///
    /// # Errors
    ///
    /// See [`MapError`]. Nothing is mapped on failure.
    ///
    /// # Examples
    ///
    /// ```
    /// use freehold_machine::{Machine, MachineConfig};
    /// use freehold_sync::counted::Counted;
    /// use freehold_vmspace::{MapError, Memory, VmSpace, platform::{Platform, PteFlags}};
    ///
    /// let machine: Machine = Machine::new(MachineConfig::backed(1 << 20))?;
    /// let memory = Counted::try_new(Memory::new(machine.clone())?).map_err(|_| MapError::NoMemory)?;
    /// let mut space = VmSpace::new(&memory)?;
    /// space.map(0x1000..0x3000, PteFlags::USER | PteFlags::WRITE)?;
    /// let page = space.translate(0x2fff).ok_or("not mapped")?;
    /// machine.write_frame(page.pfn, 0, b"hello");
    /// assert_eq!(space.map(0x2000..0x4000, PteFlags::USER), Err(MapError::Occupied));
    /// space.unmap(0x1000..0x3000);
    /// assert_eq!(space.translate(0x2fff), None);
    /// drop((space, memory));
    /// machine.accounting().assert_clean();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn map(&mut self, range: Range<u64>, rights: PteFlags) -> Result<(), MapError> {
        let pages = self.vacant(&range)?;
        // Without this bit, `set_rights` would not grant the right to write: it would leave the first store
        // to the fault handler of an address space that tracks written pages.
        let rights = rights | PteFlags::SOFT_DIRTY;
        let mapped = pages.clone().try_for_each(|at| {
            let table = self.pte_table_alloc(VirtAddr::new(at))?;
            let frame =
                self.alloc_anon(true, AnonPage { rmap: 0, index: PageIndex::of_byte(at), policy: 0 })?;
            let fresh = self.map_anon(table, VirtAddr::new(at), frame, rights);
            debug_assert!(fresh, "another task filled an entry of a space with one owner");
            Ok(())
        });
        if mapped.is_err() {
            self.unmap(range);
        }
        mapped
    }

    /// Returns the pages of `range` if nothing is mapped there.
    fn vacant(&self, range: &Range<u64>) -> Result<impl Iterator<Item = u64> + Clone + use<P>, MapError> {
        let whole = range.start.is_multiple_of(PAGE_SIZE) && range.end.is_multiple_of(PAGE_SIZE);
        if !whole || range.start >= range.end || range.end > P::Format::USER_END {
            return Err(MapError::Invalid);
        }
        if !self.is_unmapped(VaRange::of(range.start, range.end)) {
            return Err(MapError::Occupied);
        }
        Ok(range.clone().step_by(PAGE_SIZE as usize))
    }

    /// Gives every mapped page of `range` these rights. When this returns, every processor uses the new
    /// rights. A hypervisor finds written pages by removing the right to write: the next store to each page
    /// faults, and the fault handler restores the right.
    pub fn set_rights(&mut self, range: Range<u64>, rights: PteFlags) {
        let range = clipped::<P>(range);
        let mut gather: VmGather<'_, P, 1> = self.gather(range.va());
        let write = rights.contains(PteFlags::WRITE);
        self.protect(range, Protect { rights, write, shared: false }, Some(&mut gather));
        gather.finish();
    }

    /// Unmaps `range`. When this returns, no processor uses a page of the range, and pages and tables are
    /// freed.
    #[expect(unsafe_code, reason = "frees tables")]
    pub fn unmap(&mut self, range: Range<u64>) {
        let range = clipped::<P>(range);
        if range.is_empty() {
            return;
        }
        let span = range.va();
        let mut gather = self.exclusive_gather(span);
        self.zap(range, Zap::new(false), &mut gather);
        // SAFETY: the range was zapped just now. The caller has exclusive access to the space, so no other
        // task finds or fills a table.
        unsafe { self.unlink_tables(span, span, &mut gather) };
        gather.finish();
    }

    /// Returns the page that is mapped at `at`.
    pub fn translate(&self, at: u64) -> Option<Mapped> {
        let address = VirtAddr::new(at & !(PAGE_SIZE - 1));
        let (pte, level) = self.peek(address);
        match pte.kind(level) {
            Kind::Leaf { pfn, flags } => Some(Mapped { pfn: pfn.add(address.frame_in_leaf(level)), flags }),
            Kind::None | Kind::Marker { .. } | Kind::Table { .. } => None,
        }
    }
}

impl<P: Platform> Drop for VmSpace<P> {
    /// Unmaps the remaining pages and frees the tables. A space that belongs to an address space has no pages
    /// left at this time.
    #[expect(unsafe_code, reason = "frees the tables")]
    fn drop(&mut self) {
        self.release_listeners();
        if !self.is_empty_range(VaRange::of(0, P::Format::USER_END)) {
            self.unmap(0..P::Format::USER_END);
        }
        // SAFETY: everything was unmapped just now, and the space is being dropped.
        unsafe { self.end() };
    }
}

/// Returns the pages that `range` touches, up to the end of the addresses that the format translates.
fn clipped<P: Platform>(range: Range<u64>) -> UserRange {
    let end = range.end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(u64::MAX).min(P::Format::USER_END);
    UserRange::new((range.start & !(PAGE_SIZE - 1)).min(end), end)
}
