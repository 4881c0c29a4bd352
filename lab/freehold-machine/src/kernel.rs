//! The kernel's own half of every root table: tables that all address spaces share, as a kernel has them that
//! lies in the upper half of each.

use crate::host::Lock;
use crate::inner::Inner;
use freehold_pagetable::{ENTRIES, Format, Kind, Level, Pfn, PteFlags};
use freehold_sync::atomic::Ordering;

pub(crate) struct Kernel {
    /// From the one below the roots down.
    tables: Vec<Pfn>,
    state: Lock<State>,
}

struct State {
    /// Those that have the kernel's half, to be told of additions.
    roots: Vec<Pfn>,
    /// Entries in use, from [`Format::USER_ENTRIES`] on.
    entries: usize,
}

impl Kernel {
    /// Tables that map a large page of the machine's memory wherever they are hung. None: no memory for them.
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

    /// Its tables: those of no address space.
    pub(crate) fn tables(&self) -> &[Pfn] {
        &self.tables
    }

    /// Gives a new root what all have. None: no memory to remember it.
    pub(crate) fn join<F: Format>(&self, inner: &Inner<F>, root: Pfn) -> Option<()> {
        let mut state = self.state.lock();
        assert!(!state.roots.contains(&root), "two address spaces with the root {root:?}");
        state.roots.try_reserve(1).ok()?;
        state.roots.push(root);
        (0..state.entries).for_each(|n| self.hang(inner, root, n));
        Some(())
    }

    /// Hangs the tables into one entry more of every root, whatever runs on it.
    pub(crate) fn extend<F: Format>(&self, inner: &Inner<F>) {
        let mut state = self.state.lock();
        let n = state.entries;
        assert!(F::USER_ENTRIES + n < ENTRIES, "the kernel's half is full");
        state.roots.iter().for_each(|root| self.hang(inner, *root, n));
        state.entries = n + 1;
    }

    fn hang<F: Format>(&self, inner: &Inner<F>, root: Pfn, n: usize) {
        let entry = inner.table(root).entry(F::USER_ENTRIES + n);
        // Release: the tables were filled before.
        entry.store(F::table(self.tables[0]), Ordering::Release);
    }

    /// A root is about to go: it is told of nothing any more, and must be as it was made and told.
    pub(crate) fn leave<F: Format>(&self, inner: &Inner<F>, root: Pfn) {
        let mut state = self.state.lock();
        let known = state.roots.iter().position(|known| *known == root);
        state.roots.swap_remove(known.expect("an address space ends once, and was made before"));
        for index in F::USER_ENTRIES..ENTRIES {
            let raw = inner.table(root).entry(index).load(Ordering::Relaxed);
            let wanted = match index - F::USER_ENTRIES < state.entries {
                true => Kind::Table { pfn: self.tables[0] },
                false => Kind::None,
            };
            assert_eq!(F::kind(raw, F::ROOT), wanted, "entry {index} of {root:?}, which is the kernel's own");
        }
    }
}
