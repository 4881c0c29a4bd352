//! PROCMAP_QUERY, the request of /proc/PID/maps for one VMA. Profilers find the mapping of an address with
//! it. The engine finds the VMA (`freehold::report`); this file adds the name, the inode and the build ID of
//! the mapped file.
//!
//! A build ID is a note in the file that names a build of a program or library. As on Linux, only the first
//! page of the file is searched. The program `usage.c` of the tests checks the request.
#![expect(unsafe_code, reason = "declares that the structure of the request has no padding")]

use super::maps::LastFile;
use crate::errno;
use crate::platform::{Machine, Space, user};
use core::mem::offset_of;
use elf::{ElfBytes, abi::PT_NOTE, endian::LittleEndian, note::Note};
use freehold::PAGE_SIZE;
use freehold::error::Errno;
use freehold::report::QueryFlags;
use freehold::report::maps::{MapLine, MapName};
use freehold::vma::flags::VmFlags;
use linux_raw_sys::general::procmap_query;

/// Number of the request in calls of ioctl.
pub const PROCMAP_QUERY: u64 = 0xc068_6611;
/// Maximum size of a build ID, in bytes.
const MAX_BUILD_ID: usize = 20;

// SAFETY: all fields are numbers, and there is no padding between them.
unsafe impl user::Plain for procmap_query {}

/// Performs the request. `space` is `None` if the process has ended. `at` is the address of the structure.
///
/// # Errors
///
/// E2BIG or EINVAL for a wrong structure, ESRCH if the process has ended, ENOENT if no VMA matches,
/// ENAMETOOLONG if a buffer is too small, EFAULT.
pub fn query(space: Option<Space>, at: u64) -> Result<u64, Errno> {
    let size = user::UserPtr::<u64>::new(at).read()?;
    let asked: procmap_query = user::read_sized(at, size, offset_of!(procmap_query, vma_start))?;
    let (name_room, id_room) = (asked.vma_name_size as usize, asked.build_id_size as usize);
    if (name_room != 0) != (asked.vma_name_addr != 0) || (id_room != 0) != (asked.build_id_addr != 0) {
        return Err(Errno::EINVAL);
    }
    let flags = QueryFlags::from_bits_retain(asked.query_flags);
    let line = space.ok_or(Errno::ESRCH)?.query_vma(asked.query_addr, flags);
    let line = line.map_err(|error| error.errno())?;
    let mut last = LastFile::default();
    let (device, inode, name) = last.identity(&line);
    let name_size = match name_room {
        0 => 0,
        _ if name.is_empty() => 0,
        _ => name.len() + 1,
    };
    let (id, id_size) = if id_room == 0 { ([0; MAX_BUILD_ID], 0) } else { build_id(&line) };
    if name_size > name_room || id_size > id_room {
        return Err(errno::ENAMETOOLONG);
    }
    let found = procmap_query {
        vma_start: line.start,
        vma_end: line.end,
        vma_flags: rights(line.flags).bits(),
        vma_page_size: page_size(&line),
        vma_offset: line.offset,
        inode,
        dev_major: 0,
        dev_minor: device,
        vma_name_size: name_size as u32,
        build_id_size: id_size as u32,
        ..asked
    };
    if name_size > 0 {
        user::copy_out(asked.vma_name_addr, name.as_bytes())?;
        user::copy_out(asked.vma_name_addr.wrapping_add(name.len() as u64), &[0])?;
    }
    user::copy_out(asked.build_id_addr, &id[..id_size])?;
    user::write_sized(at, size, &found).map(|()| 0)
}

/// Returns the rights of a VMA, with the numbers of the request.
fn rights(flags: VmFlags) -> QueryFlags {
    let all = [
        (VmFlags::READ, QueryFlags::READABLE),
        (VmFlags::WRITE, QueryFlags::WRITABLE),
        (VmFlags::EXEC, QueryFlags::EXECUTABLE),
        (VmFlags::MAYSHARE, QueryFlags::SHARED),
    ];
    all.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, right)| right).collect()
}

/// Returns the size of the pages of a VMA, in bytes.
fn page_size(line: &MapLine<Machine>) -> u64 {
    match &line.name {
        MapName::Object(object) => object
            .open_file()
            .and_then(|file| file.mapping().huge_page_size())
            .map_or(PAGE_SIZE, |size| size.bytes()),
        _ => PAGE_SIZE,
    }
}

/// Returns the build ID of the mapped file and its size. The size is 0 if there is no build ID.
fn build_id(line: &MapLine<Machine>) -> ([u8; MAX_BUILD_ID], usize) {
    let mut id = [0; MAX_BUILD_ID];
    let size = id_of(line, &mut id).unwrap_or(0);
    (id, size)
}

/// Performs [`build_id`]. Returns the size.
fn id_of(line: &MapLine<Machine>, id: &mut [u8; MAX_BUILD_ID]) -> Option<usize> {
    let MapName::Object(object) = &line.name else { return None };
    let mut page = alloc::vec![0; PAGE_SIZE as usize];
    let read = object.open_file()?.mapping().read_at(0, &mut page).ok()?;
    let file = ElfBytes::<LittleEndian>::minimal_parse(&page[..read]).ok()?;
    let headers = file.segments()?;
    let notes = headers.iter().filter(|header| header.p_type == PT_NOTE);
    for note in notes.filter_map(|header| file.segment_data_as_notes(&header).ok()).flatten() {
        if let Note::GnuBuildId(note) = note {
            let size = note.0.len().min(MAX_BUILD_ID);
            id[..size].copy_from_slice(&note.0[..size]);
            return Some(size);
        }
    }
    None
}
