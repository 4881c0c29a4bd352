//! Oracles: checks that detect bugs in the engine. A check that fails panics with the address or number and
//! the CPU.
//!
//! `inner.rs` calls the functions when frames and tables are allocated and freed, and `cpu.rs` when a CPU
//! uses a translation. Only benchmarks run without them
//! ([`MachineConfig::fast`](crate::MachineConfig::fast)). For each oracle, `tests/oracles.rs` has a kernel
//! that makes the mistake, and expects the panic. A new oracle needs such a test, and a line in this table:
//!
//! | oracle | detects |
//! | --- | --- |
//! | use | a CPU serves an access from a leaf whose frame was freed, or freed and allocated again, since the walk; a CPU walks through a cached table that was freed |
//! | free | a frame or table is freed while a TLB still leads to it |
//! | device | a frame is freed while a device translates an address to it; see `shadow` |
//! | charge | a frame is freed while it is charged to an owner, charged twice, or uncharged twice; see `charges` |
//! | poison | a freed frame or table was written to |
//! | record | a frame is freed while the engine's record of it is not zero |
//! | empty | a table is freed with entries in it |
//! | double free | a free number is freed; see `pool` |
//! | size | a walk finds an entry while the TLB of its CPU holds an entry of another size for the same addresses; only formats with `BREAK_BEFORE_MAKE` |
//! | late flush | a flush drops an entry from a TLB, and the tables have a live entry of another size for the same addresses already; only formats with `BREAK_BEFORE_MAKE` |
//! | code | an entry permits instruction fetches from a frame that the kernel has written to and not published; only formats without `COHERENT_FETCH` |
//! | endless fault | the handler of an access never resolves its fault; see `cpu` |

use crate::host;
use crate::inner::Inner;
use crate::pool::Stale;
use freehold_pagetable::{ENTRIES, Format, Level, Pfn, VirtAddr};

/// The pattern that freed tables are filled with. The pattern is a present entry for a table or frame that no
/// machine has. If a walk follows this entry, the machine therefore detects the error at the next step.
pub(crate) const TABLE_POISON: u64 = 0x00de_adde_adde_a067;

/// Panics: a CPU is about to use a stale leaf.
#[cold]
#[inline(never)]
pub(crate) fn stale_leaf(address: VirtAddr, frame: Pfn, cpu: usize, how: Stale) -> ! {
    panic!(
        "stale translation: CPU {cpu} used {address:?} -> {frame:?}, but that frame {}: a flush is missing",
        told(how)
    )
}

/// Panics: a CPU is about to read a stale table.
#[cold]
#[inline(never)]
pub(crate) fn stale_table(address: VirtAddr, table: Pfn, cpu: usize, how: Stale) -> ! {
    panic!(
        "stale walk cache: CPU {cpu} walked {address:?} through table {table:?}, but that table {}: a flush \
         with tables_freed is missing",
        told(how)
    )
}

/// Returns the reason as a part of a message.
fn told(how: Stale) -> &'static str {
    match how {
        Stale::Outside => "does not exist",
        Stale::Free => "is free",
        Stale::Reassigned => "was freed and handed out again",
    }
}

/// Checks that a frame that is being allocated was not written to while it was free.
pub(crate) fn frame_handed_out<F: Format>(inner: &Inner<F>, pfn: Pfn) {
    if !inner.frames.was_used(pfn) {
        return;
    }
    if let Some((offset, value)) = inner.page(pfn).and_then(|page| page.unpoisoned()) {
        panic!("{pfn:?} was written while it was free: {value:#x} at offset {offset:#x}");
    }
}

/// Checks frames that are retired and cannot be taken yet, and poisons them.
pub(crate) fn frames_freed<F: Format>(inner: &Inner<F>, frames: &[Pfn]) {
    for pfn in frames {
        assert!(
            host::is_zero(inner.frame_record(*pfn)),
            "{pfn:?} was freed while its record is in use: {:?}",
            inner.frame_record(*pfn)
        );
    }
    if inner.config.scan_on_free {
        scan_leaves(inner, frames);
    }
    inner.assert_no_device_uses(frames);
    inner.assert_uncharged(frames);
    frames.iter().filter_map(|pfn| inner.page(*pfn)).for_each(|page| page.poison());
}

/// Checks that no TLB translates an address to one of the freed frames.
fn scan_leaves<F: Format>(inner: &Inner<F>, freed: &[Pfn]) {
    for (number, cpu) in inner.cpus.iter().enumerate() {
        let tlb = cpu.lock();
        for leaf in tlb.leaves() {
            let frames = leaf.frames();
            let hit = if frames.end - frames.start == 1 {
                let only = Pfn::new(frames.start);
                inner.frames.check(only, leaf.stamp).is_err().then_some(only)
            } else {
                freed.iter().copied().find(|pfn| frames.contains(&pfn.get()))
            };
            if let Some(pfn) = hit {
                panic!(
                    "{pfn:?} was freed while the TLB of CPU {number} translates {:#x} to it: a flush is missing",
                    leaf.start()
                );
            }
        }
    }
}

/// Reports that the tables have an entry of another size than an entry that the TLB still holds.
#[cold]
pub(crate) fn size_changed(address: VirtAddr, level: Level, cached: u64, cpu: usize) -> ! {
    panic!(
        "CPU {cpu} reads an entry of {level:?} at {address:?}, and its TLB holds an entry of another size from \
         {cached:#x} on: break-before-make is missing"
    );
}

/// Reports that an entry permits fetches from a frame whose contents were not published.
#[cold]
pub(crate) fn old_code(address: VirtAddr, frame: Pfn, cpu: usize) -> ! {
    panic!("CPU {cpu} may fetch old instructions at {address:?} from {frame:?}: `publish_code` is missing")
}

/// Reports that a flush drops an entry whose addresses have a live entry of another size already.
#[cold]
pub(crate) fn made_before_break(address: u64, level: Level, cpu: usize) -> ! {
    panic!(
        "the TLB of CPU {cpu} holds an entry of {level:?} from {address:#x} on, and the tables have a live entry \
         of another size before the flush: break-before-make is missing"
    );
}

/// Checks that a table that is being allocated was not written to while it was free, and clears its poison.
pub(crate) fn table_handed_out<F: Format>(inner: &Inner<F>, table: Pfn) {
    let memory = inner.table(table);
    if !inner.tables.was_used(table) {
        return;
    }
    let written = host::find_other::<TABLE_POISON>(memory);
    if let Some((index, raw)) = written {
        panic!("page table {table:?} was written while it was free: {raw:#x} at entry {index} of {ENTRIES}");
    }
    host::fill_table::<0>(memory);
}

/// Checks a table that is retired and cannot be taken yet, and poisons it.
pub(crate) fn table_freed<F: Format>(inner: &Inner<F>, table: Pfn) {
    let memory = inner.table(table);
    if let Some((index, raw)) = host::find_other::<0>(memory) {
        panic!("page table {table:?} was freed with an entry in it: {raw:#x} at {index}");
    }
    if inner.config.scan_on_free {
        for (number, cpu) in inner.cpus.iter().enumerate() {
            let tlb = cpu.lock();
            if let Some(walk) = tlb.walks().find(|walk| walk.table == table) {
                panic!(
                    "page table {table:?} was freed while the walk cache of CPU {number} leads {:#x} through it: \
                     a flush with tables_freed is missing",
                    walk.start()
                );
            }
        }
    }
    host::fill_table::<TABLE_POISON>(memory);
}
