//! Calls on the contents of files: positions, sizes, holes, copies within the kernel, and calls that write
//! data to storage. The kernel has no storage, so the calls of the last kind have no effect.
//!
//! These calls use two locks. A call that moves the position of a file holds the lock of the position
//! ([`Open::hold_position`]). A call that changes contents or size holds the lock of the contents
//! ([`Open::hold_contents`]). The lock of the position is taken first. Exception: [`copy`] takes and releases
//! the locks in each of its steps, and corrects the position of its source without a lock.
//! `calls/descriptors.rs` has read and write. The programs `names.c` and `appends.c` test the calls.

use super::descriptors::put;
use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::calls::descriptors::{MAX_TRANSFER, file, seekable};
use crate::calls::files::{HERE, find};
use crate::errno;
use crate::files::{
    CHARACTER, FIFO, REGULAR,
    access::Writing,
    buffer::UserBuffer,
    node::node_of,
    open::Open,
    tree::{Kind, Node},
};
use crate::platform::{Machine, user::UserPtr};
use crate::process::renew;
use crate::sched::checkpoint;
use alloc::sync::Arc;
use core::ops::Range;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file::{FileAdvice, Mapping};
use freehold::{PAGE_SIZE, PageIndex, PageRange};
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_lseek, lseek),
    (__NR_truncate, truncate),
    (__NR_ftruncate, ftruncate),
    (__NR_fallocate, fallocate),
    (__NR_sendfile, sendfile),
    (__NR_copy_file_range, copy_file_range),
    (__NR_fsync, sync_one),
    (__NR_fdatasync, sync_one),
    (__NR_syncfs, sync_one),
    (__NR_sync_file_range, sync_one),
    (__NR_sync, crate::calls::answer::nothing),
    (__NR_fadvise64, fadvise),
    (__NR_readahead, readahead),
    (CACHESTAT, cachestat),
];

fn lseek(frame: &mut Frame) -> Answer {
    let [descriptor, offset, whence, ..] = frame.args();
    let open = file(descriptor)?;
    seekable(&open)?;
    // A character device has only position 0.
    if open.file.stat().mode & TYPE == CHARACTER && whence as u32 <= SEEK_END {
        return Ok(0);
    }
    let _moving = open.hold_position()?;
    let base = match whence as u32 {
        SEEK_SET => 0,
        SEEK_CUR => open.position(),
        SEEK_END => open.file.stat().size,
        SEEK_DATA | SEEK_HOLE => {
            let to = seek_data(&open, offset, whence as u32 == SEEK_DATA)?;
            open.set_position(to);
            return Ok(to);
        }
        _ => return Err(Errno::EINVAL),
    };
    let to = base.checked_add_signed(offset as i64).filter(|to| *to <= i64::MAX as u64);
    let to = to.ok_or(Errno::EINVAL)?;
    open.set_position(to);
    Ok(to)
}

/// The bits of `st_mode` that hold the file's type.
const TYPE: u32 = 0o170_000;
/// ENXIO: the offset is beyond the end of the file.
const BEYOND: Errno = Errno(6);

/// Returns the offset of the next data or of the next hole, at or after `offset`. A page that is neither in
/// memory nor swapped out is a hole.
fn seek_data(open: &Open, offset: u64, data: bool) -> Answer {
    let size = open.file.stat().size;
    if offset >= size {
        return Err(BEYOND);
    }
    let is_archived = node_of(&*open.file).is_some_and(|node| node.archived_bytes.is_some());
    let Some(mapping) = open.file.mapping().filter(|_| !is_archived) else {
        return Ok(if data { offset } else { size });
    };
    let mut found = None;
    each_run(mapping, offset / PAGE_SIZE..size.div_ceil(PAGE_SIZE), |run, is_present| {
        found = (is_present == data).then_some(run.start.get());
        found.is_none()
    })?;
    match found {
        Some(page) => Ok((page * PAGE_SIZE).max(offset)),
        None if data => Err(BEYOND),
        None => Ok(size),
    }
}

/// Calls `f` with consecutive runs of pages of a file, and true if the run is in memory or swapped out, until
/// `f` returns false. Skips the pages of a hole together.
///
/// # Errors
///
/// EINTR if the calling thread has to end.
fn each_run(
    mapping: &Mapping<Machine>,
    pages: Range<u64>,
    mut f: impl FnMut(PageRange, bool) -> bool,
) -> Result<(), Errno> {
    let (mut at, end) = (PageIndex::new(pages.start), PageIndex::new(pages.end));
    while at < end {
        checkpoint()?;
        let (run, is_present) = mapping.page_run(PageRange::new(at, end));
        if !f(run, is_present) {
            break;
        }
        at = run.end;
    }
    Ok(())
}

fn truncate(frame: &mut Frame) -> Answer {
    let [path, size, ..] = frame.args();
    let node = find(HERE, path, true)?;
    match &node.kind {
        Kind::Regular(mapping) => {
            let _writing = Writing::begin(&node)?;
            let _changing = node.changing.lock()?;
            set_size(mapping, Some(&node), size)?;
        }
        Kind::Directory(_) | Kind::Listing(_) => return Err(errno::EISDIR),
        _ => return Err(Errno::EINVAL),
    }
    node.touch();
    Ok(0)
}

fn ftruncate(frame: &mut Frame) -> Answer {
    let [descriptor, size, ..] = frame.args();
    let open = file(descriptor)?;
    let mapping = open.file.mapping().filter(|_| open.may_write()).ok_or(Errno::EINVAL)?;
    let _changing = open.hold_contents()?;
    set_size(mapping, node_of(&*open.file), size)?;
    node_of(&*open.file).inspect(|node| node.touch());
    Ok(0)
}

/// Sets the size of a file, within the process's limit. `node` is the file's node, if it has one. The caller
/// holds the lock of the contents.
fn set_size(mapping: &Counted<Mapping<Machine>>, node: Option<&Arc<Node>>, size: u64) -> Result<(), Errno> {
    if size > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    if size > mapping.size() {
        renew::file_room(size - 1)?;
    }
    node.map_or(Ok(()), |node| node.admit_size(size))?;
    mapping.truncate(size).map_err(|error| error.errno())
}

/// The mode of fallocate that makes a hole.
const PUNCHES: u32 = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

fn fallocate(frame: &mut Frame) -> Answer {
    let [descriptor, mode, offset, len, ..] = frame.args();
    let (open, mode) = (file(descriptor)?, mode as u32);
    if offset > i64::MAX as u64 || len == 0 || len > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    if !matches!(mode, 0 | FALLOC_FL_KEEP_SIZE | PUNCHES) {
        return Err(Errno::EOPNOTSUPP);
    }
    if !open.may_write() {
        return Err(Errno::EBADF);
    }
    let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64).ok_or(errno::EFBIG)?;
    let mapping = match open.file.mapping() {
        Some(mapping) => mapping,
        None if open.file.can_seek() => return Err(errno::ENODEV),
        None => return Err(errno::ESPIPE),
    };
    let _changing = open.hold_contents()?;
    if mode == PUNCHES {
        mapping.punch(offset..end).map_err(|error| error.errno())?;
    } else {
        if end > mapping.size() {
            renew::file_room(end - 1)?;
            node_of(&*open.file).map_or(Ok(()), |node| node.admit_size(end))?;
        }
        allocate(mapping, offset, end, mode == FALLOC_FL_KEEP_SIZE)?;
    }
    node_of(&*open.file).inspect(|node| node.touch());
    Ok(0)
}

/// Allocates the pages of a range. With `keeps`, the file keeps its size, and gets pages beyond its end that it
/// shows only after it has grown. If memory runs out, the file loses its pages beyond its end.
fn allocate(mapping: &Counted<Mapping<Machine>>, offset: u64, end: u64, keeps: bool) -> Result<(), Errno> {
    if mapping.huge_page_size().is_some() {
        return mapping.allocate(offset..end).map_err(|error| error.errno());
    }
    let before = mapping.size();
    if (end.saturating_sub(offset)) / PAGE_SIZE > crate::memory::frames::free_count() {
        return Err(Errno::ENOSPC);
    }
    if end > before && !keeps {
        mapping.truncate(end).map_err(|error| error.errno())?;
    }
    for page in offset / PAGE_SIZE..end.div_ceil(PAGE_SIZE) {
        let filled =
            checkpoint().and_then(|()| mapping.reserve(PageIndex::new(page)).map_err(|error| error.errno()));
        if let Err(error) = filled {
            if end > before {
                let _ = mapping.truncate(before);
            }
            return Err(if error == Errno::ENOMEM { Errno::ENOSPC } else { error });
        }
    }
    Ok(())
}

/// Maximum number of bytes that one step of a copy within the kernel moves.
const PART: usize = 4096;

/// Copies up to `len` bytes from one file to another, at the given offsets or else at the files' positions.
/// Returns the number of copied bytes.
///
/// # Errors
///
/// Errors of the first read or write; EINTR if the calling thread has to end.
pub fn copy(from: &Open, at: Option<u64>, to: &Open, to_at: Option<u64>, len: u64) -> Answer {
    let (mut part, mut done) = ([0; PART], 0);
    while done < len {
        checkpoint()?;
        let room = PART.min((len - done) as usize);
        let place = |at: Option<u64>| at.map(|at| at + done);
        let begin = from.position();
        let read = match from.read(place(at), &mut UserBuffer::to_kernel(&mut part[..room])) {
            Ok(0) => break,
            Err(_) if done > 0 => break,
            read => read?,
        };
        let written = put(to, place(to_at), &mut UserBuffer::from_kernel(&part[..read]));
        let bytes = *written.as_ref().unwrap_or(&0);
        if at.is_none() && from.file.can_seek() {
            from.set_position(begin + bytes);
        }
        match written {
            Err(error) if done == 0 => return Err(error),
            _ => done += bytes,
        }
        if bytes < read as u64 {
            break;
        }
    }
    Ok(done)
}

fn sendfile(frame: &mut Frame) -> Answer {
    let [out, input, at, len, ..] = frame.args();
    let (out, input) = (file(out)?, file(input)?);
    if !input.file.can_seek() {
        return Err(Errno::EINVAL);
    }
    let place = UserPtr::<u64>::optional(at);
    let offset = place.map(UserPtr::read).transpose()?;
    let done = copy(&input, offset, &out, None, len.min(MAX_TRANSFER))?;
    if let (Some(place), Some(offset)) = (place, offset) {
        place.write(&(offset + done))?;
    }
    Ok(done)
}

fn copy_file_range(frame: &mut Frame) -> Answer {
    let [from, from_at, to, to_at, len, flags] = frame.args();
    let (from, to) = (file(from)?, file(to)?);
    if flags != 0 || from.file.mapping().is_none() || to.file.mapping().is_none() {
        return Err(Errno::EINVAL);
    }
    let places = [UserPtr::<u64>::optional(from_at), UserPtr::<u64>::optional(to_at)];
    let at = [places[0].map(UserPtr::read).transpose()?, places[1].map(UserPtr::read).transpose()?];
    if at.iter().flatten().any(|at| *at > i64::MAX as u64) {
        return Err(Errno::EINVAL);
    }
    let done = copy(&from, at[0], &to, at[1], len.min(MAX_TRANSFER))?;
    for (place, at) in places.iter().zip(at) {
        if let (Some(place), Some(at)) = (place, at) {
            place.write(&(at + done))?;
        }
    }
    Ok(done)
}

/// Succeeds at once, because no file has storage behind it.
fn sync_one(frame: &mut Frame) -> Answer {
    let [descriptor, ..] = frame.args();
    file(descriptor).map(|_| 0)
}

/// The number of cachestat.
const CACHESTAT: u32 = 451;

/// Performs cachestat: counts the pages of a range of a file that are in memory, and those that are swapped
/// out. No page ever waits for write-back, so the counts of such pages are 0.
fn cachestat(frame: &mut Frame) -> Answer {
    let [descriptor, range, out, flags, ..] = frame.args();
    let open = file(descriptor)?;
    let [offset, len] = UserPtr::<[u64; 2]>::new(range).read()?;
    if flags as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let [count, evicted] = match open.file.mapping() {
        Some(mapping) if mapping.huge_page_size().is_some() => return Err(Errno::EOPNOTSUPP),
        Some(mapping) => {
            let end = if len == 0 { u64::MAX } else { offset.saturating_add(len) };
            let pages = offset / PAGE_SIZE..end.min(mapping.size()).div_ceil(PAGE_SIZE);
            let [mut count, mut evicted] = [0; 2];
            each_run(mapping, pages, |run, is_present| {
                if is_present {
                    let swapped = mapping.swapped_pages(run).min(run.len().get());
                    count += run.len().get() - swapped;
                    evicted += swapped;
                }
                true
            })?;
            [count, evicted]
        }
        None => [0; 2],
    };
    UserPtr::<[u64; 5]>::new(out).write(&[count, 0, 0, evicted, 0]).map(|()| 0)
}

fn fadvise(frame: &mut Frame) -> Answer {
    let [descriptor, offset, len, advice, ..] = frame.args();
    let open = file(descriptor)?;
    if open.file.stat().mode & TYPE == FIFO {
        return Err(errno::ESPIPE);
    }
    let advice = FileAdvice::from_raw(advice as u32).filter(|_| len as i64 >= 0).ok_or(Errno::EINVAL)?;
    // Without memory for the engine's file, the hint has no effect.
    if let Ok(file) = open.mapped() {
        file.advise(advice, bytes_of(offset, if len == 0 { u64::MAX } else { len }));
    }
    Ok(0)
}

fn readahead(frame: &mut Frame) -> Answer {
    let [descriptor, offset, len, ..] = frame.args();
    let open = file(descriptor)?;
    if !open.may_read() {
        return Err(Errno::EBADF);
    }
    let is_secret = open.file.mapping().is_some_and(|mapping| mapping.is_secret());
    if open.file.stat().mode & TYPE != REGULAR || is_secret || (len as i64) < 0 {
        return Err(Errno::EINVAL);
    }
    if let Ok(file) = open.mapped() {
        file.readahead(bytes_of(offset, len));
    }
    Ok(0)
}

/// Returns the bytes that an advice is about. As on Linux, a negative offset is allowed; it lies beyond the
/// end of any file.
fn bytes_of(offset: u64, len: u64) -> Range<u64> {
    offset..offset.saturating_add(len)
}
