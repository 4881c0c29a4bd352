//! Operations of the sweep that only read: reports, queries and lookups, and the locks of an address space.
//! Most of them must need no memory (`needs_nothing`). `memory.rs` describes the entries.

use super::{Op, errno, made, op};
use crate::sweep::scene::Scene;
use freehold::{
    UserRange,
    call::SyncFlags,
    error::Errno,
    report::{QueryFlags, clear_refs::ClearRefs},
};
use std::ops::ControlFlow;

fn lengths(s: &Scene) -> Result<u64, Errno> {
    let space = &s.process;
    let lines = space.maps(0).count() + space.smaps(0).count();
    Ok(lines as u64)
}

/// Accepts text of any length without using memory.
struct Sink;

impl core::fmt::Write for Sink {
    fn write_str(&mut self, _: &str) -> core::fmt::Result {
        Ok(())
    }
}

pub const OPS: &[Op] = &[
    op("AddressSpace::maps", "maps and smaps", |s| lengths(s)).needs_nothing(),
    op("AddressSpace::smaps", "smaps", |s| lengths(s)).needs_nothing(),
    op("AddressSpace::write_maps", "write_maps", |s| made(s.process.write_maps(&mut Sink))).needs_nothing(),
    op("AddressSpace::write_smaps", "write_smaps", |s| made(s.process.write_smaps(&mut Sink)))
        .needs_nothing(),
    op("AddressSpace::smaps_rollup", "smaps_rollup", |s| Ok(s.process.smaps_rollup().usage.rss))
        .needs_nothing(),
    op("AddressSpace::page_table_bytes", "page_table_bytes", |s| Ok(s.process.page_table_bytes()))
        .needs_nothing(),
    op("AddressSpace::clear_refs", "clear_refs", |s| {
        s.process.clear_refs(ClearRefs::All);
        Ok(0)
    })
    .needs_nothing(),
    op("AddressSpace::clear_soft_dirty", "clear_soft_dirty", |s| made(s.process.clear_soft_dirty()))
        .needs_nothing(),
    op("AddressSpace::pagemap", "pagemap", |s| {
        let mut runs = 0;
        s.process.pagemap(s.at(0)..s.at(8), |_| runs += 1);
        Ok(runs)
    })
    .needs_nothing(),
    op("AddressSpace::page_entries", "page_entries", |s| {
        let mut runs = 0;
        s.process.page_entries(s.at(0)..s.at(8), |_| {
            runs += 1;
            ControlFlow::Continue(())
        });
        Ok(runs)
    })
    .needs_nothing(),
    op("AddressSpace::frame_at", "frame_at", |s| Ok(u64::from(s.process.frame_at(s.at(1)).is_some())))
        .needs_nothing(),
    op("AddressSpace::find_vma", "find_vma", |s| {
        Ok(s.process.find_vma(s.at(1)).map_or(0, |vma| vma.pages().get()))
    })
    .needs_nothing(),
    op("AddressSpace::vma_info", "vma_info", |s| {
        Ok(s.process.vma_info(s.at(1)).map_or(0, |vma| vma.pages().get()))
    })
    .needs_nothing(),
    op("AddressSpace::query_vma", "query_vma", |s| {
        errno!(s.process.query_vma(s.at(1), QueryFlags::COVERING_OR_NEXT))
    })
    .needs_nothing(),
    op("AddressSpace::probe_at", "probe_at", |s| Ok(u64::from(s.process.probe_at(s.at(1) + 100).is_some())))
        .needs_nothing(),
    op("AddressSpace::mincore", "mincore", |s| {
        let mut out = vec_of(s);
        errno!(s.process.mincore(s.at(0), 8 * s.unit, &mut out))
    })
    .needs_nothing(),
    op("AddressSpace::msync", "msync", |s| errno!(s.process.msync(s.at(0), 8 * s.unit, SyncFlags::SYNC)))
        .needs_nothing(),
    op("AddressSpace::read_cmdline", "read_cmdline", |s| {
        let read = s.process.read_cmdline(0, &mut [0; 16]);
        errno!(read)
    })
    .needs_nothing(),
    op("AddressSpace::read_environ", "read_environ", |s| errno!(s.process.read_environ(0, &mut [0; 16])))
        .needs_nothing(),
    op("AddressSpace::write", "the locks", |s| {
        drop(s.process.space().write());
        drop(s.process.space().read());
        drop(s.process.write_exclusive_range(UserRange::new(s.at(0), s.at(8))));
        Ok(s.process.counts().map_count)
    })
    .needs_nothing(),
];

/// A byte for each page, in an array, because an allocation of the test itself could fail.
fn vec_of(s: &Scene) -> [u8; 8 * 512] {
    assert!(8 * s.unit / 4096 <= 8 * 512);
    [0; 8 * 512]
}
