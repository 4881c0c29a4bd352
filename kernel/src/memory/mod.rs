//! Physical memory, and the engine's platform on it.
//!
//! | file | what |
//! | --- | --- |
//! | [`frames`] | free frames: blocks by the buddy system, single ones by processor; records of all frames |
//! | [`heap`] | the kernel's own objects |
//! | [`stacks`] | kernel stacks, each with pages below that are not there |
//! | [`tlb`] | which space a processor runs, and flushes |
//! | [`rcu`] | grace periods |
//!
//! All memory is visible at [`layout::DIRECT`]; the image lies at the end of the address space.

pub mod frames;
pub mod heap;
pub mod rcu;
pub mod stacks;
pub mod tlb;

use crate::arch::layout::direct;
use crate::start_info::{Region, StartInfo};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::PAGE_SIZE;

/// So much of it is mapped from the start, by `boot.s`.
const MAPPED: u64 = 4 << 30;
const LARGE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
/// Below this lie firmware's tables, the boot protocol's, and where processors start.
const LOW: u64 = 1 << 20;

unsafe extern "C" {
    static kernel_end: u8;
    static mut boot_root: [u64; 512];
    static mut boot_pdpt_low: [u64; 512];
}

/// Bytes of memory that the machine has. Written once.
static TOTAL: AtomicU64 = AtomicU64::new(0);

/// The frame of the kernel's own root table, whose upper half is every space's.
pub fn kernel_root() -> u64 {
    &raw const boot_root as u64
}

pub fn total_bytes() -> u64 {
    TOTAL.load(Relaxed)
}

/// Takes all memory over but what the image, the module and low memory occupy.
pub fn init(info: &StartInfo, module: Option<Region>) {
    let end = info.memory().map(|region| region.end).max().expect("a machine with memory");
    TOTAL.store(info.memory().map(|region| region.end - region.start).sum(), Relaxed);
    let image = Region { start: 0, end: &raw const kernel_end as u64 };
    let taken = [image, module.unwrap_or(Region { start: 0, end: 0 })];
    let records = frames::records_bytes(end / PAGE_SIZE);
    let usable = |limits: Region| {
        let parts = move |region: Region| cut(region, limits, taken);
        info.memory().flat_map(parts)
    };
    let low = Region { start: LOW, end: MAPPED };
    let room =
        usable(low).find(|part| part.end - part.start >= records).expect("memory for records of frames");
    let records = Region { start: room.start, end: room.start + records };
    // SAFETY: memory that nobody uses, mapped, and taken out below.
    unsafe { frames::init(records, end / PAGE_SIZE) };
    for part in usable(low) {
        let part = if part.start == records.start { Region { start: records.end, ..part } } else { part };
        // SAFETY: nobody uses it.
        unsafe { frames::add(part) };
    }
    for gib in MAPPED / GIB..end.div_ceil(GIB) {
        map_gib(gib);
    }
    for part in usable(Region { start: MAPPED, end: u64::MAX }) {
        // SAFETY: as above, and mapped now.
        unsafe { frames::add(part) };
    }
}

/// What of a region lies within the limits and outside of what is taken, in whole pages.
fn cut(region: Region, limits: Region, taken: [Region; 2]) -> impl Iterator<Item = Region> {
    let start = region.start.max(limits.start).next_multiple_of(PAGE_SIZE);
    let end = region.end.min(limits.end) & !(PAGE_SIZE - 1);
    let [mut a, mut b] =
        taken.map(|taken| (taken.start & !(PAGE_SIZE - 1), taken.end.next_multiple_of(PAGE_SIZE)));
    if a.0 > b.0 {
        core::mem::swap(&mut a, &mut b);
    }
    let parts = [(start, a.0.min(end)), (a.1.max(start), b.0.min(end)), (a.1.max(b.1).max(start), end)];
    parts.into_iter().filter(|(start, end)| start < end).map(|(start, end)| Region { start, end })
}

/// Shows a GiB of memory in the direct map.
fn map_gib(gib: u64) {
    let table = frames::alloc(0).expect("memory for the direct map") * PAGE_SIZE;
    for entry in 0..512 {
        // Present, writable, large, global.
        // SAFETY: a frame of ours.
        unsafe {
            direct::<u64>(table).add(entry).write((gib * GIB + entry as u64 * LARGE) | 0x183 | 1 << 63)
        };
    }
    // SAFETY: the first processor alone, before others start; an entry that was empty.
    unsafe {
        direct::<[u64; 512]>(&raw mut boot_pdpt_low as u64).cast::<u64>().add(gib as usize).write(table | 3)
    };
}

/// Low memory is not at its own address any more.
pub fn forget_low_memory() {
    // SAFETY: nobody runs there; stale translations are dropped by the caller.
    unsafe { direct::<u64>(kernel_root()).write(0) };
}
