//! Tests of reclaiming tables of the lowest level (`src/reclaim.rs`) while tasks may find them.
//!
//! One thread acts as both tasks: it finds a table, reclaims it, and then uses what it found, as a late task
//! would. A [`Ledger`] records each flush and each freed table in order. `loom_reclaim.rs` tests the same
//! protocol with two threads.
//!
//! A property of the order of steps in one task belongs here. A property that depends on the interleaving or
//! on memory orders belongs in `loom_reclaim.rs`. `engine/freehold/tests/huge/reclaim.rs` tests which tables
//! MADV_DONTNEED frees. Mutations in `xtask/mutants` name tests of this file.

use crate::common::{Event, Ledger, Memory, NoTlb, tear_down};
use freehold_pagetable::{
    ENTRIES, Flush, Gather, GatherState, Level, Levels, MarkerKind, PAGE_SIZE, PageTable, Pfn, Pte, PteFlags,
    PteGuard, PteTable, VaRange, VirtAddr, Visitor, Walked, X86_4,
};
use std::ops::ControlFlow;

const HUGE: u64 = Level::Pmd.span();

/// The page tables under test.
type Tables = PageTable<X86_4, Memory>;

fn at(table: u64, page: u64) -> VirtAddr {
    VirtAddr::new(table * HUGE + page * PAGE_SIZE)
}

fn page() -> Pte<X86_4> {
    Pte::page(Pfn::new(7), PteFlags::USER)
}

/// Returns the table with number `table`, and creates it if needed.
fn found<'a>(tables: &'a Tables, memory: &'a Memory, table: u64) -> PteTable<'a, X86_4, Memory> {
    tables.pte_table_alloc(memory, at(table, 0)).unwrap()
}

/// Empties the linked table with number `table` and reclaims it.
fn reclaim(tables: &Tables, memory: &Memory, tlb: &Ledger<'_>, state: &GatherState, table: u64) -> bool {
    let mut gather = Gather::<_, { ENTRIES }>::new(tlb, state);
    let mut guard = tables.pte_table(memory, at(table, 0)).unwrap().lock();
    guard.zap_each(guard.span(), &mut gather, |_, slot, _| slot.clear());
    // SAFETY: there is one thread, which checks that tables are linked.
    let reclaimed = unsafe { guard.reclaim(&mut gather) };
    gather.finish();
    reclaimed
}

#[test]
fn a_table_is_freed_after_a_flush_with_tables_freed() {
    let (memory, state) = (Memory::new(8), GatherState::new());
    let (tables, tlb) = (Tables::new(&memory).unwrap(), Ledger::new(&memory));
    found(&tables, &memory, 3).lock().install(at(3, 9), page()).unwrap();
    let live = memory.live();
    assert!(reclaim(&tables, &memory, &tlb, &state, 3));
    let levels = Levels::of(Level::Pte).union(Levels::of(Level::Pmd));
    let flush = Flush { start: at(3, 0), end: at(4, 0), all: false, levels, tables_freed: true };
    let events = tlb.take();
    assert_eq!(events[0], Event::Flush(flush));
    assert!(matches!(&events[1..], [Event::Free(tables)] if tables.len() == 1));
    assert_eq!((memory.live(), tables.peek(&memory, at(3, 9))), (live - 1, (Pte::NONE, Level::Pmd)));
    tear_down(tables, &memory, &tlb);
}

#[test]
fn a_table_with_an_entry_stays() {
    let (memory, state) = (Memory::new(8), GatherState::new());
    let (tables, tlb) = (Tables::new(&memory).unwrap(), Ledger::new(&memory));
    let marker = Pte::marker(MarkerKind::Guard, 0);
    found(&tables, &memory, 0).lock().install(at(0, 511), marker).unwrap();
    let mut gather = Gather::<_, { ENTRIES }>::new(&tlb, &state);
    // SAFETY: there is one thread, which checks that tables are linked.
    assert!(unsafe { !found(&tables, &memory, 0).lock().reclaim(&mut gather) });
    gather.finish();
    assert_eq!(tlb.take(), []);
    assert_eq!(tables.peek(&memory, at(0, 511)), (marker, Level::Pte));
    assert!(reclaim(&tables, &memory, &tlb, &state, 0));
    tear_down(tables, &memory, &tlb);
}

/// A task that found a table before it was reclaimed cannot lock it, no matter which table or entry is linked
/// in its place.
#[test]
fn a_late_task_does_not_lock_a_reclaimed_table() {
    let (memory, state) = (Memory::new(8), GatherState::new());
    let (tables, tlb) = (Tables::new(&memory).unwrap(), Ledger::new(&memory));
    let late = found(&tables, &memory, 0);
    assert!(reclaim(&tables, &memory, &tlb, &state, 0));
    assert!(late.lock_linked().is_none() && late.try_lock_linked().is_none());
    assert!(tables.lock_pte_table(&memory, at(0, 0)).is_none());
    // The memory hands out the table that was freed last. The table is now linked at another address.
    found(&tables, &memory, 1).lock().install(at(1, 5), page()).unwrap();
    assert_ne!(tables.peek(&memory, at(1, 5)), (Pte::NONE, Level::Pte));
    assert_eq!(late.peek(at(0, 5)), page(), "the new table is not the reclaimed one");
    assert!(late.lock_linked().is_none() && late.try_lock_linked().is_none());
    assert!(reclaim(&tables, &memory, &tlb, &state, 1));
    // If the table is linked at the address where it was found, the task may use the table.
    found(&tables, &memory, 0).lock().install(at(0, 6), page()).unwrap();
    assert_eq!(late.lock_linked().map(|table| table.get(at(0, 6))), Some(page()));
    assert!(reclaim(&tables, &memory, &tlb, &state, 0));
    tear_down(tables, &memory, &tlb);
}

/// Reclaims every table that it is called with.
struct Reclaim<'g, 'a, 'm>(&'g mut Gather<'a, Ledger<'m>>);

impl Visitor<X86_4, Memory> for Reclaim<'_, '_, '_> {
    fn unlocked(&mut self, _: VaRange) {
        self.0.make_capacity(ENTRIES);
    }

    fn table(&mut self, mut table: PteGuard<'_, X86_4, Memory>, range: VaRange) -> ControlFlow<()> {
        assert_eq!(range, table.span());
        table.zap_each(range, self.0, |_, slot, _| slot.clear());
        // SAFETY: there is one thread, which uses no other table until the end of this call.
        assert!(unsafe { table.reclaim(self.0) });
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: freehold_pagetable::LeafGuard<'_, X86_4, Memory>, _: VaRange) -> ControlFlow<()> {
        unreachable!("no leaf was made")
    }
}

/// If more tables are reclaimed than a gather holds, the gather flushes and frees between two tables, while
/// no table is locked.
#[test]
fn any_number_of_tables_is_reclaimed() {
    const TABLES: u64 = 100;
    let (memory, state) = (Memory::new(TABLES as usize + 4), GatherState::new());
    let (tables, tlb) = (Tables::new(&memory).unwrap(), Ledger::new(&memory));
    (0..TABLES)
        .for_each(|table| found(&tables, &memory, table).lock().install(at(table, 1), page()).unwrap());
    let live = memory.live();
    let mut gather = Gather::new(&tlb, &state);
    let walked =
        tables.walk(&memory, &NoTlb, VaRange::new(at(0, 0), at(TABLES, 0)), &mut Reclaim(&mut gather));
    gather.finish();
    assert_eq!((walked, memory.live()), (Ok(Walked::All), live - TABLES as usize));
    // Each batch of tables is flushed before the batch is freed.
    let events = tlb.take();
    let freed = |event: &Event| if let Event::Free(tables) = event { tables.len() as u64 } else { 0 };
    assert_eq!(events.iter().map(freed).sum::<u64>(), TABLES);
    for (before, event) in events.iter().zip(&events[1..]) {
        let flushed = matches!(before, Event::Flush(Flush { tables_freed: true, .. }));
        assert!(freed(event) == 0 || flushed, "{events:?}");
    }
    tear_down(tables, &memory, &tlb);
}

/// Reclaims the table of the walk before the walk has locked it, as another task would.
struct LoseFirst<'t, 'm> {
    tables: &'t Tables,
    memory: &'m Memory,
    tlb: &'t Ledger<'m>,
    lost: bool,
    seen: usize,
}

impl Visitor<X86_4, Memory> for LoseFirst<'_, '_> {
    fn unlocked(&mut self, _: VaRange) {
        if !std::mem::replace(&mut self.lost, true) {
            assert!(reclaim(self.tables, self.memory, self.tlb, &GatherState::new(), 0));
            // Links another table there. The memory hands out the reclaimed table first, so the first call
            // links that table at another address, and the second call links a new table.
            let _hold = found(self.tables, self.memory, 5);
            found(self.tables, self.memory, 0).lock().install(at(0, 3), page()).unwrap();
        }
    }

    fn table(&mut self, table: PteGuard<'_, X86_4, Memory>, _: VaRange) -> ControlFlow<()> {
        assert!(table.is_linked());
        self.seen += usize::from(table.get(at(0, 3)) == page());
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: freehold_pagetable::LeafGuard<'_, X86_4, Memory>, _: VaRange) -> ControlFlow<()> {
        unreachable!("no leaf was made")
    }
}

#[test]
fn a_walk_continues_in_the_table_that_replaced_a_reclaimed_one() {
    for end in [at(0, 4), at(0, 511), at(1, 0), at(2, 0)] {
        let (memory, state) = (Memory::new(8), GatherState::new());
        let (tables, tlb) = (Tables::new(&memory).unwrap(), Ledger::new(&memory));
        found(&tables, &memory, 0);
        let mut visitor = LoseFirst { tables: &tables, memory: &memory, tlb: &tlb, lost: false, seen: 0 };
        assert_eq!(tables.walk(&memory, &NoTlb, VaRange::new(at(0, 2), end), &mut visitor), Ok(Walked::All));
        assert_eq!(visitor.seen, 1);
        assert!(reclaim(&tables, &memory, &tlb, &state, 0));
        tear_down(tables, &memory, &tlb);
    }
}
