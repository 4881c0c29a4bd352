//! Physical memory, and the parts of the engine's platform that manage it.
//!
//! | file | what |
//! | --- | --- |
//! | [`frames`] | free frames: a buddy system, and per-CPU caches of single frames; records of all frames |
//! | [`account`] | the bytes of kernel memory that a process has caused |
//! | [`heap`] | the kernel's heap |
//! | [`stacks`] | kernel stacks, each with an unmapped guard below it |
//! | [`tlb`] | the space that each CPU runs, and TLB flushes |
//! | [`rcu`] | grace periods |
//!
//! All memory is visible at [`DIRECT`](crate::arch::layout::DIRECT). The kernel's image lies at the end of
//! the address space.
//!
//! [`init`] runs once, on the first CPU, before anything allocates. The firmware's and the boot protocol's
//! tables stay readable, because memory below [`LOW`] never becomes free.
//!
//! A further region that must not become free belongs in `taken` of [`init`]. `cut` removes the `taken`
//! regions from the usable memory, and accepts exactly two of them.

pub mod account;
pub mod frames;
pub mod heap;
pub mod rcu;
pub mod stacks;
pub mod tlb;

use crate::arch::layout::direct;
use crate::options;
use crate::start_info::{Region, StartInfo};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::PAGE_SIZE;

/// Bytes of memory that `boot.s` maps at the start.
const MAPPED: u64 = 4 << 30;
/// Size of a page of the direct map, in bytes.
const LARGE: u64 = 2 << 20;
/// Bytes in a GiB.
const GIB: u64 = 1 << 30;
/// Memory below this address holds the firmware's and the boot protocol's tables, and the code at which CPUs
/// start.
const LOW: u64 = 1 << 20;

unsafe extern "C" {
    static kernel_end: u8;
    static mut boot_root: [u64; 512];
    static mut boot_pdpt_low: [u64; 512];
}

/// Bytes of memory that the machine has. Written once.
static TOTAL: AtomicU64 = AtomicU64::new(0);
/// Bytes of memory that are free when the kernel starts. Written once.
static FREE_AT_START: AtomicU64 = AtomicU64::new(0);

/// Returns the physical address of the kernel's root table, whose upper half every space copies.
pub fn kernel_root() -> u64 {
    &raw const boot_root as u64
}

/// Returns the number of bytes of memory that the machine has.
pub fn total_bytes() -> u64 {
    TOTAL.load(Relaxed)
}

/// Returns the number of bytes of memory that were free when the kernel started: the memory of programs.
pub fn bytes_for_programs() -> u64 {
    FREE_AT_START.load(Relaxed)
}

/// Adds all memory to the free frames, except the kernel's image, the module and low memory.
pub fn init(info: &StartInfo, module: Option<Region>) {
    let end = info.memory().map(|region| region.end).max().expect("the machine has memory");
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
    // SAFETY: the memory is mapped and unused; it is excluded from the free memory below.
    unsafe { frames::init(records, end / PAGE_SIZE, options::nodes()) };
    for part in usable(low) {
        let part = if part.start == records.start { Region { start: records.end, ..part } } else { part };
        // SAFETY: the memory is mapped and unused.
        unsafe { frames::add(part) };
    }
    for gib in MAPPED / GIB..end.div_ceil(GIB) {
        map_gib(gib);
    }
    for part in usable(Region { start: MAPPED, end: u64::MAX }) {
        // SAFETY: the memory is unused and now mapped.
        unsafe { frames::add(part) };
    }
    FREE_AT_START.store(frames::free_count() * PAGE_SIZE, Relaxed);
}

/// Returns the parts of a region inside `limits` and outside the `taken` regions, in whole pages.
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

/// Maps the GiB with this number in the direct map.
fn map_gib(gib: u64) {
    let table = frames::alloc(0).expect("memory for the direct map") * PAGE_SIZE;
    for entry in 0..512 {
        // SAFETY: the table is a frame that was just allocated. The flags mean present, writable, large,
        // global.
        unsafe {
            direct::<u64>(table).add(entry).write((gib * GIB + entry as u64 * LARGE) | 0x183 | 1 << 63)
        };
    }
    // SAFETY: the other CPUs have not started, and the entry was empty.
    unsafe {
        direct::<[u64; 512]>(&raw mut boot_pdpt_low as u64).cast::<u64>().add(gib as usize).write(table | 3)
    };
}

/// Removes the identity map of low memory.
pub fn forget_low_memory() {
    // SAFETY: no CPU runs in the identity map any more. The caller flushes the TLBs.
    unsafe { direct::<u64>(kernel_root()).write(0) };
}
