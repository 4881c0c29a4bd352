//! Files by path.

use super::{Answer, Calls, errno};
use crate::arch::cpu::current;
use crate::arch::trap::Frame;
use crate::arch::user::{self, UserPtr};
use crate::files::open::Open;
use crate::files::tree::{self, Kind, Node, NodeFile};
use crate::files::{File, Stat};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_open, open),
    (__NR_openat, openat),
    (__NR_stat, stat),
    (__NR_lstat, lstat),
    (__NR_fstat, fstat),
    (__NR_newfstatat, fstatat),
    (__NR_access, access),
    (__NR_faccessat, faccessat),
    (__NR_readlink, readlink),
    (__NR_readlinkat, readlinkat),
    (__NR_getcwd, getcwd),
    (__NR_chdir, chdir),
    (__NR_getdents64, getdents64),
    (__NR_umask, umask),
];

/// AT_FDCWD, as the low half of a register has it.
const HERE: u64 = AT_FDCWD as u32 as u64;

/// A path from a program.
///
/// # Errors
///
/// EFAULT, ENAMETOOLONG.
pub fn path(at: u64) -> Result<Vec<u8>, Errno> {
    user::read_string(at, PATH_MAX as usize)?.ok_or(errno::ENAMETOOLONG)
}

/// The directory that a path begins at which does not begin with a slash.
fn directory(descriptor: u64) -> Result<Arc<Node>, Errno> {
    let process = current().process();
    if descriptor & 0xffff_ffff == HERE {
        return Ok(process.directory.lock().clone());
    }
    process.files.get(descriptor & 0xffff_ffff)?.file.node().cloned().ok_or(errno::ENOTDIR)
}

fn find(descriptor: u64, at: u64, follow: bool) -> Result<Arc<Node>, Errno> {
    let path = path(at)?;
    let from = if path.first() == Some(&b'/') { tree::root() } else { directory(descriptor)? };
    tree::lookup(&from, &path, follow)
}

fn open(frame: &mut Frame) -> Answer {
    let [path, flags, mode, ..] = frame.args();
    open_at(HERE, path, flags as u32, mode as u32)
}

fn openat(frame: &mut Frame) -> Answer {
    let [directory, path, flags, mode, ..] = frame.args();
    open_at(directory, path, flags as u32, mode as u32)
}

fn open_at(descriptor: u64, at: u64, flags: u32, mode: u32) -> Answer {
    let path = path(at)?;
    let from = if path.first() == Some(&b'/') { tree::root() } else { directory(descriptor)? };
    let node = match tree::lookup(&from, &path, flags & O_NOFOLLOW == 0) {
        Ok(_) if flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL => return Err(Errno::EEXIST),
        Err(Errno::ENOENT) if flags & O_CREAT != 0 => create(&from, &path, mode)?,
        found => found?,
    };
    let writes = flags & O_ACCMODE != O_RDONLY;
    let file: Arc<dyn File> = match &node.kind {
        Kind::Device(device) => device.clone(),
        Kind::Link(_) => return Err(errno::ELOOP),
        Kind::Directory(_) if writes => return Err(errno::EISDIR),
        Kind::Regular(_) if flags & O_DIRECTORY != 0 => return Err(errno::ENOTDIR),
        Kind::Regular(mapping) => {
            if flags & O_TRUNC != 0 && writes {
                mapping.truncate(0).map_err(|error| error.errno())?;
            }
            Arc::new(NodeFile(node.clone()))
        }
        Kind::Directory(_) => Arc::new(NodeFile(node.clone())),
    };
    let open = Open::new(file, flags & (O_ACCMODE | O_APPEND | O_NONBLOCK), &path);
    current().process().files.add(open, 0, flags & O_CLOEXEC != 0)
}

fn create(from: &Arc<Node>, path: &[u8], mode: u32) -> Result<Arc<Node>, Errno> {
    let (directory, name) = tree::lookup_parent(from, path, true)?;
    let node = Node::empty(mode & !current().process().umask.load(Relaxed))?;
    directory.insert(&name.ok_or(errno::EISDIR)?, node.clone())?;
    Ok(node)
}

/// Writes `struct stat`.
fn put_stat(of: Stat, at: u64) -> Answer {
    // As `struct stat` lies in memory: words of eight bytes.
    let mode = u64::from(of.mode);
    let blocks = of.size.div_ceil(512);
    let mut words = [0u64; 18];
    words[..9].copy_from_slice(&[1, of.inode, of.links, mode, 0, of.device, of.size, 4096, blocks]);
    UserPtr::<[u64; 18]>::new(at).write(&words)?;
    Ok(0)
}

fn stat(frame: &mut Frame) -> Answer {
    let [path, out, ..] = frame.args();
    put_stat(find(HERE, path, true)?.stat(), out)
}

fn lstat(frame: &mut Frame) -> Answer {
    let [path, out, ..] = frame.args();
    put_stat(find(HERE, path, false)?.stat(), out)
}

fn fstat(frame: &mut Frame) -> Answer {
    let [descriptor, out, ..] = frame.args();
    put_stat(current().process().files.get(descriptor)?.file.stat(), out)
}

fn fstatat(frame: &mut Frame) -> Answer {
    let [descriptor, at, out, flags, ..] = frame.args();
    let flags = flags as u32;
    if flags & AT_EMPTY_PATH != 0 && (at == 0 || path(at)?.is_empty()) {
        return match descriptor & 0xffff_ffff {
            HERE => put_stat(directory(descriptor)?.stat(), out),
            descriptor => put_stat(current().process().files.get(descriptor)?.file.stat(), out),
        };
    }
    put_stat(find(descriptor, at, flags & AT_SYMLINK_NOFOLLOW == 0)?.stat(), out)
}

fn access(frame: &mut Frame) -> Answer {
    let [path, ..] = frame.args();
    find(HERE, path, true).map(|_| 0)
}

fn faccessat(frame: &mut Frame) -> Answer {
    let [descriptor, path, ..] = frame.args();
    find(descriptor, path, true).map(|_| 0)
}

fn readlink(frame: &mut Frame) -> Answer {
    let [path, out, room, ..] = frame.args();
    read_link(HERE, path, out, room)
}

fn readlinkat(frame: &mut Frame) -> Answer {
    let [descriptor, path, out, room, ..] = frame.args();
    read_link(descriptor, path, out, room)
}

fn read_link(descriptor: u64, at: u64, out: u64, room: u64) -> Answer {
    let name = path(at)?;
    let put = |target: &[u8]| {
        let bytes = target.len().min(room as usize);
        user::copy_out(out, &target[..bytes]).map(|()| bytes as u64)
    };
    // The one link of /proc that libraries ask for when they start.
    if name == b"/proc/self/exe" {
        return put(&current().process().name.lock().clone());
    }
    match &find(descriptor, at, false)?.kind {
        Kind::Link(target) => put(target),
        _ => Err(Errno::EINVAL),
    }
}

fn getcwd(frame: &mut Frame) -> Answer {
    let [out, room, ..] = frame.args();
    let mut here = current().process().directory.lock().clone();
    let mut names = Vec::new();
    loop {
        let up = here.parent.lock().upgrade();
        let Some(parent) = up else { break };
        let Kind::Directory(entries) = &parent.kind else { break };
        let name =
            entries.lock().iter().find(|(_, node)| Arc::ptr_eq(node, &here)).map(|(name, _)| name.clone());
        names.push(name.ok_or(Errno::ENOENT)?);
        here = parent;
    }
    let mut text = Vec::new();
    names.iter().rev().for_each(|name| {
        text.push(b'/');
        text.extend_from_slice(name);
    });
    if text.is_empty() {
        text.push(b'/');
    }
    text.push(0);
    if text.len() as u64 > room {
        return Err(errno::ERANGE);
    }
    user::copy_out(out, &text)?;
    Ok(text.len() as u64)
}

fn chdir(frame: &mut Frame) -> Answer {
    let [path, ..] = frame.args();
    let node = find(HERE, path, true)?;
    if !matches!(node.kind, Kind::Directory(_)) {
        return Err(errno::ENOTDIR);
    }
    *current().process().directory.lock() = node;
    Ok(0)
}

fn getdents64(frame: &mut Frame) -> Answer {
    let [descriptor, out, room, ..] = frame.args();
    let open = current().process().files.get(descriptor)?;
    let (mut records, mut position) = (Vec::new(), open.position());
    open.file.entries(position, &mut |entry| {
        let bytes = (19 + entry.name.len() + 1).next_multiple_of(8);
        if records.len() + bytes > room as usize {
            return false;
        }
        position += 1;
        records.extend_from_slice(&entry.inode.to_ne_bytes());
        records.extend_from_slice(&position.to_ne_bytes());
        records.extend_from_slice(&(bytes as u16).to_ne_bytes());
        records.push(entry.kind);
        records.extend_from_slice(&entry.name);
        records.resize(records.len().next_multiple_of(8).max(records.len() + 1).next_multiple_of(8), 0);
        true
    })?;
    user::copy_out(out, &records)?;
    open.set_position(position);
    Ok(records.len() as u64)
}

fn umask(frame: &mut Frame) -> Answer {
    let [mask, ..] = frame.args();
    Ok(current().process().umask.swap(mask as u32 & 0o777, Relaxed).into())
}
