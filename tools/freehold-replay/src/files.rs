//! Pages of files: what is taken to be in the page cache, and what recorded faults say of what is mapped.
//!
//! A read fault on a file maps, with its page, those around it that are in the page cache. No recording tells
//! what was there: taken is that everything was, up to the file's end, but of shared memory, of which only
//! that is there what somebody touched. So the engine has what Linux had or more. What Linux had at least is
//! known, too, the page of each recorded fault; and what at most: what is around them.

use super::reached::{AROUND, Around};
use super::world::World;
use freehold::PageIndex;
use freehold::fault::Access;
use freehold_machine::Process;

const PAGE: u64 = 4096;
/// Bytes that a page table maps.
const TABLE: u64 = 512 * PAGE;

/// Brings what is around `at` into the page cache, if that is a file. Before the fault, so that its time is
/// the engine's.
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
            // What cannot be filled is absent, which the comparison shows.
            if !mapping.has_page(PageIndex::new(index)) {
                let _ = mapping.fill(PageIndex::new(index));
            }
        }
    }
    Some(Around { window, maps, blocks })
}
