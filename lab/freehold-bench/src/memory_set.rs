//! The crate `memory_set` behind a mutex, without a page table.
//!
//! [`LockedSet`] is an existing implementation for comparison. Its backend does nothing, so only the
//! bookkeeping of areas is measured; `paged_set.rs` adds a page table. The operations are those of
//! [`Subject`] (`lib.rs`). If a new version of the crate merges areas, [`split_merge`](Subject::split_merge)
//! no longer needs to map the area again; the same holds for `paged_set.rs`.

use crate::{BASE, LENGTH, PAGE, STACK, STRIDE, Subject};
use memory_addr::{AddrRange, VirtAddr};
use memory_set::{MappingBackend, MemoryArea, MemorySet};
use parking_lot::Mutex;

/// A backend that maps nothing.
#[derive(Clone)]
struct Nothing;

impl MappingBackend for Nothing {
    type Addr = VirtAddr;
    type Flags = u8;
    type PageTable = ();
    fn map(&self, _: VirtAddr, _: usize, _: u8, (): &mut ()) -> bool {
        true
    }
    fn unmap(&self, _: VirtAddr, _: usize, (): &mut ()) -> bool {
        true
    }
    fn protect(&self, _: VirtAddr, _: usize, _: u8, (): &mut ()) -> bool {
        true
    }
}

/// `MemorySet` behind parking_lot's `Mutex`. The set does not merge areas, so the parts of a split area stay
/// separate after their protection is restored. To keep the number of areas constant, the parts are unmapped
/// and mapped again as one area.
pub struct LockedSet(Mutex<MemorySet<Nothing>>);

/// Returns a record of an area, for the set.
fn area(at: u64, bytes: u64) -> MemoryArea<Nothing> {
    MemoryArea::new(VirtAddr::from_usize(at as usize), bytes as usize, 3, Nothing)
}

impl Subject for LockedSet {
    const NAME: &'static str = "memory_set in Mutex";

    fn with_areas(areas: u64) -> Self {
        let mut set = MemorySet::new();
        for n in 0..areas {
            set.map(area(BASE + n * STRIDE, LENGTH), &mut (), false).expect("free");
        }
        set.map(area(STACK, LENGTH), &mut (), false).expect("free");
        LockedSet(Mutex::new(set))
    }

    fn lookup(&self, address: u64) -> Option<u64> {
        let set = self.0.lock();
        set.find(VirtAddr::from_usize(address as usize)).map(|area| area.start().as_usize() as u64)
    }

    fn map_unmap(&self, _: u64) {
        let hint = VirtAddr::from_usize(BASE as usize);
        let limit = AddrRange::new(hint, VirtAddr::from_usize(0x7fff_f000_0000));
        let at = {
            let mut set = self.0.lock();
            let at = set.find_free_area(hint, PAGE as usize, limit, PAGE as usize).expect("room");
            set.map(area(at.as_usize() as u64, PAGE), &mut (), false).expect("free");
            at
        };
        self.0.lock().unmap(at, PAGE as usize, &mut ()).expect("mapped");
    }

    fn split_merge(&self, address: u64) {
        let page = VirtAddr::from_usize((address + 2 * PAGE) as usize);
        let mut set = self.0.lock();
        set.protect(page, PAGE as usize, |_| Some(1), &mut ()).expect("mapped");
        let start = VirtAddr::from_usize(address as usize);
        set.unmap(start, LENGTH as usize, &mut ()).expect("mapped");
        set.map(area(address, LENGTH), &mut (), false).expect("free");
    }
}
