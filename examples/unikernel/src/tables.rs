//! The page tables of the kernel. They map the kernel's memory at low addresses, and have entries of their
//! own for the addresses of the program, which lead to tables of the engine.
#![expect(unsafe_code, reason = "frees the tables of the kernel, which the engine does not know")]

use freehold::platform::{Format, Level, OutOfTables, PteFlags, Table, TableMemory, X86_4};
use freehold::prelude::*;
use freehold_example_minimal::Board;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The address of a word of the kernel.
pub const KERNEL_WORD: u64 = 2 << 20;

/// The kernel's tables, from the root down to the frame of [`KERNEL_WORD`].
///
/// # Invariants
///
/// The frames come from [`TableMemory::alloc_table`], and nothing else uses them.
pub struct KernelTables([Pfn; 5]);

impl KernelTables {
    /// Creates tables that map one page of the kernel.
    ///
    /// # Errors
    ///
    /// Fails if no frame is free.
    pub fn new(board: &Board) -> Result<Self, OutOfTables> {
        let mut path = [Pfn::new(0); 5];
        for frame in &mut path {
            *frame = board.alloc_table(None)?;
        }
        let at = VirtAddr::new(KERNEL_WORD);
        for (step, level) in [Level::P4d, Level::Pud, Level::Pmd].into_iter().enumerate() {
            let entry = X86_4::table(path[step + 1]);
            board.table(path[step]).entry(at.index(level)).store(entry, Relaxed);
        }
        let page = X86_4::leaf(Level::Pte, path[4], PteFlags::WRITE | PteFlags::ACCESSED | PteFlags::DIRTY);
        board.table(path[3]).entry(at.index(Level::Pte)).store(page, Relaxed);
        Ok(KernelTables(path))
    }

    /// Returns the root, which the processor loads.
    pub fn root(&self) -> Pfn {
        self.0[0]
    }

    /// Copies the entry of the root table `from` for `address` into the kernel's root. The table to which the
    /// entry points must stay until the kernel ends.
    pub fn share(&self, board: &Board, from: &Table, address: u64) {
        let index = VirtAddr::new(address).index(X86_4::ROOT);
        let entry = from.entry(index).load(Relaxed);
        assert_ne!(entry, 0, "the anchor has created the table");
        // Release: a processor that finds the entry also finds the contents of the table.
        board.table(self.root()).entry(index).store(entry, Release);
    }

    /// Empties and frees the tables. No processor uses them any more.
    pub fn free(&self, board: &Board) {
        for frame in self.0 {
            board.zero_frame(frame);
            // SAFETY: by the invariant, the frame came from `alloc_table` and has no other user. It is empty.
            unsafe { board.free_table(frame) };
        }
    }
}
