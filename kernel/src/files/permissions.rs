//! What a process may do to a file: as its owner, of its group, or as one of the others (path_resolution(7)).

use super::tree::Node;
use crate::arch::cpu;
use crate::task::ids::{CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, Ids};
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;

pub const EXECUTE: u32 = 1;
pub const WRITE: u32 = 2;
pub const READ: u32 = 4;
/// Of a directory: the right to write there is not enough to remove what belongs to others.
const STICKY: u32 = 0o1000;

/// Whether the calling process may do all of this.
///
/// # Errors
///
/// EACCES.
pub fn check(node: &Node, wanted: u32) -> Result<(), Errno> {
    let here = cpu::current();
    // At the start there is no process yet.
    if !here.has_process() || allows(node, wanted, &here.process().ids.lock()) {
        Ok(())
    } else {
        Err(Errno::EACCES)
    }
}

/// The same, by the real user and group (access(2)).
///
/// # Errors
///
/// EACCES.
pub fn check_as_started(node: &Node, wanted: u32) -> Result<(), Errno> {
    let mut ids = cpu::current().process().ids.lock().clone();
    (ids.user.files, ids.group.files) = (ids.user.real, ids.group.real);
    ids.effective = if ids.user.real == 0 { ids.permitted } else { 0 };
    if allows(node, wanted, &ids) { Ok(()) } else { Err(Errno::EACCES) }
}

fn allows(node: &Node, wanted: u32, ids: &Ids) -> bool {
    let (mode, owner) = (node.mode.load(Relaxed), node.owner.load(Relaxed));
    let (user, group) = (owner as u32, (owner >> 32) as u32);
    let granted = match () {
        () if ids.user.files == user => mode >> 6,
        () if ids.group.files == group || ids.groups.contains(&group) => mode >> 3,
        () => mode,
    };
    if wanted & !granted & 7 == 0 {
        return true;
    }
    let can_run = node.is_directory() || mode & 0o111 != 0;
    let can_look = if node.is_directory() { READ | EXECUTE } else { READ };
    ids.may(CAP_DAC_OVERRIDE) && (wanted & EXECUTE == 0 || can_run)
        || ids.may(CAP_DAC_READ_SEARCH) && wanted & !can_look == 0
}

/// Whether the calling process may take the name of `node` out of this directory.
///
/// # Errors
///
/// EACCES; EPERM: it belongs to others, and the directory is for all.
pub fn check_removal(directory: &Node, node: &Node) -> Result<(), Errno> {
    check(directory, WRITE | EXECUTE)?;
    let is_shared = directory.mode.load(Relaxed) & STICKY != 0;
    if is_shared && !owns(directory) { check_owner(node) } else { Ok(()) }
}

/// Whether it may change what only an owner may.
///
/// # Errors
///
/// EPERM.
pub fn check_owner(node: &Node) -> Result<(), Errno> {
    if owns(node) { Ok(()) } else { Err(Errno::EPERM) }
}

fn owns(node: &Node) -> bool {
    let ids = cpu::current().process().ids.lock();
    ids.user.files == node.owner.load(Relaxed) as u32 || ids.may(CAP_FOWNER)
}

/// What the calling process makes in a directory is its own; its group is the directory's, where that says so.
pub fn make_own(node: &Node, directory: &Node) {
    const SET_GROUP: u32 = 0o2000;
    let ids = cpu::current().process().ids.lock();
    let (user, group) = (u64::from(ids.user.files), u64::from(ids.group.files));
    drop(ids);
    let inherits = directory.mode.load(Relaxed) & SET_GROUP != 0;
    let group = if inherits { directory.owner.load(Relaxed) >> 32 } else { group };
    node.owner.store(user | group << 32, Relaxed);
    if inherits && node.is_directory() {
        node.mode.fetch_or(SET_GROUP, Relaxed);
    }
}
