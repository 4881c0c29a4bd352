//! The list of CPUs, from the ACPI table MADT. `boot/smp.rs` starts them.
//!
//! The firmware's tables contain physical addresses below 4 GiB, which are read through the direct map. The
//! first CPU of the list must be the one that booted. If there is no table, the kernel runs on one CPU. Only
//! entries for local APICs with an ID of 8 bits are read, because `arch/apic.rs` drives no x2APIC. The test
//! `end-standstill` expects a report of the last of four CPUs.

use crate::arch::layout::direct;

/// Type of an entry for a local APIC.
const LOCAL_APIC: u8 = 0;
/// Flag of an entry for a local APIC: the CPU may be started.
const ENABLED: u32 = 1;

/// Reads a number at this physical address, at any alignment.
fn word<T: Copy>(at: u64) -> T {
    // SAFETY: the address is in the firmware's tables, which the direct map contains. Any bytes are a valid
    // number.
    unsafe { direct::<T>(at).read_unaligned() }
}

/// Calls `f` with the APIC ID of each CPU that is enabled, in the order of the table.
pub fn processors(rsdp: u64, mut f: impl FnMut(u32)) {
    let Some(table) = find(rsdp, *b"APIC") else { return };
    let end = table + u64::from(word::<u32>(table + 4));
    let mut at = table + 44;
    while at < end {
        let (kind, bytes) = (word::<u8>(at), word::<u8>(at + 1));
        if kind == LOCAL_APIC && word::<u32>(at + 4) & ENABLED != 0 {
            f(u32::from(word::<u8>(at + 3)));
        }
        at += u64::from(bytes.max(2));
    }
}

/// Returns the physical address of the ACPI table with this signature.
fn find(rsdp: u64, signature: [u8; 4]) -> Option<u64> {
    if rsdp == 0 {
        return None;
    }
    let wide = word::<u8>(rsdp + 15) >= 2;
    let (root, step) = if wide { (word::<u64>(rsdp + 24), 8) } else { (word::<u32>(rsdp + 16).into(), 4) };
    let end = root + u64::from(word::<u32>(root + 4));
    let entry = |at| if wide { word::<u64>(at) } else { word::<u32>(at).into() };
    (root + 36..end).step_by(step).map(entry).find(|table| word::<[u8; 4]>(*table) == signature)
}
