//! A guest: its memory, its second stage, and the log of the pages that it writes.

use freehold_example_minimal::{Board, tick};
use freehold_sync::counted::Counted;
use freehold_vmspace::platform::{Access, Platform, PteFlags, X86_4, hw_walk};
use freehold_vmspace::{MapError, Memory, PAGE_SIZE, Pfn, Rss, VirtAddr, VmSpace};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Guest-physical addresses that are memory: low memory, and the memory above the device area.
pub const MEMORY: [Range<u64>; 2] = [0..0xa_0000, 0x10_0000..0x20_0000];

const READ: PteFlags = PteFlags::USER.union(PteFlags::EXEC);
const READ_WRITE: PteFlags = READ.union(PteFlags::WRITE);

/// The reason why the guest cannot continue an access.
#[derive(Debug, PartialEq, Eq)]
pub enum Exit {
    /// The address is no memory. A hypervisor emulates the device at this address.
    Device(u64),
    /// The host cannot map a page.
    Host(MapError),
}

impl From<MapError> for Exit {
    fn from(error: MapError) -> Self {
        Exit::Host(error)
    }
}

/// A guest, and the virtual CPU that runs it.
pub struct Guest {
    stage: VmSpace<Board>,
    /// The pages written since the last round, while stores are logged.
    log: Option<BTreeSet<u64>>,
    faults: u64,
}

impl Guest {
    /// Creates a guest without resident memory.
    pub fn new(memory: &Counted<Memory<Board>>) -> Result<Self, MapError> {
        Ok(Guest { stage: VmSpace::new(memory)?, log: None, faults: 0 })
    }

    /// Maps memory for an image, which begins at a page, and copies the image, before the guest runs.
    pub fn load_image(&mut self, at: u64, image: &[u8]) -> Result<(), MapError> {
        let end = at + (image.len() as u64).next_multiple_of(PAGE_SIZE);
        self.stage.map(at..end, READ_WRITE)?;
        for (page, bytes) in (at..end).step_by(PAGE_SIZE as usize).zip(image.chunks(PAGE_SIZE as usize)) {
            let Some(mapped) = self.stage.translate(page) else { continue };
            self.stage.platform().write_frame(mapped.pfn, 0, bytes);
        }
        Ok(())
    }

    /// Runs a load of the guest.
    pub fn load(&mut self, at: u64) -> Result<u64, Exit> {
        let frame = self.access(at, Access::READ)?;
        Ok(self.stage.platform().word(frame, at % PAGE_SIZE).load(Relaxed))
    }

    /// Runs a store of the guest.
    pub fn store(&mut self, at: u64, value: u64) -> Result<(), Exit> {
        let frame = self.access(at, Access::WRITE)?;
        self.stage.platform().word(frame, at % PAGE_SIZE).store(value, Relaxed);
        Ok(())
    }

    /// Acts as the CPU: walks the second stage. On a fault the CPU leaves the guest, and later tries again.
    fn access(&mut self, at: u64, access: Access) -> Result<Pfn, Exit> {
        loop {
            let (board, root) = (self.stage.platform(), self.stage.root());
            if let Ok(found) = hw_walk::<X86_4, Board>(board, root, VirtAddr::new(at), access) {
                return Ok(found.pfn);
            }
            self.handle_fault(at, access == Access::WRITE)?;
            tick();
        }
    }

    /// Handles a fault of the second stage: maps a missing page, or logs the first store to a page.
    fn handle_fault(&mut self, at: u64, store: bool) -> Result<(), Exit> {
        if !MEMORY.iter().any(|slot| slot.contains(&at)) {
            return Err(Exit::Device(at));
        }
        self.faults += 1;
        let first = at & !(PAGE_SIZE - 1);
        let rights = match &mut self.log {
            Some(_) if !store => READ,
            Some(log) => {
                log.insert(first);
                READ_WRITE
            }
            None => READ_WRITE,
        };
        let page = first..first + PAGE_SIZE;
        match self.stage.translate(first) {
            Some(_) => self.stage.set_rights(page, rights),
            None => self.stage.map(page, rights)?,
        }
        Ok(())
    }

    /// Begins to log stores: the next store to each page faults.
    pub fn start_log(&mut self) {
        self.log = Some(BTreeSet::new());
        MEMORY.into_iter().for_each(|slot| self.stage.set_rights(slot, READ));
    }

    /// Returns the pages written since the last call, in ascending order, and begins the next round. Only the
    /// returned pages lose the right to write, because the others do not have it.
    pub fn take_log(&mut self) -> BTreeSet<u64> {
        let written = self.log.replace(BTreeSet::new()).unwrap_or_default();
        for page in &written {
            self.stage.set_rights(*page..page + PAGE_SIZE, READ);
        }
        written
    }

    /// Returns the resident pages, in ascending order.
    pub fn pages(&self) -> BTreeSet<u64> {
        let all = MEMORY.into_iter().flat_map(|slot| slot.step_by(PAGE_SIZE as usize));
        all.filter(|page| self.stage.translate(*page).is_some()).collect()
    }

    /// Copies these pages to another guest. A page that is not resident any more is unmapped there, too.
    pub fn send(&self, pages: &BTreeSet<u64>, target: &mut Guest) -> Result<(), Exit> {
        for page in pages {
            let Some(from) = self.stage.translate(*page) else {
                target.unmap(*page..page + PAGE_SIZE);
                continue;
            };
            let to = target.access(*page, Access::WRITE)?;
            self.stage.platform().copy_frame(to, from.pfn);
        }
        Ok(())
    }

    /// Frees memory that the guest does not use (a balloon). The next access to a page reads zeroes.
    pub fn unmap(&mut self, range: Range<u64>) {
        if let Some(log) = &mut self.log {
            log.extend(range.clone().step_by(PAGE_SIZE as usize));
        }
        self.stage.unmap(range);
    }

    /// Returns the number of resident pages.
    pub fn rss(&self) -> Rss {
        self.stage.rss()
    }

    /// Returns the number of faults that mapped a page or restored a right.
    pub fn faults(&self) -> u64 {
        self.faults
    }
}
