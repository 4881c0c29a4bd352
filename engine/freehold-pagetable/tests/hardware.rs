//! Tests the walk of the hardware ([`hw_walk`]) concurrently with plain stores of software, on real
//! processors. `loom.rs` explains why loom cannot test this. One thread walks while the other fills and
//! clears the same entry, until the walk has succeeded often enough.

use crate::common::{Ledger, Memory, tear_down};
use freehold_pagetable::{Access, NotCached, PageTable, Pfn, Pte, PteFlags, VirtAddr, X86_4, hw_walk};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Software clears an entry by a plain store while the hardware sets bits in the entry. The hardware must not
/// restore the entry. A restored entry would make the next install fail.
#[test]
fn hardware_does_not_restore_a_cleared_entry() {
    let memory = Memory::new(8);
    let tables = PageTable::<X86_4, _>::new(&memory).unwrap();
    let at = VirtAddr::new(0x5000);
    let table = tables.pte_table_alloc(&memory, at).unwrap();
    let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let wrote = hw_walk::<X86_4, _>(&memory, tables.root(), at, Access::WRITE).is_ok();
                writes.fetch_add(u64::from(wrote), Ordering::Relaxed);
            }
        });
        let mut round = 0;
        while round < 300_000 || writes.load(Ordering::Relaxed) < 100 {
            round += 1;
            let page = Pte::page(Pfn::new(round), PteFlags::USER | PteFlags::WRITE);
            let installed = table.lock().install(at, page);
            if installed.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(installed, Ok(()), "round {round}");
            table.lock().take_plain(at, &mut NotCached);
        }
        stop.store(true, Ordering::Relaxed);
    });
    tear_down(tables, &memory, &Ledger::new(&memory));
}
