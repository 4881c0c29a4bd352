//! Pages of files: assumptions about the page cache, and the bounds that recorded faults give for mapped
//! pages.
//!
//! A read fault on a file also maps the surrounding pages that are in the page cache. No recording shows the
//! page cache. The replay assumes that the page cache holds every page up to the end of the file. For shared
//! memory, the replay assumes only the pages that a task has touched. The engine therefore maps at least the
//! pages that Linux mapped. Two bounds are known: Linux mapped at least the page of each recorded fault, and
//! at most the pages around these pages.
//!
//! `perform.rs` calls [`read_ahead`] before each fault, and `reached.rs` keeps the bounds. `resident.rs`
//! compares snapshots with them. If the replay assumes too few pages, and `resident.rs` does not explain the
//! missing pages, the comparison reports false differences. `pages_of_files_are_compared` (`tests/small.rs`)
//! checks both bounds.

use super::reached::{AROUND, Around};
use super::world::World;
use freehold::PageIndex;
use freehold::fault::Access;
use freehold_machine::Process;

const PAGE: u64 = 4096;
/// Bytes that one page table maps.
const TABLE: u64 = 512 * PAGE;

/// Brings the pages around `at` into the page cache, if `at` is in a mapping of a file, and returns the pages
/// that the fault may map. Returns `None` for other memory, and for huge pages of a pool. Runs before the
/// fault, so that the measured time of the fault is the engine's.
pub(super) fn read_ahead(world: &World, process: &Process, at: u64, access: Access) -> Option<Around> {
    let page = at & !(PAGE - 1);
    let vma = process.find_vma(page)?;
    let file = vma.object().file()?.clone();
    if file.mapping().huge_page_size().is_some() {
        return None;
    }
    let maps = !access.write || vma.flags().contains(freehold::vma::flags::VmFlags::SHARED);
    let start = (page & !(AROUND - 1)).max(vma.start());
    let table_end = (page & !(TABLE - 1)) + TABLE;
    let mut window = start..(start + AROUND).min(vma.end()).min(table_end);
    let first = vma.pgoff_of(start).get();
    let has_blocks = file.mapping().is_shmem() && world.has_blocks();
    let blocks = match has_blocks {
        true => (table_end - TABLE).max(vma.start())..table_end.min(vma.end()),
        false => 0..0,
    };
    drop(vma);
    if access.write {
        return Some(Around { window: 0..0, maps, blocks });
    }
    let length = world.length(&file).unwrap_or(u64::MAX).max(first);
    window.end = window.end.min(start.saturating_add((length - first).saturating_mul(PAGE)));
    let mapping = file.mapping();
    if !mapping.is_shmem() {
        for index in first..first + (window.end - start) / PAGE {
            // If a page cannot be filled, it stays absent, and the comparison reports it.
            if !mapping.has_page(PageIndex::new(index)) {
                let _ = mapping.fill(PageIndex::new(index));
            }
        }
    }
    Some(Around { window, maps, blocks })
}
