//! Tests of tables that several spaces share (`src/share.rs`), in one thread.
//!
//! A test fills entries in one space and looks for them in the other with the walk of the hardware. A
//! [`Ledger`] records the flushes of unsharing, and [`tear_down`] checks that each table is freed once.
//! `loom_share.rs` tests concurrent calls.

use crate::common::{Event, Ledger, Memory, tear_down, unmap};
use freehold_pagetable::{
    Access, Flush, Format, Gather, Kind, Level, Levels, NotCached, PageTable, Pfn, Pte, PteFlags, TableError,
    VaRange, VirtAddr, X86_4, hw_walk,
};

const HUGE: u64 = Level::Pmd.span();
const SPAN: u64 = Level::Pud.span();
const RW: PteFlags = PteFlags::USER.union(PteFlags::WRITE);

fn all() -> VaRange {
    VaRange::of(0, X86_4::USER_END)
}

/// The page tables under test.
type Tables = PageTable<X86_4, Memory>;

fn at(huge: u64) -> VirtAddr {
    VirtAddr::new(huge * HUGE)
}

/// Returns a space with a huge page at the start of each of the first `spans` spans.
fn with_spans(memory: &Memory, spans: u64) -> Tables {
    let tables = Tables::new(memory).unwrap();
    (0..spans).for_each(|span| fill(memory, &tables, span * 512));
    tables
}

fn fill(memory: &Memory, tables: &Tables, huge: u64) {
    let leaf = Pte::leaf(Level::Pmd, Pfn::new(huge * 512), RW);
    tables.pmd_table_alloc(memory, at(huge)).unwrap().lock().install(at(huge), leaf).unwrap();
}

fn share(memory: &Memory, to: &Tables, from: &Tables, span: u64) -> Result<bool, TableError> {
    let address = VirtAddr::new(span * SPAN);
    to.share(memory, address, from.pmd_table(memory, address).unwrap())
}

fn found(memory: &Memory, tables: &Tables, huge: u64) -> Option<Pfn> {
    hw_walk::<X86_4, _>(memory, tables.root(), at(huge), Access::WRITE).ok().map(|seen| seen.pfn)
}

#[test]
fn a_shared_table_shows_an_entry_in_each_space() {
    let memory = Memory::new(16);
    let (a, b) = (with_spans(&memory, 1), Tables::new(&memory).unwrap());
    assert_eq!(share(&memory, &b, &a, 0), Ok(true));
    assert_eq!(memory.live(), 3 + 2, "b has a root and one table below it");
    fill(&memory, &b, 7);
    assert_eq!([&a, &b].map(|space| found(&memory, space, 7)), [Some(Pfn::new(7 * 512)); 2]);
    a.pmd_table(&memory, at(0)).unwrap().lock().take(at(0), &mut NotCached);
    assert_eq!(found(&memory, &b, 0), None);

    let tlb = Ledger::new(&memory);
    let mut gather = Gather::<_, 2>::exclusive(&tlb);
    assert!(a.unshare(&memory, at(3), &mut gather));
    assert!(!a.unshare(&memory, at(3), &mut gather), "no table is linked there any more");
    assert!(!b.unshare(&memory, at(3), &mut gather), "no other space uses the table");
    gather.finish();
    drop(gather);
    assert_eq!([&a, &b].map(|space| found(&memory, space, 7)), [None, Some(Pfn::new(7 * 512))]);
    unmap(&a, &memory, &tlb, all());
    assert_eq!(found(&memory, &b, 7), Some(Pfn::new(7 * 512)));
    // SAFETY: there is one thread, and the space is not used again.
    unsafe { a.destroy(&memory) };
    tear_down(b, &memory, &tlb);
}

/// C-14, C-17: a space that unshares several tables flushes once, and flushes all addresses that these tables
/// translate.
#[test]
fn c14_c17_unsharing_flushes_whole_spans_once() {
    let memory = Memory::new(32);
    let (a, b) = (with_spans(&memory, 5), Tables::new(&memory).unwrap());
    (0..5).for_each(|span| assert_eq!(share(&memory, &b, &a, span), Ok(true)));
    let tlb = Ledger::new(&memory);
    let mut gather = Gather::<_, 2>::exclusive(&tlb);
    // The caller works on one huge page in the middle of each span.
    (0..5).for_each(|span| assert!(b.unshare(&memory, at(span * 512 + 100), &mut gather)));
    assert_eq!(tlb.take(), []);
    gather.finish();
    drop(gather);
    let (start, end) = (VirtAddr::new(0), VirtAddr::new(5 * SPAN));
    let levels = Levels::ALL;
    assert_eq!(tlb.take(), [Event::Flush(Flush { start, end, all: false, levels, tables_freed: true })]);
    unmap(&b, &memory, &tlb, all());
    // SAFETY: there is one thread, and the space is not used again.
    unsafe { b.destroy(&memory) };
    tear_down(a, &memory, &tlb);
}

#[test]
fn a_filled_entry_is_not_replaced_by_share() {
    let memory = Memory::new(16);
    let (a, b) = (with_spans(&memory, 2), Tables::new(&memory).unwrap());
    // The slot has another table, then the same table again, then a leaf.
    fill(&memory, &b, 9);
    assert_eq!(share(&memory, &b, &a, 0), Ok(false));
    assert!(!a.pmd_table(&memory, at(0)).unwrap().is_shared());
    assert_eq!((found(&memory, &b, 9), found(&memory, &b, 0)), (Some(Pfn::new(9 * 512)), None));
    assert_eq!([(); 2].map(|()| share(&memory, &b, &a, 1)), [Ok(true); 2]);
    let tlb = Ledger::new(&memory);
    let mut gather = Gather::<_, 2>::exclusive(&tlb);
    assert!(b.unshare(&memory, at(512), &mut gather));
    assert!(!a.unshare(&memory, at(512), &mut gather), "two calls of share count once");
    gather.finish();
    drop(gather);
    let leaf = Pte::leaf(Level::Pud, Pfn::new(0), RW);
    b.pud_table(&memory, at(512)).unwrap().lock().install(at(512), leaf).unwrap();
    assert_eq!(share(&memory, &b, &a, 1), Err(TableError::Huge(Level::Pud)));
    let (pte, level) = b.peek(&memory, at(512));
    assert_eq!(pte.kind(level), Kind::Leaf { pfn: Pfn::new(0), flags: RW | PteFlags::HUGE });
    unmap(&b, &memory, &tlb, all());
    // SAFETY: there is one thread, and the space is not used again.
    unsafe { b.destroy(&memory) };
    tear_down(a, &memory, &tlb);
}

#[test]
fn share_fails_without_memory_for_upper_tables() {
    let memory = Memory::new(16);
    let (a, b) = (with_spans(&memory, 1), Tables::new(&memory).unwrap());
    memory.fail_after(0);
    assert_eq!(share(&memory, &b, &a, 0), Err(TableError::OutOfTables));
    assert!(!a.pmd_table(&memory, at(0)).unwrap().is_shared());
    let tlb = Ledger::new(&memory);
    // SAFETY: there is one thread, and the space is not used again.
    unsafe { b.destroy(&memory) };
    tear_down(a, &memory, &tlb);
}
