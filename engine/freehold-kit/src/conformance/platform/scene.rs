//! A space for the checks: page tables that the suite makes by hand.
#![expect(unsafe_code, reason = "frees the tables that it allocated")]

use crate::conformance::kernel::Kernel;
use crate::conformance::report::require;
use crate::conformance::suite::{Checked, Stop, not_run};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use freehold::PAGE_SIZE;
use freehold::platform::atomic::Ordering::{Acquire, Release};
use freehold::platform::{ENTRIES, Flush, Format, Level, Levels, Pfn, Platform, PteFlags, VirtAddr};

/// The address of the page that the checks map, before another page. The address exists in every format, and
/// is unusual for memory of a program: a kernel that serves a fault in another space finds nothing there.
pub const AT: u64 = 0x2a_5a40_0000;

const FLAGS: PteFlags = PteFlags::USER
    .union(PteFlags::WRITE)
    .union(PteFlags::ACCESSED)
    .union(PteFlags::DIRTY)
    .union(PteFlags::SPECIAL);

/// A space with one chain of tables, for the pages around [`AT`].
pub struct Scene<'p, P: Platform> {
    platform: &'p P,
    /// The record of the space, which does not move: the platform may keep its address. The record is not
    /// dropped with the scene, because a CPU may run the space of a check that failed.
    mmu: ManuallyDrop<Box<P::Mmu>>,
    /// The tables, from the lowest level to the root.
    tables: Vec<Pfn>,
}

/// The part of a scene that a second task uses.
pub struct Shared<'s, P: Platform> {
    platform: &'s P,
    mmu: &'s P::Mmu,
}

impl<'p, P: Platform> Scene<'p, P> {
    /// Creates a space whose entry for [`AT`] is empty.
    pub fn new(platform: &'p P) -> Result<Self, Stop> {
        let (root, mmu) = create(platform)?;
        let mut tables: Vec<Pfn> =
            (1..P::Format::LEVELS).map_while(|_| platform.alloc_table(Some(root)).ok()).collect();
        let has_all = tables.len() + 1 == P::Format::LEVELS;
        tables.push(root);
        let scene = Scene { platform, mmu: ManuallyDrop::new(Box::new(mmu)), tables };
        if !has_all {
            scene.free();
            return not_run("there is no memory for tables");
        }
        for level in 1..P::Format::LEVELS {
            scene.store(AT, level, P::Format::table(scene.tables[level - 1]));
        }
        Ok(scene)
    }

    pub fn shared(&self) -> Shared<'_, P> {
        Shared { platform: self.platform, mmu: &self.mmu }
    }

    /// Stores an entry for an address in the table of a level.
    fn store(&self, address: u64, level: usize, raw: u64) {
        let index = VirtAddr::new(address).index(Level::from_number(level));
        // Release: pairs with the acquire of a walk, which sees the contents behind the entry.
        self.platform.table(self.tables[level]).entry(index).store(raw, Release);
    }

    /// Maps a frame.
    pub fn map(&self, address: u64, pfn: Pfn) {
        self.store(address, 0, P::Format::leaf(Level::Pte, pfn, FLAGS));
        if P::Format::CACHES_INVALID {
            // A CPU may have cached the empty entry. A kernel flushes the page after the fault.
            self.flush(address, 1, false, false);
        }
    }

    /// Empties the entry of a page.
    pub fn unmap(&self, address: u64) {
        self.store(address, 0, 0);
    }

    /// Unlinks the lowest table, puts a new, empty table in its place, and returns the old one. The entries
    /// of the old table are unchanged, so a CPU that still uses it finds its pages.
    pub fn replace_table(&mut self) -> Result<Pfn, Stop> {
        let root = self.tables[P::Format::LEVELS - 1];
        let Ok(new) = self.platform.alloc_table(Some(root)) else {
            return not_run("there is no memory for tables");
        };
        let old = core::mem::replace(&mut self.tables[0], new);
        self.store(AT, 1, 0);
        // Break before make: no CPU may have the old table when the new one appears.
        self.flush(AT, 2, false, true);
        self.store(AT, 1, P::Format::table(new));
        Ok(old)
    }

    pub fn flush(&self, start: u64, pages: u64, all: bool, tables_freed: bool) {
        let end = VirtAddr::new(start + pages * PAGE_SIZE);
        // The leaves are pages, and the tables that are replaced are those of pages.
        let (leaves, tables) = (Levels::of(Level::Pte), Levels::of(Level::Pmd));
        let levels = if tables_freed { leaves.union(tables) } else { leaves };
        let what = Flush { start: VirtAddr::new(start), end, all, levels, tables_freed };
        self.platform.flush(&self.mmu, &what);
    }

    /// See [`Shared::sees`].
    pub fn sees<K: Kernel<P>>(&self, kernel: &K, address: u64, wanted: Option<u64>, when: &str) -> Checked {
        self.shared().sees(kernel, address, wanted, when)
    }

    /// Ends the space, whatever is mapped in it.
    pub fn end<K: Kernel<P>>(self, kernel: &K) {
        kernel.leave_space(&self.mmu);
        (1..P::Format::LEVELS).for_each(|level| self.store(AT, level, 0));
        self.flush(0, 0, true, true);
        self.free();
    }

    /// Ends the space, whose tables are not linked, and frees its memory.
    fn free(self) {
        let Scene { platform, mmu, tables } = self;
        if let Some(root) = tables.last() {
            platform.space_ending(&mmu, *root);
        }
        drop(ManuallyDrop::into_inner(mmu));
        tables.into_iter().for_each(|table| free_table(platform, table));
    }
}

/// Creates a space. Returns its root table and the record of the platform.
pub fn create<P: Platform>(platform: &P) -> Result<(Pfn, P::Mmu), Stop> {
    let Ok(root) = platform.alloc_table(None) else {
        return not_run("there is no memory for a root table");
    };
    let Some(mmu) = platform.space_created(root) else {
        free_table(platform, root);
        return not_run("there is no memory for a space");
    };
    Ok((root, mmu))
}

/// Empties and frees a table that was unlinked and flushed, and that no entry points to.
pub fn free_table<P: Platform>(platform: &P, table: Pfn) {
    for n in 0..ENTRIES {
        let entry = platform.table(table).entry(n);
        // The kernel's half of a root, or entries of a table that was unlinked as a whole. Acquire and
        // release: as in `store`.
        if entry.load(Acquire) != 0 {
            entry.store(0, Release);
        }
    }
    // SAFETY: the table came from `alloc_table` and is empty, no entry points to it, and it was flushed. No
    // CPU has a root whose space has ended.
    unsafe { platform.free_table(table) };
}

impl<P: Platform> Shared<'_, P> {
    /// Loads a word of a program and compares it. `None` stands for a fault.
    pub fn sees<K: Kernel<P>>(&self, kernel: &K, address: u64, wanted: Option<u64>, when: &str) -> Checked {
        let found = kernel.load(self.platform, self.mmu, address)?;
        let text = |value: Option<u64>| match value {
            Some(value) => alloc::format!("reads the value {value} of a frame"),
            None => "faults".into(),
        };
        require!(
            found == wanted,
            "{when}, but then a load {}; it must be one that {}{}",
            text(found),
            text(wanted),
            if found.is_some() { ". The CPU uses a stale translation" } else { "" }
        );
        Ok(())
    }

    pub fn walk_tables<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        self.platform.walk_tables(self.mmu, f)
    }

    pub fn leave<K: Kernel<P>>(&self, kernel: &K) {
        kernel.leave_space(self.mmu);
    }
}
