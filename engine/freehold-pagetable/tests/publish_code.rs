//! Formats without coherent instruction fetches (`Format::COHERENT_FETCH`): the frames of an entry that newly
//! permits fetches are published before the entry is stored. `oracle::old_code` of the test machine checks
//! that the engine publishes after its own stores.

use crate::common::{Ledger, Memory, tear_down};
use freehold_pagetable::{
    Aarch64, Format, Level, NotCached, PageTable, Pfn, Pte, PteFlags, Sv39, VirtAddr, X86_4,
};

const AT: VirtAddr = VirtAddr::new(7 << 21);
const FIRST: Pfn = Pfn::new(512);
const DATA: PteFlags = PteFlags::USER.union(PteFlags::ACCESSED);
const CODE: PteFlags = DATA.union(PteFlags::EXEC);

/// Checks that the frames were published once, when no table had the entry `new` yet.
#[track_caller]
fn assert_published<F: Format>(memory: &Memory, frames: (Pfn, u64), new: Pte<F>) {
    let published = memory.take_published();
    if F::COHERENT_FETCH {
        assert!(published.is_empty());
        return;
    }
    let [only] = &published[..] else { panic!("{} calls", published.len()) };
    assert_eq!(only.frames, frames);
    assert!(!only.entries.contains(&new.raw()), "{new:?} was stored before");
}

fn small_pages<F: Format>() {
    let memory = Memory::new(8);
    let tables = PageTable::<F, _>::new(&memory).unwrap();
    let mut table = tables.pte_table_alloc(&memory, AT).unwrap().lock();
    let page = |n, flags| Pte::page(FIRST.add(n), flags);
    table.install(AT, page(0, DATA)).unwrap();
    assert!(memory.take_published().is_empty(), "data is not published");
    table.grant(AT, PteFlags::EXEC);
    assert_published(&memory, (FIRST, 1), page(0, CODE));
    table.grant(AT, PteFlags::DIRTY);
    assert!(memory.take_published().is_empty(), "the entry permitted fetches before");
    table.change(AT, &mut NotCached, |pte| pte.closed(Level::Pte));
    table.set(AT, page(0, CODE));
    assert_published(&memory, (FIRST, 1), page(0, CODE));
    table.take(AT, &mut NotCached);
    table.install(AT, page(1, CODE)).unwrap();
    assert_published(&memory, (FIRST.add(1), 1), page(1, CODE));
    table.change(AT, &mut NotCached, |pte| pte.closed(Level::Pte));
    table.replace(AT, page(2, CODE), &mut NotCached);
    assert_published(&memory, (FIRST.add(2), 1), page(2, CODE));
    table.take(AT, &mut NotCached);
    drop(table);
    tear_down(tables, &memory, &Ledger::new(&memory));
}

fn large_pages<F: Format>() {
    let memory = Memory::new(8);
    let tables = PageTable::<F, _>::new(&memory).unwrap();
    let mut table = tables.pmd_table_alloc(&memory, AT).unwrap().lock();
    let leaf = Pte::leaf(Level::Pmd, FIRST, CODE);
    table.install(AT, leaf).unwrap();
    assert_published(&memory, (FIRST, 512), leaf);
    table.take(AT, &mut NotCached);
    drop(table);
    tear_down(tables, &memory, &Ledger::new(&memory));
}

#[test]
fn frames_are_published_before_an_entry_permits_fetches() {
    small_pages::<Aarch64>();
    small_pages::<Sv39>();
    large_pages::<Aarch64>();
    large_pages::<Sv39>();
}

#[test]
fn coherent_fetches_need_no_publishing() {
    small_pages::<X86_4>();
    large_pages::<X86_4>();
}
