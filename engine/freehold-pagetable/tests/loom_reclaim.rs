//! Tries every interleaving, under weak memory, of reclaiming a table (`src/reclaim.rs`) with tasks that find
//! the table. Tables have two entries here. Run with `RUSTFLAGS="--cfg loom"`.
//!
//! One thread empties and reclaims the table ([`World::discard`]). Another thread finds the table, locks it
//! late, and uses it. There are three oracles. [`Memory`] poisons the entries of a freed table. [`Flusher`]
//! asserts that a table is flushed before it is freed. The number of live tables shows a table that was freed
//! twice or not at all.
#![cfg(loom)]

mod common;

use common::Memory;
use freehold_pagetable::{
    Flush, Gather, GatherState, Kind, Level, PageTable, Pfn, Pte, PteFlags, TableMemory as _, Tlb,
    UnmappedFrame, VirtAddr, X86_4,
};
use freehold_sync::atomic::{AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

/// The page tables under test.
type Tables = PageTable<X86_4, Memory>;
/// An entry of these tables.
type P = Pte<X86_4>;

const RW: PteFlags = PteFlags::USER.union(PteFlags::WRITE);

/// A `Tlb` whose flush clears a word that a task with a stale translation would read. Before the `Tlb` frees
/// tables, it checks that this word is clear.
struct Flusher {
    memory: Memory,
    /// Set while a processor caches the path to the table.
    remembered: AtomicU64,
}

impl Tlb for Flusher {
    fn flush(&self, what: &Flush) {
        if what.tables_freed {
            self.remembered.store(0, Ordering::Release);
        }
    }

    fn release(&self, _: &[UnmappedFrame]) {}

    unsafe fn free_tables(&self, tables: &[Pfn]) {
        assert_eq!(self.remembered.load(Ordering::Acquire), 0, "a freed table is still in a walk cache");
        for table in tables {
            // SAFETY: the gather got the table when it was unlinked, and has flushed.
            unsafe { self.memory.free_table(*table) };
        }
    }

    fn is_unwinding(&self) -> bool {
        std::thread::panicking()
    }
}

/// One space whose table at address 0 is reclaimed.
struct World {
    tables: Tables,
    state: GatherState,
    tlb: Flusher,
}

impl World {
    /// Returns a world with a table at address 0. The table has a page if `filled` is set.
    fn new(filled: bool) -> Arc<Self> {
        let memory = Memory::new(6);
        let tables = Tables::new(&memory).unwrap();
        let table = tables.pte_table_alloc(&memory, at(0)).unwrap();
        if filled {
            table.lock().install(at(0), P::page(Pfn::new(7), RW)).unwrap();
        }
        let tlb = Flusher { memory, remembered: AtomicU64::new(1) };
        Arc::new(World { tables, state: GatherState::new(), tlb })
    }

    fn memory(&self) -> &Memory {
        &self.tlb.memory
    }

    /// Empties the table at address 0 and reclaims it, as a discard does. Returns true if the table was
    /// there.
    fn discard(&self) -> bool {
        let mut gather = Gather::<_, 2>::new(&self.tlb, &self.state);
        let reclaimed = self.tables.lock_pte_table(self.memory(), at(0)).is_some_and(|mut table| {
            table.zap_each(table.span(), &mut gather, |_, slot, _| slot.clear());
            // SAFETY: all threads check that a table that they lock is linked.
            unsafe { table.reclaim(&mut gather) }
        });
        gather.finish();
        reclaimed
    }

    /// Maps a page as a fault does: finds the table first and locks it later.
    fn fill(&self, page: u64, pfn: u64) {
        loop {
            let table = self.tables.pte_table_alloc(self.memory(), at(page)).unwrap();
            if let Some(mut table) = table.lock_linked() {
                // The entries of an earlier use of the table are not visible.
                assert_ne!(table.get(at(page)).raw(), Memory::POISON, "an entry of a free table is visible");
                let _ = table.install(at(page), P::page(Pfn::new(pfn), RW));
                return;
            }
        }
    }

    fn page(&self, page: u64) -> Option<Pfn> {
        match self.tables.peek(self.memory(), at(page)) {
            (pte, Level::Pte) => pte.is_leaf(Level::Pte).then(|| pte.pfn()),
            (pte, _) => {
                assert!(pte.is_none());
                None
            }
        }
    }
}

fn at(page: u64) -> VirtAddr {
    VirtAddr::new(page * 4096)
}

/// When a fault returns, its page is mapped, unless a discard came after the fault. The page is in a linked
/// table, not in a freed one.
#[test]
fn a_fault_during_a_discard_maps_into_a_linked_table() {
    loom::model(|| {
        let world = World::new(true);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.discard());
        world.fill(1, 9);
        let reclaimed = thread.join().unwrap();
        // The table was empty, or held only the page of the fault, which the discard then removed.
        assert!(reclaimed);
        let found = world.page(1);
        assert!(found.is_none() || found == Some(Pfn::new(9)));
        assert_eq!(world.page(0), None);
        assert_eq!(world.memory().live(), if found.is_some() { 4 } else { 3 });
    });
}

/// Two discards of one table free it once. Both return after a flush, whether the table held a page or not.
#[test]
fn two_discards_free_a_table_once() {
    two_discards(true);
    two_discards(false);
}

fn two_discards(filled: bool) {
    loom::model(move || {
        let world = World::new(filled);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            let reclaimed = other.discard();
            assert_eq!(other.tlb.remembered.load(Ordering::Acquire), 0, "unlinked, but not flushed");
            reclaimed
        });
        let mine = world.discard();
        assert_eq!(world.tlb.remembered.load(Ordering::Acquire), 0);
        assert!(mine != thread.join().unwrap());
        assert_eq!(world.memory().live(), 3);
    });
}

/// A task found the table before it was reclaimed, and then finds it in the same slot again. The task sees
/// the table zeroed.
#[test]
fn a_late_task_finds_a_relinked_table_zeroed() {
    loom::model(|| {
        let world = World::new(false);
        let other = Arc::clone(&world);
        let late = thread::spawn(move || {
            let Some(table) = other.tables.pte_table(other.memory(), at(0)) else { return };
            let Some(table) = table.lock_linked() else { return };
            let found = table.get(at(1));
            assert!(found.is_none() || found.is_leaf(Level::Pte) && found.pfn() == Pfn::new(9), "{found:?}");
        });
        assert!(world.discard());
        world.fill(1, 9);
        late.join().unwrap();
        assert_eq!(world.page(1), Some(Pfn::new(9)));
    });
}

/// A leaf replaces the table. A late task does not change the leaf.
#[test]
fn a_late_task_keeps_a_leaf_in_the_slot_of_the_table() {
    loom::model(|| {
        let world = World::new(true);
        let other = Arc::clone(&world);
        let late = thread::spawn(move || {
            let Some(table) = other.tables.pte_table(other.memory(), at(0)) else { return false };
            table.lock_linked().is_some_and(|mut table| {
                let page = P::page(Pfn::new(9), RW);
                table.install(at(1), page).is_ok()
            })
        });
        let reclaimed = world.discard();
        let above = world.tables.pmd_table(world.memory(), at(0)).unwrap();
        let leaf = above.lock().install(at(0), P::leaf(Level::Pmd, Pfn::new(8), RW)).is_ok();
        late.join().unwrap();
        assert_eq!(leaf, reclaimed);
        let is_leaf = matches!(above.peek(at(0)).kind(Level::Pmd), Kind::Leaf { .. });
        assert_eq!((is_leaf, world.memory().live()), (leaf, if leaf { 3 } else { 4 }));
    });
}
