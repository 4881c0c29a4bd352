//! The index of a page cache (`src/file/cache/radix.rs`) frees its memory: pages that are written far apart
//! and then punched or truncated leave no memory allocated. Pages that could not be read or allocated also
//! leave no memory allocated. Every page gets a leaf of its own, so a leak of one leaf per page would exceed
//! the permitted number of bytes many times.

use super::{bytes_in_use as live, one_at_a_time, support::*};
use freehold::{PageIndex, hugetlb::HugePageSize};

/// A disk whose reads fail.
struct Broken;

impl Pager<Machine> for Broken {
    fn read_page(&self, _: &Machine, _: PageIndex, _: Pfn) -> Result<(), IoError> {
        Err(IoError)
    }
}

/// Bytes of a file that one leaf of the index covers.
const STRIDE: u64 = 64 * PAGE;
const PLACES: u64 = 10_000;

#[test]
fn removed_pages_leave_no_index_memory() {
    let _alone = one_at_a_time();
    let world = World::with(64 << 20, Config::default());
    let shared = Mapping::memfd(world.engine(), PLACES * STRIDE).unwrap();
    // The machine and this thread make their permanent allocations here, before the measurement.
    shared.write_at(0, &[1]).unwrap();
    shared.punch(0..PAGE).unwrap();
    let start = live();
    for place in 0..PLACES {
        shared.write_at(place * STRIDE, &[1]).unwrap();
        shared.punch(place * STRIDE..place * STRIDE + PAGE).unwrap();
    }
    // The remaining memory is far less than a leaf per page: only what the machine keeps in its caches.
    let kept = live() - start;
    assert!(kept < 16384, "{kept} bytes after writing and punching {PLACES} pages");
    for place in 0..PLACES / 4 {
        shared.write_at(place * STRIDE, &[1]).unwrap();
    }
    let full = live() - start;
    assert!(full > 512 * (PLACES as isize / 4), "the pages are present: {full} bytes");
    shared.truncate(0).unwrap();
    let kept = live() - start;
    assert!(kept < 16384, "{kept} bytes after truncation");
    // Pages that cannot be read or allocated leave no index memory.
    let broken = Mapping::new(world.engine(), Broken, 1 << 50, false).unwrap();
    let huge = Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, 1 << 50, false).unwrap();
    let start = live();
    for place in 0..PLACES {
        assert!(broken.fill(PageIndex::new(place * 64)).is_err(), "the page cannot be read");
        assert!(huge.fill(PageIndex::new(place * 64)).is_err(), "the pool is empty");
    }
    let kept = live() - start;
    assert!(kept < 16384, "{kept} bytes after pages that could not be read or allocated");
    drop((shared, broken, huge));
    world.end();
}
