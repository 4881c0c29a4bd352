//! The calls for extended attributes (xattr(7)): setting, reading, listing and removing, each for a path, for
//! a path whose last link is not followed, and for a descriptor. `files/attributes.rs` stores the attributes.
//!
//! Names begin with `user.`, `trusted.` or `security.`. Regular files and directories in memory have all of
//! them, and other nodes of the tree have all except `user.`. Pipes, sockets and files of /proc have none. The
//! program `names.c` tests the calls.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::calls::descriptors::file;
use crate::calls::files::{HERE, find};
use crate::errno::{E2BIG, ENODATA, ERANGE};
use crate::files::attributes::Condition;
use crate::files::node::node_of;
use crate::files::tree::{Kind, Node};
use crate::platform::user;
use crate::sched::{charge, current};
use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_setxattr, |frame| set(by_path(frame)?, frame)),
    (__NR_lsetxattr, |frame| set(by_link(frame)?, frame)),
    (__NR_fsetxattr, |frame| set(by_descriptor(frame)?, frame)),
    (__NR_getxattr, |frame| get(by_path(frame)?, frame)),
    (__NR_lgetxattr, |frame| get(by_link(frame)?, frame)),
    (__NR_fgetxattr, |frame| get(by_descriptor(frame)?, frame)),
    (__NR_listxattr, |frame| list(by_path(frame)?, frame)),
    (__NR_llistxattr, |frame| list(by_link(frame)?, frame)),
    (__NR_flistxattr, |frame| list(by_descriptor(frame)?, frame)),
    (__NR_removexattr, |frame| remove(by_path(frame)?, frame)),
    (__NR_lremovexattr, |frame| remove(by_link(frame)?, frame)),
    (__NR_fremovexattr, |frame| remove(by_descriptor(frame)?, frame)),
];

/// Maximum length of a name, in bytes.
const LONGEST_NAME: usize = 255;
/// Maximum size of a value, in bytes.
const LARGEST_VALUE: u64 = 65536;
/// Maximum size of a list of names, in bytes.
const LARGEST_LIST: u64 = 65536;

/// The node of a call; `None` if its file has no node.
type Target = Option<Arc<Node>>;

fn by_path(frame: &Frame) -> Result<Target, Errno> {
    find(HERE, frame.rdi, true).map(Some)
}

fn by_link(frame: &Frame) -> Result<Target, Errno> {
    find(HERE, frame.rdi, false).map(Some)
}

fn by_descriptor(frame: &Frame) -> Result<Target, Errno> {
    Ok(node_of(&*file(frame.rdi)?.file).cloned())
}

/// Reads a name. Fails with ERANGE if it is empty or too long.
fn name(at: u64) -> Result<Vec<u8>, Errno> {
    let name = user::read_string(at, LONGEST_NAME + 1)?.ok_or(ERANGE)?;
    if name.is_empty() { Err(ERANGE) } else { Ok(name) }
}

/// Returns the node whose attributes a call reads or changes. Checks the errors in Linux's order.
///
/// # Errors
///
/// EPERM for a change, or ENODATA for a read, if the node or the caller must not have the name; EOPNOTSUPP if
/// the file has no attributes or the name is of an unknown kind; EINVAL if nothing follows the kind.
fn node(target: Target, name: &[u8], changes: bool) -> Result<Arc<Node>, Errno> {
    let kinds: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let kind = kinds.into_iter().find(|kind| name.starts_with(kind)).ok_or(Errno::EOPNOTSUPP)?;
    let is_plain =
        |node: &Arc<Node>| node.is_directory() || matches!(node.kind, Kind::Regular(_) | Kind::Made(_));
    let is_allowed = match kind {
        b"user." => target.as_ref().is_some_and(is_plain),
        b"trusted." => current().process().ids.lock().may(CAP_SYS_ADMIN),
        _ => true,
    };
    if !is_allowed {
        return Err(if changes { Errno::EPERM } else { ENODATA });
    }
    let is_made = |node: &Arc<Node>| matches!(node.kind, Kind::Listing(_) | Kind::Jump(_) | Kind::Made(_));
    let node = target.filter(|node| !is_made(node)).ok_or(Errno::EOPNOTSUPP)?;
    if name.len() == kind.len() { Err(Errno::EINVAL) } else { Ok(node) }
}

fn set(target: Target, frame: &Frame) -> Answer {
    let [_, at, value, bytes, flags, _] = frame.args();
    let condition = match flags as u32 {
        0 => Condition::None,
        XATTR_CREATE => Condition::Absent,
        XATTR_REPLACE => Condition::Present,
        _ => return Err(Errno::EINVAL),
    };
    let name = name(at)?;
    if bytes > LARGEST_VALUE {
        return Err(E2BIG);
    }
    let mut copy = Vec::new();
    charge::reserve(&mut copy, bytes as usize)?;
    copy.resize(bytes as usize, 0);
    user::copy_in(value, &mut copy)?;
    let node = node(target, &name, true)?;
    node.attributes.set(&name, &copy, condition)?;
    Ok(0)
}

/// Stores bytes if there is room for them. Without room, only returns their number.
fn store(bytes: &[u8], at: u64, room: u64) -> Answer {
    let count = bytes.len() as u64;
    if room != 0 {
        if count > room {
            return Err(ERANGE);
        }
        user::copy_out(at, bytes)?;
    }
    Ok(count)
}

fn get(target: Target, frame: &Frame) -> Answer {
    let [_, at, value, room, ..] = frame.args();
    let name = name(at)?;
    let found = node(target, &name, false)?.attributes.get(&name)?;
    store(&found, value, room)
}

fn list(target: Target, frame: &Frame) -> Answer {
    let [_, at, room, ..] = frame.args();
    let names = target.map(|node| node.attributes.names()).transpose()?.unwrap_or_default();
    if room != 0 && names.len() as u64 > LARGEST_LIST {
        return Err(E2BIG);
    }
    store(&names, at, room)
}

fn remove(target: Target, frame: &Frame) -> Answer {
    let name = name(frame.rsi)?;
    node(target, &name, true)?.attributes.remove(&name)?;
    Ok(0)
}
