//! Splits on a format whose live entries may change size only through an entry without translation
//! (`Format::BREAK_BEFORE_MAKE`). The TLB of these tests checks at each flush that the hardware cannot
//! translate through the leaf any more, and that no other task can take the entry for an empty one.
//!
//! `tables.rs` tests that splits on other formats flush nothing, and
//! `lab/freehold-machine/tests/break_before_make.rs` the oracle of the machine.

use crate::common::{Ledger, Memory, tear_down};
use freehold_pagetable::{
    Aarch64, Access, Flush, Format, Kind, Level, NotCached, PageTable, Pfn, Pte, PteFlags, Riscv64, Tlb,
    UnmappedFrame, VaRange, VirtAddr, hw_walk,
};
use std::cell::Cell;

const AT: VirtAddr = VirtAddr::new(7 << 21);
const FIRST: Pfn = Pfn::new(512);

/// The TLBs of a split of the leaf at [`AT`].
struct Checked<'m, F: Format> {
    memory: &'m Memory,
    tables: &'m PageTable<F, Memory>,
    flushes: Cell<u32>,
}

impl<F: Format> Tlb for Checked<'_, F> {
    fn flush(&self, what: &Flush) {
        let end = VirtAddr::new(AT.get() + Level::Pmd.span());
        assert_eq!(*what, Flush::leaves(VaRange::new(AT, end), Level::Pmd));
        let seen = hw_walk::<F, _>(self.memory, self.tables.root(), AT, Access::READ);
        assert!(seen.is_err(), "the hardware translates through the leaf during its flush");
        let (closed, level) = self.tables.peek(self.memory, AT);
        let Kind::Leaf { pfn, flags } = closed.kind(level) else { panic!("{closed:?} is no leaf") };
        assert!(level == Level::Pmd && pfn == FIRST && flags.contains(PteFlags::NO_ACCESS));
        self.flushes.set(self.flushes.get() + 1);
    }

    fn release(&self, frames: &[UnmappedFrame]) {
        panic!("a split releases {frames:?}");
    }

    unsafe fn free_tables(&self, tables: &[Pfn]) {
        panic!("a split frees {tables:?}");
    }
}

/// Splits a leaf with these flags, and returns the number of flushes.
fn flushes_of_a_split<F: Format>(flags: PteFlags) -> u32 {
    let memory = Memory::new(8);
    let tables = PageTable::<F, _>::new(&memory).unwrap();
    let above = tables.pmd_table_alloc(&memory, AT).unwrap();
    above.lock().install(AT, Pte::leaf(Level::Pmd, FIRST, flags)).unwrap();
    let tlb = Checked { memory: &memory, tables: &tables, flushes: Cell::new(0) };
    assert_eq!(above.split(&tlb, tables.root(), AT), Ok(true));
    let table = tables.pte_table(&memory, AT).unwrap();
    for page in 0..512 {
        let at = VirtAddr::new(AT.get() + (page << 12));
        let kind = table.peek(at).kind(Level::Pte);
        assert_eq!(kind, Kind::Leaf { pfn: FIRST.add(page), flags: Pte::<F>::page(FIRST, flags).flags() });
        table.lock().take_plain(at, &mut NotCached);
    }
    let flushes = tlb.flushes.get();
    tear_down(tables, &memory, &Ledger::new(&memory));
    flushes
}

#[test]
fn split_closes_and_flushes_the_leaf_first() {
    let flags = PteFlags::USER | PteFlags::WRITE | PteFlags::ACCESSED;
    for flags in [flags, flags | PteFlags::DIRTY | PteFlags::SOFT_DIRTY, PteFlags::USER | PteFlags::UFFD_WP] {
        assert_eq!(flushes_of_a_split::<Aarch64>(flags), 1, "{flags:?}");
        assert_eq!(flushes_of_a_split::<Aarch64<0>>(flags), 1, "{flags:?}");
        assert_eq!(flushes_of_a_split::<Riscv64<3>>(flags), 0, "{flags:?}");
    }
}

#[test]
#[should_panic(expected = "a live entry was replaced without break-before-make")]
fn another_frame_in_place_is_detected() {
    let memory = Memory::new(8);
    let tables = PageTable::<Aarch64, _>::new(&memory).unwrap();
    let mut table = tables.pte_table_alloc(&memory, AT).unwrap().lock();
    table.set(AT, Pte::page(FIRST, PteFlags::USER | PteFlags::ACCESSED));
    table.replace(AT, Pte::page(FIRST.add(1), PteFlags::USER | PteFlags::ACCESSED), &mut NotCached);
}
