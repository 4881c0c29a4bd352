//! Tests that calls with invalid arguments panic in every build, and change nothing.
//!
//! [`refused`] makes a call and expects a panic whose message contains a text; afterwards the test checks
//! that the state is unchanged. `kept.rs` has the cases about deposited tables and about entries that point
//! to tables. To add a case, pass a part of the message and the call to [`refused`].

use crate::common::{Ledger, Memory, NoTlb, tear_down};
use freehold_pagetable::{
    ENTRIES, Gather, Level, NotCached, PAGE_SIZE, PageTable, Pfn, Pte, PteFlags, Table, UnmappedFrame,
    VaRange, VirtAddr, X86_4,
};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The page tables under test.
type Tables = PageTable<X86_4, Memory>;

const SPAN: u64 = Level::Pud.span();

/// Returns the message of the panic of `f`, if it panics.
fn refusal<R>(f: impl FnOnce() -> R) -> Option<String> {
    let why = catch_unwind(AssertUnwindSafe(|| drop(f()))).err()?;
    let text = why.downcast_ref::<&str>().map(|why| why.to_string());
    text.or_else(|| why.downcast_ref::<String>().cloned())
}

/// Asserts that `f` panics with a message that contains `expected`.
#[track_caller]
fn refused<R>(expected: &str, f: impl FnOnce() -> R) {
    let why = refusal(f);
    assert!(why.as_ref().is_some_and(|why| why.contains(expected)), "{why:?}, not {expected:?}");
}

/// Returns a space with a page at 0.
fn with_page(memory: &Memory) -> Tables {
    let tables = Tables::new(memory).unwrap();
    let page = Pte::page(Pfn::new(7), PteFlags::USER);
    tables.pte_table_alloc(memory, VirtAddr::new(0)).unwrap().lock().install(VirtAddr::new(0), page).unwrap();
    tables
}

#[test]
fn entry_panics_for_an_index_behind_the_last() {
    let table = Table::new();
    table.entry(ENTRIES - 1);
    for index in [ENTRIES, ENTRIES + 1, usize::MAX] {
        refused("out of bounds", || table.entry(index));
    }
}

#[test]
fn a_walk_of_parts_of_pages_panics() {
    /// A visitor that must not be called.
    struct Nothing;
    impl freehold_pagetable::Visitor<X86_4, Memory> for Nothing {
        fn table(
            &mut self,
            _: freehold_pagetable::PteGuard<'_, X86_4, Memory>,
            _: VaRange,
        ) -> ControlFlow<()> {
            panic!("visited");
        }
        fn large(
            &mut self,
            _: freehold_pagetable::LeafGuard<'_, X86_4, Memory>,
            _: VaRange,
        ) -> ControlFlow<()> {
            panic!("visited");
        }
    }
    let memory = Memory::new(8);
    let tables = with_page(&memory);
    for (start, end) in [(0, 1), (1, PAGE_SIZE), (0x800, PAGE_SIZE + 0x800), (0, u64::MAX)] {
        refused("parts of pages", || {
            tables.walk(&memory, &NoTlb, VaRange::of(start, end), &mut Nothing).is_ok()
        });
    }
    tear_down(tables, &memory, &Ledger::new(&memory));
}

#[test]
fn entries_of_another_table_are_not_changed() {
    let memory = Memory::new(8);
    let tables = with_page(&memory);
    let mut guard = tables.pte_table(&memory, VirtAddr::new(0)).unwrap().lock();
    let end = Level::Pte.table_span();
    for (start, end) in [(0, end + PAGE_SIZE), (end, end + PAGE_SIZE), (end - PAGE_SIZE, 2 * end)] {
        let range = VaRange::of(start, end);
        refused("leaves its table", || guard.zap_each(range, &mut NotCached, |_, slot, _| slot.clear()));
        refused("leaves its table", || guard.change_each(range, &mut NotCached, |_, _| Pte::NONE));
        refused("leaves its table", || {
            guard.for_each(range, |_, _| ControlFlow::<()>::Continue(())).is_break()
        });
    }
    refused("parts of pages", || {
        guard.zap_each(VaRange::of(0, 0x800), &mut NotCached, |_, slot, _| slot.clear());
    });
    assert_eq!(guard.get(VirtAddr::new(0)).pfn(), Pfn::new(7));
    drop(guard);
    tear_down(tables, &memory, &Ledger::new(&memory));
}

#[test]
fn share_rejects_a_part_of_a_table_and_another_memory() {
    let (memory, other) = (Memory::new(16), Memory::new(16));
    let (from, to, far) =
        (Tables::new(&memory).unwrap(), Tables::new(&memory).unwrap(), Tables::new(&other).unwrap());
    let table = from.pmd_table_alloc(&memory, VirtAddr::new(SPAN)).unwrap();
    let live = (memory.live(), other.live());
    refused("a part of a table", || to.share(&memory, VirtAddr::new(SPAN + Level::Pmd.span()), table));
    refused("another memory", || far.share(&other, VirtAddr::new(SPAN), table));
    assert_eq!((memory.live(), other.live()), live);
    assert!(!table.is_shared());
    tear_down(far, &other, &Ledger::new(&other));
}

#[test]
fn use_buffer_rejects_a_buffer_with_frames() {
    let memory = Memory::new(8);
    let tlb = Ledger::new(&memory);
    let mut before = vec![UnmappedFrame::new(Pfn::new(1), Level::Pte)];
    let mut gather = Gather::<_, 2>::exclusive(&tlb);
    refused("not this gather's", || gather.use_buffer(&mut before, 8));
    gather.finish();
    assert_eq!(tlb.take(), []);
}

#[test]
fn there_are_sixteen_protection_keys() {
    for key in [16, 17, 255] {
        refused("sixteen", || PteFlags::USER.with_pkey(key));
        refused("sixteen", || Pte::<X86_4>::page(Pfn::new(1), PteFlags::USER).with_pkey(key));
    }
}
