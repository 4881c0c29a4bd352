//! Every interleaving, under weak memory, of reclaiming a table beside tasks that find it. Tables have two
//! entries here. Run with `RUSTFLAGS="--cfg loom"`.
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

type Tables = PageTable<X86_4, Memory>;
type P = Pte<X86_4>;

const RW: PteFlags = PteFlags::USER.union(PteFlags::WRITE);

/// Flushes by a word that a task with a stale translation would look at, and frees tables for good.
struct Flusher {
    memory: Memory,
    /// A processor that remembers the way to the table.
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
        assert_eq!(
            self.remembered.load(Ordering::Acquire),
            0,
            "a table was freed that a processor walks through"
        );
        for table in tables {
            // SAFETY: the gather was given the table when it was unlinked, and flushed.
            unsafe { self.memory.free_table(*table) };
        }
    }

    fn is_unwinding(&self) -> bool {
        std::thread::panicking()
    }
}

struct World {
    tables: Tables,
    state: GatherState,
    tlb: Flusher,
}

impl World {
    /// A table at address 0 with a page in it, if asked.
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

    /// Empties the table at address 0 and reclaims it, as a discard does. Returns whether it was there.
    fn discard(&self) -> bool {
        let mut gather = Gather::<_, 2>::new(&self.tlb, &self.state);
        let reclaimed = self.tables.lock_pte_table(self.memory(), at(0)).is_some_and(|mut table| {
            table.zap_each(table.span(), &mut gather, |_, slot, _| slot.clear());
            // SAFETY: all threads ask whether the table that they lock is linked.
            unsafe { table.reclaim(&mut gather) }
        });
        gather.finish();
        reclaimed
    }

    /// Maps a page, as a fault does: it finds the table, and locks it later.
    fn fill(&self, page: u64, pfn: u64) {
        loop {
            let table = self.tables.pte_table_alloc(self.memory(), at(page)).unwrap();
            if let Some(mut table) = table.lock_linked() {
                // What is in a table that was used before is not seen in it again.
                assert_ne!(table.get(at(page)).raw(), Memory::POISON, "an entry of a free table");
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

/// A page that a fault maps is there when the fault has returned, and a discard comes before it or after it:
/// it is in a linked table, and in none that is freed.
#[test]
fn a_fault_and_a_discard() {
    loom::model(|| {
        let world = World::new(true);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.discard());
        world.fill(1, 9);
        let reclaimed = thread.join().unwrap();
        // Emptied, so not reclaimed only if the other page was there before; then that went, too.
        assert!(reclaimed);
        let found = world.page(1);
        assert!(found.is_none() || found == Some(Pfn::new(9)));
        assert_eq!(world.page(0), None);
        assert_eq!(world.memory().live(), if found.is_some() { 4 } else { 3 });
    });
}

/// Two discards of one table: it is freed once, and both have it flushed, whether it held anything or not.
#[test]
fn two_discards_of_one_table() {
    two_discards(true);
    two_discards(false);
}

fn two_discards(filled: bool) {
    loom::model(move || {
        let world = World::new(filled);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            let reclaimed = other.discard();
            assert_eq!(other.tlb.remembered.load(Ordering::Acquire), 0, "found gone, and not flushed");
            reclaimed
        });
        let mine = world.discard();
        assert_eq!(world.tlb.remembered.load(Ordering::Acquire), 0);
        assert!(mine != thread.join().unwrap());
        assert_eq!(world.memory().live(), 3);
    });
}

/// A task that found the table before it was reclaimed meets it again in the same slot: it works on a table
/// that it finds zeroed.
#[test]
fn a_late_task_and_the_same_table_again() {
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

/// A leaf comes in place of the table, and a task that is late leaves it alone.
#[test]
fn a_late_task_and_a_leaf_in_the_tables_place() {
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
