//! What /proc/PID/pagemap and its PAGEMAP_SCAN say: which pages are present, and of what kind.

use crate::space::AddressSpace;
use crate::{PAGE_SIZE, Pfn, VirtAddr, platform::Platform};
use arrayvec::ArrayVec;
use core::ops::Range;
use freehold_vmspace::UserRange;
pub use freehold_vmspace::{PageKind, Present};

/// As many runs as are kept while locks are held, before `sink` sees them: 24 bytes each of a kernel's stack.
const RUNS: usize = 32;

impl<P: Platform> AddressSpace<P> {
    /// Shows `sink` what is present in `range`, ascending; runs of small pages of a kind as one, within a
    /// table. Pages of which only a part lies in the range count.
    ///
    /// # Locks
    ///
    /// For each VMA its lock, or the mmap lock, for reading, and under it each table's while it is looked at.
    /// None while `sink` runs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, fault::Access, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at + PAGE_SIZE, Access::WRITE).unwrap();
    /// let mut present = 0;
    /// space.pagemap(at..at + 4 * PAGE_SIZE, |_| present += 1);
    /// assert_eq!(present, 1);
    /// ```
    pub fn pagemap(&self, range: Range<u64>, mut sink: impl FnMut(Present)) {
        let end = range.end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(Self::TASK_SIZE);
        let mut at = range.start & !(PAGE_SIZE - 1);
        let mut runs = ArrayVec::<Present, RUNS>::new();
        while at < end {
            let next = self.with_next_vma(at, |_, part| {
                let (first, last) = (part.start().max(at), part.end().min(end));
                match first < last {
                    true => self.vm.present(UserRange::new(first, last), &mut runs).max(at),
                    false => last.max(at),
                }
            });
            runs.drain(..).for_each(&mut sink);
            match next {
                Some(next) if next > at => at = next,
                _ => return,
            }
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// The frame of the page at `addr`, if one is mapped there at this moment: what /proc/PID/pagemap calls
    /// its PFN. The next moment it may be another; [`Engine::migrate`](crate::engine::Engine::migrate)
    /// and its kin find that out.
    ///
    /// # Locks
    ///
    /// The VMA's lock, or the mmap lock, for reading.
    pub fn frame_at(&self, addr: u64) -> Option<Pfn> {
        let mut found = None;
        self.with_next_vma(addr, |_, part| {
            if part.contains(addr) {
                let address = VirtAddr::new(addr & !(PAGE_SIZE - 1));
                found = self.vm.frame_at(address);
            }
            part.end()
        });
        found
    }
}
