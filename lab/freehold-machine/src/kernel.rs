//! The kernel's half of every root table: entries that all address spaces share, as in a kernel that is
//! mapped in the upper half of each address space.
//!
//! A machine has a kernel's half if [`MachineConfig::kernel_half`](crate::MachineConfig::kernel_half) is set
//! (`tests/heap/kernel_half.rs`). `machine.rs` adds the entries to each root when its space is created and
//! removes the root when the space ends. The engine must not touch the entries: `leave` panics if an entry is
//! missing or an unexpected entry has appeared. One lock guards the list of roots and the number of entries,
//! so a root that joins gets every entry exactly once.

use crate::host::Lock;
use crate::inner::Inner;
use freehold_pagetable::{ENTRIES, Format, Kind, Level, Pfn, PteFlags};
use freehold_sync::atomic::Ordering;

/// The shared tables, and the roots that point to them.
pub(crate) struct Kernel {
    /// The shared tables, one per level, beginning below the roots.
    tables: Vec<Pfn>,
    state: Lock<State>,
}

/// The changing part of [`Kernel`], under its lock.
struct State {
    /// The root tables that have the kernel's half. `extend` stores an added entry in each of them.
    roots: Vec<Pfn>,
    /// Number of entries in use, from [`Format::USER_ENTRIES`] on.
    entries: usize,
}

impl Kernel {
    /// Creates the shared tables, which map a large page of the machine's memory. Every shared entry points
    /// to the first of these tables. Returns `None` if there is no memory for them.
    pub(crate) fn new<F: Format>(inner: &Inner<F>) -> Option<Self> {
        let mut tables = Vec::new();
        let mut level = F::ROOT.below();
        loop {
            let table = inner.alloc_table()?;
            if let Some(above) = tables.last() {
                inner.table(*above).entry(0).store(F::table(table), Ordering::Relaxed);
            }
            tables.push(table);
            if level <= Level::Pud {
                let leaf = F::leaf(level, inner.first_frame(), PteFlags::WRITE | PteFlags::GLOBAL);
                inner.table(table).entry(0).store(leaf, Ordering::Relaxed);
                break;
            }
            level = level.below();
        }
        let state = State { roots: Vec::new(), entries: 1 };
        Some(Kernel { tables, state: Lock::new(state) })
    }

    /// Returns the shared tables, which belong to no address space.
    pub(crate) fn tables(&self) -> &[Pfn] {
        &self.tables
    }

    /// Adds the shared entries to a new root. Returns `None` if there is no memory to record the root.
    pub(crate) fn join<F: Format>(&self, inner: &Inner<F>, root: Pfn) -> Option<()> {
        let mut state = self.state.lock();
        assert!(!state.roots.contains(&root), "two address spaces with the root {root:?}");
        state.roots.try_reserve(1).ok()?;
        state.roots.push(root);
        (0..state.entries).for_each(|n| self.hang(inner, root, n));
        Some(())
    }

    /// Adds one more shared entry to every root, even if CPUs run the space of the root.
    pub(crate) fn extend<F: Format>(&self, inner: &Inner<F>) {
        let mut state = self.state.lock();
        let n = state.entries;
        assert!(F::USER_ENTRIES + n < ENTRIES, "the kernel's half is full");
        state.roots.iter().for_each(|root| self.hang(inner, *root, n));
        state.entries = n + 1;
    }

    /// Stores shared entry `n` in a root.
    fn hang<F: Format>(&self, inner: &Inner<F>, root: Pfn, n: usize) {
        let entry = inner.table(root).entry(F::USER_ENTRIES + n);
        // Release: the tables were filled before this store; a walk that reads the entry with acquire sees
        // their entries.
        entry.store(F::table(self.tables[0]), Ordering::Release);
    }

    /// Removes a root that is about to be freed from the list of roots. Checks that the kernel's half of this
    /// root holds exactly the shared entries.
    pub(crate) fn leave<F: Format>(&self, inner: &Inner<F>, root: Pfn) {
        let mut state = self.state.lock();
        let known = state.roots.iter().position(|known| *known == root);
        state.roots.swap_remove(known.expect("a root that was added, and that is removed once"));
        for index in F::USER_ENTRIES..ENTRIES {
            let raw = inner.table(root).entry(index).load(Ordering::Relaxed);
            let wanted = match index - F::USER_ENTRIES < state.entries {
                true => Kind::Table { pfn: self.tables[0] },
                false => Kind::None,
            };
            assert_eq!(F::kind(raw, F::ROOT), wanted, "entry {index} of {root:?}, in the kernel's half");
        }
    }
}
