//! The memory calls of the unikernel, and its page fault.

use crate::tables::KernelTables;
use freehold::platform::{Level, TableMemory, X86_4, hw_walk};
use freehold::prelude::*;
use freehold_example_minimal::{Board, tick};
use std::error::Error;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// The addresses of one entry of the root table.
const ENTRY: u64 = 1 << 39;
/// The addresses at which the program may map memory: two entries of the root table.
pub const PROGRAM: Range<u64> = 126 * ENTRY..128 * ENTRY;

/// The kernel, its only address space, and the processor.
///
/// The processor runs on the kernel's tables. The engine has a root of its own, which no processor loads.
pub struct Kernel {
    tables: KernelTables,
    space: Counted<AddressSpace<Board>>,
}

impl Kernel {
    /// Boots a kernel with `frames` frames of memory.
    ///
    /// # Errors
    ///
    /// Fails if there are too few frames.
    pub fn new(frames: usize) -> Result<Self, Box<dyn Error>> {
        let board = Board::new(frames);
        let tables = KernelTables::new(&board)?;
        let config = Config::new();
        let lowest = config.mmap_min_addr;
        let engine = Engine::new(board, config)?;
        let kernel = Kernel { tables, space: AddressSpace::new(&engine, &SpaceConfig::new())? };
        kernel.keep_own_addresses(lowest)?;
        Ok(kernel)
    }

    /// Seals the addresses of the kernel, and joins the engine's tables to the kernel's.
    ///
    /// Each entry of the root gets an *anchor*: a sealed page at its start. Because of the anchor, the engine
    /// never frees the table to which the entry points. So the kernel's root needs the entry only once.
    fn keep_own_addresses(&self, lowest: u64) -> Result<(), Box<dyn Error>> {
        let end = AddressSpace::<Board>::MAP_WINDOW_END;
        self.seal(lowest..PROGRAM.start, Prot::empty(), MapFlags::empty())?;
        self.seal(PROGRAM.end..end, Prot::empty(), MapFlags::empty())?;
        for anchor in PROGRAM.step_by(ENTRY as usize) {
            self.seal(anchor..anchor + PAGE_SIZE, Prot::READ, MapFlags::POPULATE)?;
            let engine_root = self.board().table(*self.space.mmu());
            self.tables.share(self.board(), engine_root, anchor);
        }
        Ok(())
    }

    /// Maps a range that no later call can change.
    fn seal(&self, range: Range<u64>, prot: Prot, flags: MapFlags) -> Result<(), Box<dyn Error>> {
        let flags = flags | MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED;
        self.space.mmap(range.start, range.end - range.start, prot, flags, None, 0)?;
        self.space.mseal(range.start, range.end - range.start, 0)?;
        Ok(())
    }

    fn board(&self) -> &Board {
        self.space.engine().platform()
    }

    /// Returns the number of pages that the program has touched.
    pub fn resident(&self) -> i64 {
        self.space.rss().total()
    }

    /// Maps `len` bytes of zeroes, at an address that the kernel chooses.
    ///
    /// # Errors
    ///
    /// Fails with the number of an error.
    pub fn mmap(&self, len: u64, prot: Prot) -> Result<u64, i32> {
        let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
        self.space.mmap(0, len, prot, flags, None, 0).map_err(|error| error.errno().number())
    }

    /// Unmaps a range. A part of a mapping may be unmapped.
    ///
    /// # Errors
    ///
    /// Fails with the number of an error.
    pub fn munmap(&self, at: u64, len: u64) -> Result<(), i32> {
        let result = self.space.munmap(at, len).map_err(|error| error.errno().number());
        tick();
        result
    }

    /// Changes the rights of a range.
    ///
    /// # Errors
    ///
    /// Fails with the number of an error.
    pub fn mprotect(&self, at: u64, len: u64, prot: Prot) -> Result<(), i32> {
        self.space.mprotect(at, len, prot).map_err(|error| error.errno().number())
    }

    /// Handles a page fault. The processor reports that it was in kernel mode, because the program is, too.
    /// The kernel tells the engine that the program made the access. The engine cannot resolve a fault at an
    /// address outside [`PROGRAM`]: the processor does not find the engine's tables there.
    ///
    /// # Errors
    ///
    /// Fails with the reason for which the kernel ends the program.
    fn page_fault(&self, address: u64, access: Access) -> Result<(), FaultError> {
        if !PROGRAM.contains(&address) {
            return Err(FaultError::Segv { addr: address, code: SegvCode::Maperr });
        }
        self.space.handle_fault(address, Access { user: true, ..access })?;
        tick();
        Ok(())
    }

    /// Returns the frame of an address if the processor's walk finds it without a fault. The access is made
    /// in kernel mode.
    pub fn present(&self, address: u64, access: Access) -> Option<Pfn> {
        let access = Access { user: false, ..access };
        let walk = hw_walk::<X86_4, Board>(self.board(), self.tables.root(), VirtAddr::new(address), access);
        walk.ok().map(|found| found.pfn)
    }

    fn translate(&self, address: u64, access: Access) -> Result<Pfn, FaultError> {
        loop {
            if let Some(frame) = self.present(address, access) {
                return Ok(frame);
            }
            self.page_fault(address, access)?;
        }
    }

    /// Loads the aligned word at an address, in the program or in the kernel.
    ///
    /// # Errors
    ///
    /// Fails with the reason for which the kernel ends the program.
    pub fn load(&self, address: u64) -> Result<u64, FaultError> {
        let frame = self.translate(address, Access::READ)?;
        Ok(self.board().word(frame, address % PAGE_SIZE).load(Relaxed))
    }

    /// Stores to the aligned word at an address, in the program or in the kernel.
    ///
    /// # Errors
    ///
    /// Fails with the reason for which the kernel ends the program.
    pub fn store(&self, address: u64, value: u64) -> Result<(), FaultError> {
        let frame = self.translate(address, Access::WRITE)?;
        self.board().word(frame, address % PAGE_SIZE).store(value, Relaxed);
        Ok(())
    }

    /// Faults in every page of a buffer of the program, for a kernel that then accesses the buffer where it
    /// must not fault: with interrupts off, or with a spin lock held.
    ///
    /// # Errors
    ///
    /// Fails if the program may not make such an access to the buffer.
    pub fn fault_in(&self, buffer: Range<u64>, access: Access) -> Result<(), FaultError> {
        let first = buffer.start & !(PAGE_SIZE - 1);
        (first..buffer.end).step_by(PAGE_SIZE as usize).try_for_each(|page| {
            self.translate(page, access)?;
            Ok(())
        })
    }

    /// Compares the kernel's entries for the program with the engine's.
    ///
    /// # Panics
    ///
    /// Panics if an entry differs: the processor would then use a table that is free.
    pub fn check(&self) {
        let [kernel, engine] = [self.tables.root(), *self.space.mmu()].map(|root| self.board().table(root));
        for address in PROGRAM.step_by(ENTRY as usize) {
            let index = VirtAddr::new(address).index(Level::P4d);
            let [kernel, engine] = [kernel, engine].map(|root| root.entry(index).load(Relaxed));
            assert_eq!(kernel, engine, "the kernel's root differs at {address:#x}");
        }
        self.space.check();
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.tables.free(self.board());
    }
}
