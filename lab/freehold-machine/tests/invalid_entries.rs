//! TLBs that cache invalid entries (`Format::CACHES_INVALID`): an access to a page at which an earlier access
//! failed faults once more after the page is mapped, unless a flush covers the page. x86-64 forgets the page.

use crate::common::run;
use freehold::platform::{FramePurpose, FrameRequest, Platform};
use freehold_machine::{Machine, MachineConfig};
use freehold_pagetable::{
    Access, Flush, Format, Level, Pfn, PteFlags, Sv39, TableMemory, VaRange, VirtAddr, X86_4,
};
use freehold_sync::atomic::Ordering::SeqCst;

const AT: u64 = 0x40_0000;

/// Fails at an unmapped page, maps it, and loads from it. Returns the number of faults of that load. Flushes the
/// page before the load if `flushes` is true.
fn faults_after_mapping<F: Format>(flushes: bool) -> u32 {
    let machine: Machine<F> = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
    let root = machine.alloc_table(None).unwrap();
    let mmu = machine.space_created(root).unwrap();
    let (address, mut table) = (VirtAddr::new(AT), root);
    for level in (1..F::LEVELS).rev().map(Level::from_number) {
        let next = machine.alloc_table(None).unwrap();
        machine.table(table).entry(address.index(level)).store(F::table(next), SeqCst);
        table = next;
    }
    let mut cpu = machine.cpu(0);
    let refused = cpu.load::<u64, _>(&mmu, AT, |_, _| Err("not mapped"));
    assert_eq!(refused, Err("not mapped"));
    let mut frame = [Pfn::new(0)];
    assert_eq!(machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frame), 1);
    let raw = F::leaf(Level::Pte, frame[0], PteFlags::USER | PteFlags::ACCESSED);
    machine.table(table).entry(address.index(Level::Pte)).store(raw, SeqCst);
    if flushes {
        let end = VirtAddr::new(AT + 1);
        machine.flush(&mmu, &Flush::leaves(VaRange::new(address, end), Level::Pte));
    }
    let mut faults = 0;
    let resolved = |_: VirtAddr, _: Access| {
        faults += 1;
        Ok::<(), ()>(())
    };
    assert_eq!(cpu.load::<u64, _>(&mmu, AT, resolved), Ok(0));
    faults
}

#[test]
fn a_page_that_was_invalid_faults_once_more() {
    run(|| {
        assert_eq!(faults_after_mapping::<Sv39>(false), 1);
        assert_eq!(faults_after_mapping::<Sv39>(true), 0);
        assert_eq!(faults_after_mapping::<X86_4>(false), 0);
    });
}
