//! The oracles for entries of another size (`size_changed` and `made_before_break` in `src/oracle.rs`), with
//! tables that the test writes itself. A CPU loads through a huge leaf that is clean, and the test replaces
//! the leaf by a table. The next store must set the dirty bit, so the CPU walks the tables while it holds the
//! huge leaf. A flush at this point is too late, even if the CPU does not walk before it.
//!
//! `engine/freehold-pagetable/tests/break_before_make.rs` tests that the engine keeps the rule.

use crate::common::run;
use freehold::platform::{FramePurpose, FrameRequest, Platform};
use freehold_machine::{Machine, MachineConfig};
use freehold_pagetable::{
    Aarch64, Access, Flush, Format, Level, Pfn, PteFlags, TableMemory, VaRange, VirtAddr, X86_4,
};
use freehold_sync::atomic::Ordering::SeqCst;

const AT: u64 = 0x40_0000;
const OPEN: PteFlags = PteFlags::USER.union(PteFlags::WRITE).union(PteFlags::ACCESSED);

/// The place of the flush in the replacement of a leaf by a table.
#[derive(Clone, Copy, PartialEq)]
enum FlushAt {
    /// Before the table is written, when the entry is empty.
    Break,
    /// Before the table is written, but the flush says that small leaves were changed.
    WrongLevel,
    /// After the table is written.
    End,
    Never,
}

/// Maps a huge page, loads from it, replaces it by a table of pages, and stores to it.
fn split<F: Format>(flush: FlushAt) {
    let machine: Machine<F> = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
    let root = machine.alloc_table(None).unwrap();
    let mmu = machine.space_created(root).unwrap();
    let (address, mut table) = (VirtAddr::new(AT), root);
    for level in [Level::P4d, Level::Pud] {
        let next = machine.alloc_table(None).unwrap();
        machine.table(table).entry(address.index(level)).store(F::table(next), SeqCst);
        table = next;
    }
    let entry = machine.table(table).entry(address.index(Level::Pmd));
    let mut block = [Pfn::new(0)];
    assert_eq!(machine.alloc_frames(&FrameRequest::blocks(FramePurpose::File, Level::Pmd), &mut block), 1);
    entry.store(F::leaf(Level::Pmd, block[0], OPEN), SeqCst);
    let mut cpu = machine.cpu(0);
    let no_fault = |address: VirtAddr, access: Access| Err::<(), _>((address, access));
    assert_eq!(cpu.load::<u64, _>(&mmu, AT, no_fault), Ok(0));
    let small = machine.alloc_table(None).unwrap();
    for index in 0..512 {
        let part = F::leaf(Level::Pte, block[0].add(index as u64), OPEN);
        machine.table(small).entry(index).store(part, SeqCst);
    }
    let end = VirtAddr::new(AT + Level::Pmd.span());
    let level = if flush == FlushAt::WrongLevel { Level::Pte } else { Level::Pmd };
    let what = Flush::leaves(VaRange::new(address, end), level);
    if matches!(flush, FlushAt::Break | FlushAt::WrongLevel) {
        entry.store(0, SeqCst);
        machine.flush(&mmu, &what);
    }
    entry.store(F::table(small), SeqCst);
    if flush == FlushAt::End {
        machine.flush(&mmu, &what);
    }
    cpu.store(&mmu, AT, 1u64, no_fault).unwrap();
}

#[test]
#[should_panic(expected = "holds an entry of another size from 0x400000 on: break-before-make is missing")]
fn split_without_a_flush_is_detected() {
    run(|| split::<Aarch64>(FlushAt::Never));
}

#[test]
#[should_panic(expected = "holds an entry of another size from 0x400000 on: break-before-make is missing")]
fn split_with_a_flush_of_another_level_is_detected() {
    run(|| split::<Aarch64>(FlushAt::WrongLevel));
}

#[test]
#[should_panic(expected = "the tables have a live entry of another size before the flush")]
fn split_with_a_late_flush_is_detected() {
    run(|| split::<Aarch64>(FlushAt::End));
}

#[test]
fn break_before_make_is_accepted() {
    run(|| split::<Aarch64>(FlushAt::Break));
}

#[test]
fn x86_may_split_in_place() {
    run(|| split::<X86_4>(FlushAt::Never));
    run(|| split::<X86_4>(FlushAt::End));
}
