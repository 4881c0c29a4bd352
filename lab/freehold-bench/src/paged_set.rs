//! The crates `memory_set` and `page_table_multiarch` behind one mutex, like the memory management of a small
//! kernel.
//!
//! The set maps lazily, like a small kernel: mapping writes no entry, and a fault looks up its area and maps
//! one frame. Unmapping walks the pages of its range and removes the present pages. Frames are phantom, like
//! those of the engine in these benches: numbers from a list. There are no flushes, because there is no
//! processor.
//!
//! [`PagedSet`] is a [`Subject`] (`lib.rs`), and has [`fault`](PagedSet::fault) for the faults in
//! `benches/engine.rs`.
#![expect(unsafe_code, reason = "allocates the memory of page tables")]

use crate::{BASE, LENGTH, PAGE, STACK, STRIDE, Subject};
use memory_addr::{AddrRange, PhysAddr, VirtAddr};
use memory_set::{MappingBackend, MemoryArea, MemorySet};
use page_table_entry::x86_64::X64PTE;
use page_table_multiarch::{MappingFlags, PageSize, PageTable64, PagingHandler, PagingMetaData};
use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// x86-64 page tables with four levels.
struct Tables;

impl PagingMetaData for Tables {
    const LEVELS: usize = 4;
    const PA_MAX_BITS: usize = 52;
    const VA_MAX_BITS: usize = 48;
    type VirtAddr = VirtAddr;
    fn flush_tlb(_: Option<VirtAddr>) {}
}

/// Memory of the host for tables. A physical address equals the host's address.
struct HostMemory;

/// Returns the layout of `frames` consecutive frames.
fn layout(frames: usize, align: usize) -> Layout {
    Layout::from_size_align(frames * PAGE as usize, align).expect("a few frames")
}

impl PagingHandler for HostMemory {
    fn alloc_frames(frames: usize, align: usize) -> Option<PhysAddr> {
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout(frames, align)) };
        (!memory.is_null()).then(|| PhysAddr::from_usize(memory.expose_provenance()))
    }
    fn dealloc_frames(first: PhysAddr, frames: usize) {
        let memory = core::ptr::with_exposed_provenance_mut(first.as_usize());
        // SAFETY: the memory is from `alloc_frames`. The tables allocate one frame at a time, aligned to its
        // size.
        unsafe { dealloc(memory, layout(frames, PAGE as usize)) };
    }
    fn phys_to_virt(frame: PhysAddr) -> VirtAddr {
        VirtAddr::from_usize(frame.as_usize())
    }
}

/// A page table, and free frames to map.
struct Pages {
    table: PageTable64<Tables, X64PTE, HostMemory>,
    /// Frames that were mapped and are free again.
    free: Vec<PhysAddr>,
    /// The address of the newest frame. The next new frame follows it.
    next: usize,
}

impl Pages {
    /// Returns a free frame.
    fn take(&mut self) -> PhysAddr {
        self.free.pop().unwrap_or_else(|| {
            self.next += PAGE as usize;
            PhysAddr::from_usize(self.next)
        })
    }
}

/// A backend that maps on faults.
#[derive(Clone)]
struct Lazy;

/// Returns the addresses of the pages in a range.
fn pages(start: VirtAddr, bytes: usize) -> impl Iterator<Item = VirtAddr> {
    (start.as_usize()..start.as_usize() + bytes).step_by(PAGE as usize).map(VirtAddr::from_usize)
}

impl MappingBackend for Lazy {
    type Addr = VirtAddr;
    type Flags = MappingFlags;
    type PageTable = Pages;
    fn map(&self, _: VirtAddr, _: usize, _: MappingFlags, _: &mut Pages) -> bool {
        true
    }
    fn unmap(&self, start: VirtAddr, bytes: usize, to: &mut Pages) -> bool {
        for page in pages(start, bytes) {
            if let Ok((frame, ..)) = to.table.cursor().unmap(page) {
                to.free.push(frame);
            }
        }
        true
    }
    fn protect(&self, start: VirtAddr, bytes: usize, flags: MappingFlags, to: &mut Pages) -> bool {
        for page in pages(start, bytes) {
            // An error means that the page is not mapped yet.
            let _ = to.table.cursor().protect(page, flags);
        }
        true
    }
}

/// `MemorySet` over a page table, behind parking_lot's `Mutex`. Splits and merges work as for
/// [`LockedSet`](crate::LockedSet).
pub struct PagedSet(Mutex<(MemorySet<Lazy>, Pages)>);

/// The protection of every area.
const RW: MappingFlags = MappingFlags::READ.union(MappingFlags::WRITE).union(MappingFlags::USER);

/// Returns a record of an area, for the set.
fn area(at: u64, bytes: u64) -> MemoryArea<Lazy> {
    MemoryArea::new(VirtAddr::from_usize(at as usize), bytes as usize, RW, Lazy)
}

impl PagedSet {
    /// Maps `bytes` at the lowest free place and returns the address.
    pub fn map(&self, bytes: u64) -> u64 {
        let hint = VirtAddr::from_usize(BASE as usize);
        let limit = AddrRange::new(hint, VirtAddr::from_usize(0x7fff_f000_0000));
        let (set, pages) = &mut *self.0.lock();
        let at = set.find_free_area(hint, bytes as usize, limit, PAGE as usize).expect("room");
        set.map(area(at.as_usize() as u64, bytes), pages, false).expect("free");
        at.as_usize() as u64
    }

    /// Unmaps a range.
    pub fn unmap(&self, at: u64, bytes: u64) {
        let (set, pages) = &mut *self.0.lock();
        set.unmap(VirtAddr::from_usize(at as usize), bytes as usize, pages).expect("mapped");
    }

    /// Handles the fault of the first store to the page at `at`.
    pub fn fault(&self, at: u64) {
        let at = VirtAddr::from_usize(at as usize);
        let (set, pages) = &mut *self.0.lock();
        let flags = set.find(at).expect("an area").flags();
        let frame = pages.take();
        pages.table.cursor().map(at, frame, PageSize::Size4K, flags).expect("the page is not mapped");
    }
}

impl Subject for PagedSet {
    const NAME: &'static str = "memory_set + page_table_multiarch in Mutex";

    fn with_areas(areas: u64) -> Self {
        let mut pages =
            Pages { table: PageTable64::try_new().expect("memory"), free: Vec::new(), next: 1 << 30 };
        let mut set = MemorySet::new();
        for n in 0..areas {
            set.map(area(BASE + n * STRIDE, LENGTH), &mut pages, false).expect("free");
        }
        set.map(area(STACK, LENGTH), &mut pages, false).expect("free");
        PagedSet(Mutex::new((set, pages)))
    }

    fn lookup(&self, address: u64) -> Option<u64> {
        let locked = self.0.lock();
        locked.0.find(VirtAddr::from_usize(address as usize)).map(|area| area.start().as_usize() as u64)
    }

    fn map_unmap(&self, _: u64) {
        let at = self.map(PAGE);
        self.unmap(at, PAGE);
    }

    fn split_merge(&self, address: u64) {
        let page = VirtAddr::from_usize((address + 2 * PAGE) as usize);
        let (set, pages) = &mut *self.0.lock();
        let read = MappingFlags::READ | MappingFlags::USER;
        set.protect(page, PAGE as usize, |_| Some(read), pages).expect("mapped");
        let start = VirtAddr::from_usize(address as usize);
        set.unmap(start, LENGTH as usize, pages).expect("mapped");
        set.map(area(address, LENGTH), pages, false).expect("free");
    }
}
