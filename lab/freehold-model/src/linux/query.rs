//! Queries of single mappings (`PROCMAP_QUERY`), for processes with too many mappings to list.
//!
//! With the option `room`, a child has tens of thousands of small mappings outside the arena, and reading
//! smaps takes too long. [`arena`] queries one mapping after the other inside the arena. The answer lacks
//! most flags of smaps, so only protection and sharing are compared then. `smaps.rs` reads the mappings in
//! all other cases, and `mod.rs` chooses between the two. The tests of `tests/differential.rs` and
//! `tests/engine.rs` at the limit of mappings use these queries.
#![expect(unsafe_code, reason = "an ioctl")]

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::op::*;
use crate::world::World;

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`
const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17;
/// Selects the mapping that covers the address, or the next mapping.
const COVERING_OR_NEXT: u64 = 0x10;

/// Returns the lines of the arena. Only the flags for protection and `MAYSHARE` are set.
pub(super) fn arena(pid: i32, w: &World) -> Vec<MapLine> {
    let mut out = Vec::new();
    let Ok(file) = File::open(format!("/proc/{pid}/maps")) else { return out };
    let mut at = w.start;
    while at < w.end {
        let mut name = [0u8; 64];
        let mut q = Query {
            size: size_of::<Query>() as u64,
            flags: COVERING_OR_NEXT,
            addr: at,
            name_size: name.len() as u32,
            name: name.as_mut_ptr() as u64,
            ..Query::default()
        };
        // SAFETY: the query and the name live through the call, and the query holds their sizes.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY, &mut q) };
        if done < 0 || q.start >= w.end {
            break;
        }
        let shared = if q.vma_flags & 8 != 0 { vmflag::MAYSHARE } else { 0 };
        let file = match &name[..] {
            n if n.starts_with(b"/memfd:model0") => Some(MapFile::Inode(0)),
            n if n.starts_with(b"/memfd:model1") => Some(MapFile::Inode(1)),
            n if n.starts_with(b"/dev/zero") => Some(MapFile::SharedAnon),
            _ => None,
        };
        let offset = if file.is_some() { q.offset } else { 0 };
        let flags = q.vma_flags as u32 & vmflag::ACCESS | shared;
        out.push(MapLine { start: q.start, end: q.end, flags, offset, file });
        at = q.end;
    }
    out
}
