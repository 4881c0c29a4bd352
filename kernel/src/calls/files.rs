//! Calls on files that a path names: opening, links, working directories, lists of directories. The other
//! files of this folder use [`path`], [`find`] and [`start`] to read a path and find its node;
//! `files/tree.rs` walks the path, and `calls/names.rs` has the calls that change names.
//!
//! Between the lookup and the use of a node, another thread may rename or remove the node. A removed node
//! stays valid, without a name. Permissions are not checked. The programs `files.c` and `names.c` test the
//! calls.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::errno;
use crate::files::access::Writing;
use crate::files::node::{NodeFile, node_of};
use crate::files::tree::{self, Kind, Node};
use crate::files::{File, SOCKET, fifo, names, open::Open};
use crate::platform::user::{self, UserPtr};
use crate::sched::current;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_open, open),
    (__NR_creat, creat),
    (__NR_openat, openat),
    (__NR_openat2, openat2),
    (__NR_readlink, readlink),
    (__NR_readlinkat, readlinkat),
    (__NR_getcwd, getcwd),
    (__NR_chdir, chdir),
    (__NR_fchdir, fchdir),
    (__NR_getdents64, getdents64),
    (__NR_umask, umask),
];

/// AT_FDCWD as the low half of a register: a relative path begins in the working directory.
pub const HERE: u64 = AT_FDCWD as u32 as u64;

/// Reads a path from a program.
///
/// # Errors
///
/// EFAULT if the path cannot be read, ENAMETOOLONG if it is too long.
pub fn path(at: u64) -> Result<Vec<u8>, Errno> {
    user::read_string(at, PATH_MAX as usize)?.ok_or(errno::ENAMETOOLONG)
}

/// Returns the directory in which a relative path begins: the directory of `descriptor` or, for [`HERE`], the
/// working directory.
pub fn directory(descriptor: u64) -> Result<Arc<Node>, Errno> {
    if descriptor & 0xffff_ffff == HERE {
        return Ok(current().place().directory.lock().clone());
    }
    node_of(&*current().files.get_any(descriptor & 0xffff_ffff)?.file).cloned().ok_or(errno::ENOTDIR)
}

/// Returns the node that the path at `at` names.
///
/// # Errors
///
/// Fails like [`tree::lookup`], and with EFAULT or EBADF.
pub fn find(descriptor: u64, at: u64, follow: bool) -> Result<Arc<Node>, Errno> {
    let path = path(at)?;
    tree::lookup(&start(descriptor, &path)?, &path, follow)
}

/// Returns the directory in which a path begins.
pub fn start(descriptor: u64, path: &[u8]) -> Result<Arc<Node>, Errno> {
    if path.first() == Some(&b'/') { Ok(tree::root()) } else { directory(descriptor) }
}

fn open(frame: &mut Frame) -> Answer {
    let [path, flags, mode, ..] = frame.args();
    open_at(HERE, path, flags as u32, mode as u32)
}

fn openat(frame: &mut Frame) -> Answer {
    let [directory, path, flags, mode, ..] = frame.args();
    open_at(directory, path, flags as u32, mode as u32)
}

fn creat(frame: &mut Frame) -> Answer {
    let [path, mode, ..] = frame.args();
    open_at(HERE, path, O_CREAT | O_WRONLY | O_TRUNC, mode as u32)
}

/// Opens a file with the flags and the mode of a `struct open_how`. Restrictions of the lookup (`resolve`)
/// are not supported and fail with EINVAL.
fn openat2(frame: &mut Frame) -> Answer {
    let [directory, path, how, bytes, ..] = frame.args();
    if bytes < 24 {
        return Err(Errno::EINVAL);
    }
    let [flags, mode, resolve] = UserPtr::<[u64; 3]>::new(how).read()?;
    if resolve != 0 || flags >> 32 != 0 || mode & !0o7777 != 0 {
        return Err(Errno::EINVAL);
    }
    open_at(directory, path, flags as u32, mode as u32)
}

/// Flags of an open call that the open file keeps.
const KEPT: u32 = O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME | OF_PATH;
/// Flags that have an effect together with O_PATH and that the open file keeps.
const OF_PATH: u32 = O_PATH | O_DIRECTORY | O_NOFOLLOW;

/// Opens or makes the file at a path. Returns its descriptor.
fn open_at(descriptor: u64, at: u64, flags: u32, mode: u32) -> Answer {
    let path = path(at)?;
    let from = start(descriptor, &path)?;
    let flags = if flags & O_PATH != 0 { flags & (OF_PATH | O_CLOEXEC) } else { flags };
    let node = match tree::lookup(&from, &path, flags & O_NOFOLLOW == 0) {
        Ok(directory) if flags & O_TMPFILE == O_TMPFILE => unnamed(&directory, flags, mode)?,
        Ok(_) if flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL => return Err(Errno::EEXIST),
        Err(Errno::ENOENT) if flags & O_CREAT != 0 => names::create(
            &from,
            &path,
            mode & !current().place().umask.load(Relaxed),
            flags & O_NOFOLLOW == 0,
        )?,
        found => found?,
    };
    let file = open_node(&node, flags)?;
    let open = Open::new(file, flags & KEPT, &tree::path_of(&node));
    current().files.add(open, 0, flags & O_CLOEXEC != 0)
}

/// Opens a node with these flags. Returns the file.
fn open_node(node: &Arc<Node>, flags: u32) -> Result<Arc<dyn File>, Errno> {
    let writes = flags & O_ACCMODE != O_RDONLY;
    if flags & O_DIRECTORY != 0 && flags & O_TMPFILE != O_TMPFILE && !node.is_directory() {
        return Err(errno::ENOTDIR);
    }
    if flags & O_PATH != 0 {
        return Ok(Arc::new(NodeFile::new(node.clone())));
    }
    match &node.kind {
        // A socket has no name by which it can be opened.
        Kind::Device(device) if device.stat().mode & !0o7777 == SOCKET => Err(errno::ENXIO),
        Kind::Device(device) => Ok(device.clone()),
        Kind::Made(make) => make(),
        Kind::Fifo(pipe) => fifo::open(pipe, flags),
        Kind::Link(_) | Kind::Jump(_) => Err(errno::ELOOP),
        Kind::Directory(_) | Kind::Listing(_) if writes || flags & O_CREAT != 0 => Err(errno::EISDIR),
        Kind::Directory(_) | Kind::Listing(_) => Ok(Arc::new(NodeFile::new(node.clone()))),
        Kind::Regular(mapping) => {
            let is_changed = writes || flags & O_TRUNC != 0;
            let writing = if is_changed { Some(Writing::begin(node)?) } else { None };
            if flags & O_TRUNC != 0 {
                let _changing = node.changing.lock()?;
                mapping.truncate(0).map_err(|error| error.errno())?;
                node.admit_size(0)?;
                node.touch();
            }
            match writing.filter(|_| writes) {
                Some(writing) => Ok(Arc::new(NodeFile::for_writing(node.clone(), writing))),
                None => Ok(Arc::new(NodeFile::new(node.clone()))),
            }
        }
    }
}

/// Makes a file without a name, for O_TMPFILE.
fn unnamed(directory: &Arc<Node>, flags: u32, mode: u32) -> Result<Arc<Node>, Errno> {
    if flags & O_ACCMODE == O_RDONLY {
        return Err(Errno::EINVAL);
    }
    if !matches!(directory.kind, Kind::Directory(_)) {
        return Err(errno::ENOTDIR);
    }
    let node = Node::empty(mode & !current().place().umask.load(Relaxed), directory)?;
    *node.name.lock() = alloc::format!("#{}", node.inode).into_bytes();
    *node.parent.lock() = Arc::downgrade(directory);
    Ok(node)
}

fn readlink(frame: &mut Frame) -> Answer {
    let [path, out, room, ..] = frame.args();
    read_link(HERE, path, out, room)
}

fn readlinkat(frame: &mut Frame) -> Answer {
    let [descriptor, path, out, room, ..] = frame.args();
    read_link(descriptor, path, out, room)
}

/// Stores the target of a symbolic link, without a zero byte. Returns the number of bytes.
fn read_link(descriptor: u64, at: u64, out: u64, room: u64) -> Answer {
    if room as i32 <= 0 {
        return Err(Errno::EINVAL);
    }
    let put = |target: &[u8]| {
        let bytes = target.len().min(room as i32 as usize);
        user::copy_out(out, &target[..bytes]).map(|()| bytes as u64)
    };
    let name = path(at)?;
    let node = match name.is_empty() {
        true => directory_or_link(descriptor)?,
        false => tree::lookup(&start(descriptor, &name)?, &name, false)?,
    };
    match &node.kind {
        Kind::Link(target) => put(target),
        Kind::Jump(jump) => put(&jump.text()?),
        _ => Err(if name.is_empty() { Errno::ENOENT } else { Errno::EINVAL }),
    }
}

/// Returns the node of a descriptor, which may be a link that was opened with O_PATH.
fn directory_or_link(descriptor: u64) -> Result<Arc<Node>, Errno> {
    node_of(&*current().files.get_any(descriptor)?.file).cloned().ok_or(Errno::ENOENT)
}

fn getcwd(frame: &mut Frame) -> Answer {
    let [out, room, ..] = frame.args();
    let here = current().place().directory.lock().clone();
    let mut text = tree::short_path_of(&here)?;
    text.push(0);
    if text.len() as u64 > room {
        return Err(errno::ERANGE);
    }
    user::copy_out(out, &text)?;
    Ok(text.len() as u64)
}

fn fchdir(frame: &mut Frame) -> Answer {
    let [descriptor, ..] = frame.args();
    let node = node_of(&*current().files.get_any(descriptor)?.file).cloned().ok_or(errno::ENOTDIR)?;
    enter(node)
}

/// Makes `node` the process's working directory.
fn enter(node: Arc<Node>) -> Answer {
    if !node.is_directory() {
        return Err(errno::ENOTDIR);
    }
    let before = core::mem::replace(&mut *current().place().directory.lock(), node);
    drop(before);
    Ok(0)
}

fn chdir(frame: &mut Frame) -> Answer {
    let [path, ..] = frame.args();
    enter(find(HERE, path, true)?)
}

/// Maximum size of the entries that one call of getdents64 returns, in bytes.
const MAX_RECORDS: u64 = 1 << 16;

fn getdents64(frame: &mut Frame) -> Answer {
    let [descriptor, out, room, ..] = frame.args();
    let open = current().files.get(descriptor)?;
    let _moving = open.hold_position()?;
    // A longer buffer is not filled, so that the kernel needs little memory.
    let room = room.min(MAX_RECORDS) as usize;
    let (mut records, mut position) = (Vec::new(), open.position());
    open.file.entries(position, &mut |entry| {
        let bytes = (19 + entry.name.len() + 1).next_multiple_of(8);
        if records.len() + bytes > room {
            return false;
        }
        position = entry.next;
        records.extend_from_slice(&entry.inode.to_ne_bytes());
        records.extend_from_slice(&position.to_ne_bytes());
        records.extend_from_slice(&(bytes as u16).to_ne_bytes());
        records.push(entry.kind);
        records.extend_from_slice(&entry.name);
        records.resize(records.len().next_multiple_of(8).max(records.len() + 1).next_multiple_of(8), 0);
        true
    })?;
    if records.is_empty() && position == open.position() {
        // Nothing was copied. If an entry is left, the buffer is too small for it.
        let mut left = false;
        open.file.entries(position, &mut |_| {
            left = true;
            false
        })?;
        return if left { Err(Errno::EINVAL) } else { Ok(0) };
    }
    user::copy_out(out, &records)?;
    open.set_position(position);
    Ok(records.len() as u64)
}

fn umask(frame: &mut Frame) -> Answer {
    let [mask, ..] = frame.args();
    Ok(current().place().umask.swap(mask as u32 & 0o777, Relaxed).into())
}
