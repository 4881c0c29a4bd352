//! Tests of deposited tables: empty tables that an upper table has in a list, for splitting its leaves
//! (`src/table.rs` defines the term).
//!
//! The memory of a test (`common/mod.rs`) can refuse an allocation. So a test sees whether a split used a
//! deposited table or allocated one, and the number of live tables shows whether each table was freed once.
//!
//! The list is accessed only under the lock of the upper table. So two splits, or a split and the removal of
//! a leaf, never take the same table. Because the lock orders all accesses, no test here runs under loom or
//! shuttle.

use crate::common::{Ledger, Memory, NoTlb, tear_down};
use freehold_pagetable::{
    Access, LeafGuard, Level, NotCached, OutOfTables, PAGE_SIZE, PageTable, Pfn, PmdGuard, PreallocatedTable,
    Pte, PteFlags, PteGuard, VaRange, VirtAddr, Visitor, Walked, X86_4, hw_walk,
};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

const HUGE: u64 = Level::Pmd.span();
const RW: PteFlags = PteFlags::USER.union(PteFlags::WRITE);

/// The page tables under test.
type Tables = PageTable<X86_4, Memory>;

fn at(huge: u64) -> VirtAddr {
    VirtAddr::new(huge * HUGE)
}

/// Returns tables with a leaf at each of these addresses. Deposits `kept` tables with the upper table of the
/// first leaf.
fn with_leaves(memory: &Memory, leaves: std::ops::Range<u64>, kept: usize) -> Tables {
    let tables = Tables::new(memory).unwrap();
    for huge in leaves.clone() {
        let leaf = Pte::leaf(Level::Pmd, Pfn::new(huge * HUGE / PAGE_SIZE), RW);
        tables.pmd_table_alloc(memory, at(huge)).unwrap().lock().install(at(huge), leaf).unwrap();
    }
    let mut guard = tables.pmd_table(memory, at(leaves.start)).unwrap().lock();
    (0..kept).for_each(|_| guard.deposit(PreallocatedTable::try_new(memory, Pfn::new(0)).unwrap()));
    drop(guard);
    tables
}

/// Returns the page that the hardware finds for `page`, and the level of the leaf. Both pages are numbered
/// from the start of the huge page.
fn found(memory: &Memory, tables: &Tables, huge: u64, page: u64) -> (u64, Level) {
    let probe = VirtAddr::new(huge * HUGE + page * PAGE_SIZE);
    let seen = hw_walk::<X86_4, _>(memory, tables.root(), probe, Access::WRITE).unwrap();
    (seen.pfn.get() - huge * HUGE / PAGE_SIZE, seen.level)
}

#[test]
fn a_split_with_a_deposited_table_needs_no_memory() {
    let memory = Memory::new(16);
    let tables = with_leaves(&memory, 0..3, 2);
    let live = memory.live();
    for huge in [2, 0] {
        memory.fail_after(0);
        assert_eq!(
            tables.pmd_table(&memory, at(huge)).unwrap().split(&NoTlb, tables.root(), at(huge)),
            Ok(true)
        );
        assert_eq!(found(&memory, &tables, huge, 77), (77, Level::Pte));
    }
    // The third split needs an allocation. The first attempt fails, and the leaf stays; the second succeeds.
    assert_eq!(
        tables.pmd_table(&memory, at(1)).unwrap().split(&NoTlb, tables.root(), at(1)),
        Err(OutOfTables)
    );
    assert_eq!((found(&memory, &tables, 1, 77), memory.live()), ((77, Level::Pmd), live));
    assert_eq!(tables.pmd_table(&memory, at(1)).unwrap().split(&NoTlb, tables.root(), at(1)), Ok(true));
    assert_eq!(memory.live(), live + 1);
    tear_down(tables, &memory, &Ledger::new(&memory));
}

#[test]
fn each_deposited_table_is_withdrawn_once_and_empty() {
    let memory = Memory::new(16);
    let tables = with_leaves(&memory, 0..2, 0);
    let spares: Vec<_> = (0..3).map(|_| PreallocatedTable::try_new(&memory, Pfn::new(0)).unwrap()).collect();
    let made: Vec<Pfn> = spares.iter().map(PreallocatedTable::pfn).collect();
    let live = memory.live();
    let mut guard = tables.pmd_table(&memory, at(0)).unwrap().lock();
    assert!(guard.withdraw().is_none());
    spares.into_iter().for_each(|table| guard.deposit(table));
    let back: Vec<_> = std::iter::from_fn(|| guard.withdraw()).collect();
    assert!(guard.withdraw().is_none());
    drop(guard);
    let mut numbers: Vec<Pfn> = back.iter().map(PreallocatedTable::pfn).collect();
    numbers.sort();
    assert_eq!((numbers, memory.live()), (made, live));
    drop(back);
    assert_eq!(memory.live(), live - 3);
    tear_down(tables, &memory, &Ledger::new(&memory));
}

#[test]
fn a_deposited_table_serves_only_its_own_table() {
    // The leaves are on both sides of a border between tables of this level.
    let memory = Memory::new(16);
    let tables = with_leaves(&memory, 511..513, 1);
    memory.fail_after(0);
    assert_eq!(
        tables.pmd_table(&memory, at(512)).unwrap().split(&NoTlb, tables.root(), at(512)),
        Err(OutOfTables)
    );
    memory.fail_after(0);
    assert_eq!(tables.pmd_table(&memory, at(511)).unwrap().split(&NoTlb, tables.root(), at(511)), Ok(true));
    tear_down(tables, &memory, &Ledger::new(&memory));
}

#[test]
#[should_panic = "from another memory"]
fn a_table_from_another_memory_is_refused() {
    let (memory, other) = (Memory::new(16), Memory::new(16));
    let tables = with_leaves(&memory, 0..1, 0);
    let spare = PreallocatedTable::try_new(&other, Pfn::new(0)).unwrap();
    tables.pmd_table(&memory, at(0)).unwrap().lock().deposit(spare);
}

/// A table that an upper entry points to is unlinked and freed later. So a caller may not store such an
/// entry.
#[test]
fn an_entry_that_points_to_a_table_is_rejected() {
    let memory = Memory::new(16);
    let tables = with_leaves(&memory, 0..1, 0);
    let somewhere = Pte::table(Pfn::new(Memory::BASE + 7));
    let mut guard = tables.pmd_table(&memory, at(0)).unwrap().lock();
    let mut refused = |attempt: &mut dyn FnMut(&mut PmdGuard<'_, X86_4, Memory>)| {
        let refused = catch_unwind(AssertUnwindSafe(|| attempt(&mut guard)));
        assert!(refused.is_err());
    };
    refused(&mut |guard| guard.install(at(1), somewhere).unwrap());
    refused(&mut |guard| assert!(guard.replace(at(0), somewhere, &mut NotCached).is_none()));
    refused(&mut |guard| assert_eq!(guard.change(at(0), &mut NotCached, |_| somewhere).0, Pte::NONE));
    drop(guard);
    assert_eq!(found(&memory, &tables, 0, 77), (77, Level::Pmd));
    tear_down(tables, &memory, &Ledger::new(&memory));
}

/// Clears every entry. For a leaf that is removed whole, also frees a table that was deposited for it.
struct Clear;

impl Visitor<X86_4, Memory> for Clear {
    fn table(&mut self, mut table: PteGuard<'_, X86_4, Memory>, range: VaRange) -> ControlFlow<()> {
        table.zap_each(range, &mut NotCached, |_, slot, _| slot.clear());
        ControlFlow::Continue(())
    }

    fn large(&mut self, mut leaf: LeafGuard<'_, X86_4, Memory>, _: VaRange) -> ControlFlow<()> {
        leaf.take(&mut NotCached);
        drop(leaf.withdraw().expect("no table was deposited for the leaf"));
        ControlFlow::Continue(())
    }
}

#[test]
fn a_walk_uses_up_deposited_tables() {
    let memory = Memory::new(16);
    let tables = with_leaves(&memory, 0..4, 4);
    let range = VaRange::of(HUGE / 2, 3 * HUGE + HUGE / 2);
    memory.fail_after(0);
    assert_eq!(tables.walk(&memory, &NoTlb, range, &mut Clear), Ok(Walked::All));
    assert_eq!(found(&memory, &tables, 0, 255), (255, Level::Pte));
    assert_eq!(found(&memory, &tables, 3, 256), (256, Level::Pte));
    // The root, two upper tables, and the tables of the first and of the last leaf.
    assert_eq!(memory.live(), 5);
    tear_down(tables, &memory, &Ledger::new(&memory));
}
