//! Changes of the tree (`files/tree.rs`): new files, removal, renaming, hard links, mounts.
//!
//! The spin lock [`CHANGES`] serialises all changes except the insertion of a new name. Under this lock, a
//! change locks the entries of one directory at a time, and after that the parent and the name of a node.
//! Lookups take only the locks of directories: they run concurrently and find the old name or the new one.
//! [`MOUNTS`] has a spin lock of its own, which is taken after [`CHANGES`]. A reference that may be a node's
//! last one is dropped after [`CHANGES`] is released, because freeing the node's contents may take long.
//!
//! A new kind of change belongs here and holds [`CHANGES`]. The program `names.c` of the tests checks
//! changes, and `corners.c` checks mounts.

use crate::arch::{lock::SpinLock, preempt::preempt_point};
use crate::errno;
use crate::files::tree::{self, Kind, Named, Node};
use crate::sched::{charge, checkpoint};
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use freehold::hugetlb::HugePageSize;

/// Held for removals, renames, hard links and mounts.
static CHANGES: SpinLock<()> = SpinLock::new(());

/// The entries of a directory, by name.
type Entries = SpinLock<BTreeMap<Vec<u8>, Named>>;

/// Returns the entries of a directory whose names may be changed.
fn entries(directory: &Node) -> Result<&Entries, Errno> {
    match &directory.kind {
        Kind::Directory(entries) => Ok(entries),
        Kind::Listing(_) => Err(Errno::EPERM),
        _ => Err(errno::ENOTDIR),
    }
}

/// Returns true for an empty directory, and for every node that is not a directory.
fn is_empty(node: &Node) -> bool {
    !matches!(&node.kind, Kind::Directory(entries) if !entries.lock().is_empty())
}

/// Removes a name. With `directories` the node must be an empty directory; without `directories` it must not
/// be a directory.
///
/// # Errors
///
/// ENOENT, ENOTDIR, EISDIR, ENOTEMPTY.
pub fn remove(directory: &Arc<Node>, name: &[u8], directories: bool) -> Result<(), Errno> {
    let guard = CHANGES.lock();
    let node = directory.child(name)?;
    match node.is_directory() {
        true if !directories => return Err(errno::EISDIR),
        false if directories => return Err(errno::ENOTDIR),
        _ if !is_empty(&node) => return Err(errno::ENOTEMPTY),
        _ => {}
    }
    let gone = entries(directory)?.lock().remove(name);
    forget_name(&node);
    directory.touch();
    drop(guard);
    // No lock is held while contents are freed.
    drop((gone, node));
    Ok(())
}

/// Decrements a node's number of names, and updates its times.
fn forget_name(node: &Node) {
    node.links.fetch_sub(1, Relaxed);
    node.touch();
}

/// Adds a name for a node.
///
/// # Errors
///
/// EPERM if the node is a directory, which has only one name; EXDEV if the node is one of /proc; EEXIST,
/// ENOTDIR.
pub fn link(node: &Arc<Node>, directory: &Arc<Node>, name: &[u8]) -> Result<(), Errno> {
    if node.is_directory() {
        return Err(Errno::EPERM);
    }
    if matches!(node.kind, Kind::Made(_) | Kind::Jump(_)) {
        return Err(errno::EXDEV);
    }
    let _guard = CHANGES.lock();
    directory.insert(name, node.clone())
}

/// The effect of [`rename`] if a node with the new name exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// The existing node is removed.
    Replace,
    /// The existing node is kept, and the call fails.
    Keep,
    /// The existing node gets the old name.
    Exchange,
}

/// Renames a node from a name in one directory to a name in another.
///
/// # Errors
///
/// ENOENT, EEXIST, ENOTDIR, EISDIR, ENOTEMPTY; EINVAL if a directory would lie within itself.
pub fn rename(from: (&Arc<Node>, &[u8]), to: (&Arc<Node>, &[u8]), existing: Existing) -> Result<(), Errno> {
    let guard = CHANGES.lock();
    let (old, new) = (entries(from.0)?, entries(to.0)?);
    let node = from.0.child(from.1)?;
    let other = to.0.child(to.1).ok();
    if node.is_directory() && lies_within(to.0, &node) {
        return Err(Errno::EINVAL);
    }
    match (&other, existing) {
        (Some(_), Existing::Keep) => return Err(Errno::EEXIST),
        (None, Existing::Exchange) => return Err(Errno::ENOENT),
        (Some(other), Existing::Exchange) => {
            if other.is_directory() && lies_within(from.0, other) {
                return Err(Errno::EINVAL);
            }
            set_name(old, from, other);
        }
        // Both names belong to the same file: Linux does nothing.
        (Some(other), Existing::Replace) if Arc::ptr_eq(other, &node) => return Ok(()),
        (Some(other), Existing::Replace) => match (node.is_directory(), other.is_directory()) {
            (true, false) => return Err(errno::ENOTDIR),
            (false, true) => return Err(errno::EISDIR),
            _ if !is_empty(other) => return Err(errno::ENOTEMPTY),
            _ => forget_name(other),
        },
        (None, _) => {}
    }
    set_name(new, to, &node);
    if existing != Existing::Exchange {
        let gone = old.lock().remove(from.1);
        // `gone` is not the last reference, because `node` is another one.
        drop(gone);
    }
    from.0.touch();
    to.0.touch();
    drop(guard);
    drop((node, other));
    Ok(())
}

/// The mounted directories and the kinds of their file systems. A mount is identified by its node, because
/// names can change.
static MOUNTS: SpinLock<Vec<(Weak<Node>, &str)>> = SpinLock::new(Vec::new());

/// Calls `f` with the path and the kind of each mount, for /proc, until `f` fails. Leaves out mounts whose path
/// is too long.
pub fn each_mount(mut f: impl FnMut(&[u8], &str) -> Result<(), Errno>) -> Result<(), Errno> {
    let path = |node: Arc<Node>| {
        // Joins the parent's path and the node's name. This also works for a directory that another mount
        // covers.
        let up = node.parent.lock().upgrade()?;
        let mut path = tree::short_path_of(&up).ok()?;
        if path != b"/" {
            path.push(b'/');
        }
        path.extend_from_slice(&node.name.lock());
        Some(path)
    };
    for place in 0.. {
        checkpoint()?;
        let Some((node, kind)) = MOUNTS.lock().get(place).cloned() else { break };
        if let Some(path) = node.upgrade().and_then(path) {
            f(&path, kind)?;
        }
    }
    Ok(())
}

/// Mounts an empty file system: covers a directory with a new, empty directory until [`unmount`]. `kind` is
/// the type of the file system for /proc. With `huge`, files in the new directory have huge pages of this
/// size.
///
/// # Errors
///
/// ENOTDIR if the node is no directory, EBUSY if it is the root; ENOMEM.
pub fn mount(directory: &Arc<Node>, kind: &'static str, huge: Option<HugePageSize>) -> Result<(), Errno> {
    charge::admit()?;
    let _guard = CHANGES.lock();
    let up = directory.parent.lock().upgrade().ok_or(Errno::EBUSY)?;
    entries(directory)?;
    let name = directory.name.lock().clone();
    let new = Node::directory_of(if huge.is_some() { 0o755 } else { 0o1777 }, huge);
    *new.keeps.lock() = Some(directory.clone());
    new.links.store(1, Relaxed);
    set_name(entries(&up)?, (&up, &name), &new);
    let mut mounts = MOUNTS.lock();
    // Removes from the list the mounts that were freed together with a directory that contained them.
    mounts.retain(|(node, _)| node.strong_count() > 0);
    mounts.push((Arc::downgrade(&new), kind));
    Ok(())
}

/// Ends a mount: the covered directory gets its name again. The mounted directory is freed with everything in
/// it, as soon as nothing uses it.
///
/// # Errors
///
/// EINVAL if the directory is not mounted; EBUSY if it is in use and `detach` is false.
pub fn unmount(directory: &Arc<Node>, detach: bool) -> Result<(), Errno> {
    let guard = CHANGES.lock();
    let up = directory.parent.lock().upgrade().ok_or(Errno::EINVAL)?;
    entries(directory)?;
    if directory.keeps.lock().is_none() {
        return Err(Errno::EINVAL);
    }
    if !detach && is_used(directory) {
        return Err(Errno::EBUSY);
    }
    let covered = directory.keeps.lock().take().ok_or(Errno::EINVAL)?;
    let name = directory.name.lock().clone();
    set_name(entries(&up)?, (&up, &name), &covered);
    let mut mounts = MOUNTS.lock();
    let gone = mounts
        .iter()
        .rposition(|(node, _)| core::ptr::eq(node.as_ptr(), &raw const **directory))
        .map(|at| mounts.remove(at));
    drop(mounts);
    drop(gone);
    drop(guard);
    Ok(())
}

/// Returns true if a directory in the tree, or a node below it, is in use: open, a working directory, or a
/// mount.
fn is_used(directory: &Arc<Node>) -> bool {
    // A directory that is not in use has two references: one from its name and one from `rest`. The first
    // directory has a third reference, which belongs to the caller.
    let (mut rest, mut known) = (Vec::from([directory.clone()]), 3);
    while let Some(node) = rest.pop() {
        preempt_point();
        if Arc::strong_count(&node) > core::mem::replace(&mut known, 2) {
            return true;
        }
        let Kind::Directory(entries) = &node.kind else { continue };
        for Named { node: below, .. } in entries.lock().values() {
            if below.is_directory() {
                rest.push(below.clone());
            } else if Arc::strong_count(below) > below.links.load(Relaxed) as usize {
                return true;
            }
            if below.keeps.lock().is_some() {
                return true;
            }
        }
    }
    false
}

/// Makes a name refer to a node. The caller holds [`CHANGES`].
fn set_name(entries: &Entries, (directory, name): (&Arc<Node>, &[u8]), node: &Arc<Node>) {
    let before = entries.lock().insert(name.to_vec(), Named::new(name, node.clone()));
    *node.parent.lock() = Arc::downgrade(directory);
    *node.name.lock() = name.to_vec();
    // `before` is not the last reference to the old node, because the caller has another one.
    drop(before);
}

/// Returns true if `inner` is `outer` or lies below it.
fn lies_within(inner: &Arc<Node>, outer: &Arc<Node>) -> bool {
    let mut here = Some(inner.clone());
    while let Some(node) = here {
        preempt_point();
        if Arc::ptr_eq(&node, outer) {
            return true;
        }
        here = node.parent.lock().upgrade();
    }
    false
}

/// Makes a file at a path. If the path names a symbolic link and `follows` is set, makes the file at the
/// link's target.
pub fn create(from: &Arc<Node>, path: &[u8], mode: u32, follows: bool) -> Result<Arc<Node>, Errno> {
    let (directory, name) = tree::lookup_parent(from, path, follows)?;
    if path.ends_with(b"/") {
        return Err(errno::EISDIR);
    }
    let name = name.ok_or(errno::EISDIR)?;
    let node = Node::empty(mode, &directory)?;
    match directory.insert(&name, node.clone()) {
        // Another task has just made the file.
        Err(Errno::EEXIST) => directory.child(&name),
        inserted => inserted.map(|()| node),
    }
}
