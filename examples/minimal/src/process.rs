//! The program of a process, and the CPU that runs it.

use crate::platform::{self, Board};
use freehold::platform::{X86_4, hw_walk};
use freehold::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

/// A process. This type acts as the CPU that runs the program of the process.
pub struct Process(pub Counted<AddressSpace<Board>>);

impl Process {
    /// Returns the frame of an address, for an access by the program.
    ///
    /// Translates an address, as a CPU does: walks the page tables. If the walk finds no translation, the CPU
    /// raises a page fault, whose handler calls the engine. The CPU then repeats the instruction. The result
    /// is valid until the next call of the engine.
    ///
    /// # Errors
    ///
    /// Fails with the reason of the signal that the program gets.
    pub fn translate(&self, address: u64, access: Access) -> Result<Pfn, FaultError> {
        let (board, root) = (self.0.engine().platform(), *self.0.mmu());
        loop {
            if let Ok(found) = hw_walk::<X86_4, Board>(board, root, VirtAddr::new(address), access) {
                return Ok(found.pfn);
            }
            self.0.handle_fault(address, access)?;
            platform::tick();
        }
    }

    /// Loads the aligned word at an address.
    ///
    /// # Errors
    ///
    /// Fails with the reason of the signal that the program gets.
    pub fn load(&self, address: u64) -> Result<u64, FaultError> {
        let frame = self.translate(address, Access::READ)?;
        Ok(self.0.engine().platform().word(frame, address % PAGE_SIZE).load(Relaxed))
    }

    /// Stores to the aligned word at an address.
    ///
    /// # Errors
    ///
    /// Fails with the reason of the signal that the program gets.
    pub fn store(&self, address: u64, value: u64) -> Result<(), FaultError> {
        let frame = self.translate(address, Access::WRITE)?;
        self.0.engine().platform().word(frame, address % PAGE_SIZE).store(value, Relaxed);
        Ok(())
    }
}
