//! Calls that make, remove and rename nodes of the tree, and mounts. They find the directory and the last
//! name of a path; `files/names.rs` makes the change and orders concurrent changes.
//!
//! [`new`] checks whether a name is free only to choose the error: another thread may add the name
//! afterwards, and then the insertion fails with EEXIST. The kernel mounts only new, empty directories. The
//! program `names.c` tests the calls.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::calls::files::{HERE, find, path, start};
use crate::errno;
use crate::files::names::{self, Existing};
use crate::files::tree::{self, Kind, Node};
use crate::files::{DIRECTORY, FIFO, REGULAR, node::node_of, pipe::Pipe};
use crate::sched::current;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use freehold::hugetlb::HugePageSize;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_mkdir, |frame| make_directory(HERE, frame.rdi, frame.rsi)),
    (__NR_mkdirat, |frame| make_directory(frame.rdi, frame.rsi, frame.rdx)),
    (__NR_mknod, |frame| make_node(HERE, frame.rdi, frame.rsi)),
    (__NR_mknodat, |frame| make_node(frame.rdi, frame.rsi, frame.rdx)),
    (__NR_rmdir, |frame| remove(HERE, frame.rdi, true)),
    (__NR_unlink, |frame| remove(HERE, frame.rdi, false)),
    (__NR_unlinkat, unlinkat),
    (__NR_rename, |frame| rename_at((HERE, frame.rdi), (HERE, frame.rsi), 0)),
    (__NR_renameat, |frame| rename_at((frame.rdi, frame.rsi), (frame.rdx, frame.r10), 0)),
    (__NR_renameat2, |frame| rename_at((frame.rdi, frame.rsi), (frame.rdx, frame.r10), frame.r8 as u32)),
    (__NR_link, |frame| link_at((HERE, frame.rdi), (HERE, frame.rsi), 0)),
    (__NR_linkat, |frame| link_at((frame.rdi, frame.rsi), (frame.rdx, frame.r10), frame.r8 as u32)),
    (__NR_symlink, |frame| symlink_at(frame.rdi, HERE, frame.rsi)),
    (__NR_symlinkat, |frame| symlink_at(frame.rdi, frame.rsi, frame.rdx)),
    (__NR_mount, mount),
    (__NR_umount2, umount),
];

/// Returns the directory and the last name of a path. The name is `None` if the path ends with `.`, `..` or
/// the root.
fn last(descriptor: u64, at: u64) -> Result<(Arc<Node>, Option<Vec<u8>>), Errno> {
    let mut path = path(at)?;
    // A slash at the end only means that the path names a directory.
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    let from = start(descriptor, &path)?;
    tree::lookup_parent(&from, &path, false)
}

/// Returns the directory and the last name of a path that must not exist yet.
fn new(descriptor: u64, at: u64) -> Result<(Arc<Node>, Vec<u8>), Errno> {
    let (directory, name) = last(descriptor, at)?;
    let name = name.ok_or(Errno::EEXIST)?;
    match directory.child(&name) {
        Ok(_) => Err(Errno::EEXIST),
        Err(_) => Ok((directory, name)),
    }
}

/// Returns the permissions of a new node: those that the call requests, without the bits of the process's
/// mask.
fn mode_of(mode: u64) -> u32 {
    mode as u32 & 0o7777 & !current().place().umask.load(Relaxed)
}

fn make_directory(descriptor: u64, at: u64, mode: u64) -> Answer {
    let (directory, name) = new(descriptor, at)?;
    let node = Node::directory_of(mode_of(mode), directory.huge);
    directory.insert(&name, node).map(|()| 0)
}

/// Makes a regular file or a named pipe. Only the kernel makes devices.
fn make_node(descriptor: u64, at: u64, mode: u64) -> Answer {
    let (directory, name) = new(descriptor, at)?;
    match mode as u32 & 0o170_000 {
        0 | REGULAR => {
            let node = Node::empty(mode_of(mode), &directory)?;
            directory.insert(&name, node).map(|()| 0)
        }
        FIFO => {
            let node = Node::new(FIFO | mode_of(mode), Kind::Fifo(Pipe::new()));
            directory.insert(&name, node).map(|()| 0)
        }
        DIRECTORY => Err(Errno::EPERM),
        _ => Err(Errno::EINVAL),
    }
}

fn unlinkat(frame: &mut Frame) -> Answer {
    let [descriptor, path, flags, ..] = frame.args();
    if flags & !u64::from(AT_REMOVEDIR) != 0 {
        return Err(Errno::EINVAL);
    }
    remove(descriptor, path, flags != 0)
}

/// Removes a name.
fn remove(descriptor: u64, at: u64, directories: bool) -> Answer {
    let (directory, name) = last(descriptor, at)?;
    let dots = if directories { Errno::EINVAL } else { errno::EISDIR };
    names::remove(&directory, &name.ok_or(dots)?, directories).map(|()| 0)
}

fn rename_at(from: (u64, u64), to: (u64, u64), flags: u32) -> Answer {
    let existing = match flags {
        0 => Existing::Replace,
        RENAME_NOREPLACE => Existing::Keep,
        RENAME_EXCHANGE => Existing::Exchange,
        _ => return Err(Errno::EINVAL),
    };
    let (old, from) = last(from.0, from.1)?;
    let (new, to) = last(to.0, to.1)?;
    let (from, to) = (from.ok_or(Errno::EBUSY)?, to.ok_or(Errno::EBUSY)?);
    names::rename((&old, &from), (&new, &to), existing).map(|()| 0)
}

fn link_at(from: (u64, u64), to: (u64, u64), flags: u32) -> Answer {
    if flags & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let node = match flags & AT_EMPTY_PATH != 0 && path(from.1)?.is_empty() {
        true => node_of(&*current().files.get_any(from.0)?.file).cloned().ok_or(errno::EXDEV)?,
        false => find(from.0, from.1, flags & AT_SYMLINK_FOLLOW != 0)?,
    };
    let (directory, name) = new(to.0, to.1)?;
    names::link(&node, &directory, &name).map(|()| 0)
}

fn symlink_at(target: u64, descriptor: u64, at: u64) -> Answer {
    let target = path(target)?;
    if target.is_empty() {
        return Err(Errno::ENOENT);
    }
    let (directory, name) = new(descriptor, at)?;
    let node = Node::link(&target);
    directory.insert(&name, node).map(|()| 0)
}

/// Mounts a new, empty directory in memory. No other kind of file system is supported.
fn mount(frame: &mut Frame) -> Answer {
    let [_, target, kind, _, data, _] = frame.args();
    let kind = path(kind)?;
    let directory = find(HERE, target, true)?;
    let (kind, huge) = match &*kind {
        b"tmpfs" => ("tmpfs", None),
        b"ramfs" => ("ramfs", None),
        b"hugetlbfs" => ("hugetlbfs", Some(page_size(data)?)),
        _ => return Err(errno::ENODEV),
    };
    names::mount(&directory, kind, huge).map(|()| 0)
}

/// Returns the page size in the options of a mount, or 2 MiB if they contain none.
fn page_size(data: u64) -> Result<HugePageSize, Errno> {
    let options = if data == 0 { Vec::new() } else { path(data)? };
    let options = core::str::from_utf8(&options).map_err(|_| Errno::EINVAL)?;
    let Some(size) = options.split(',').find_map(|option| option.strip_prefix("pagesize=")) else {
        return Ok(HugePageSize::Mib2);
    };
    let units = [(['k', 'K'], 10), (['m', 'M'], 20), (['g', 'G'], 30)];
    let with_unit = units.iter().find_map(|(letters, shift)| Some((size.strip_suffix(*letters)?, *shift)));
    let (number, shift) = with_unit.unwrap_or((size, 0));
    let bytes = number.parse::<u64>().map_err(|_| Errno::EINVAL)?;
    bytes.checked_shl(shift).and_then(HugePageSize::from_bytes).ok_or(Errno::EINVAL)
}

fn umount(frame: &mut Frame) -> Answer {
    let [target, flags, ..] = frame.args();
    let flags = flags as u32;
    if flags & !UNMOUNT_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let directory = find(HERE, target, flags & UMOUNT_NOFOLLOW == 0)?;
    names::unmount(&directory, flags & MNT_DETACH != 0).map(|()| 0)
}

const UMOUNT_NOFOLLOW: u32 = 8;
/// MNT_FORCE, MNT_DETACH, MNT_EXPIRE and UMOUNT_NOFOLLOW.
const UNMOUNT_FLAGS: u32 = 0xf;
