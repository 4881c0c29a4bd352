//! Changes of the tree: new files; and removing, renaming and hard links, one at a time, by a lock of their
//! own. Lookups go on meanwhile, and find the old name or the new one.

use crate::arch::lock::SpinLock;
use crate::errno;
use crate::files::tree::{self, Kind, Node};
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use freehold::hugetlb::HugePageSize;

/// Held for changes of more than one name.
static CHANGES: SpinLock<()> = SpinLock::new(());

type Entries = SpinLock<BTreeMap<Vec<u8>, Arc<Node>>>;

fn entries(directory: &Node) -> Result<&Entries, Errno> {
    match &directory.kind {
        Kind::Directory(entries) => Ok(entries),
        Kind::Listing(_) => Err(Errno::EPERM),
        _ => Err(errno::ENOTDIR),
    }
}

fn is_empty(node: &Node) -> bool {
    !matches!(&node.kind, Kind::Directory(entries) if !entries.lock().is_empty())
}

/// Takes a name away; `directories` says of what: of a directory, which is empty, or of something else.
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
    // Contents go with no lock held.
    drop((gone, node));
    Ok(())
}

fn forget_name(node: &Node) {
    node.links.fetch_sub(1, Relaxed);
    node.touch();
}

/// Another name for a node.
///
/// # Errors
///
/// EPERM: a directory has one name. EEXIST, ENOTDIR.
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

/// How [`rename`] treats what has the new name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// It goes.
    Replace,
    /// It stays, and the call fails.
    Keep,
    /// It gets the old name.
    Exchange,
}

/// Gives what has the name `from` in one directory the name `to` in another.
///
/// # Errors
///
/// ENOENT, EEXIST, ENOTDIR, EISDIR, ENOTEMPTY; EINVAL: a directory would lie within itself.
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
        // Two names of one file: nothing happens.
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
        // `node` is another reference.
        drop(gone);
    }
    from.0.touch();
    to.0.touch();
    drop(guard);
    drop((node, other));
    Ok(())
}

/// What is mounted, and its kind. By node: names change.
static MOUNTS: SpinLock<Vec<(Weak<Node>, &str)>> = SpinLock::new(Vec::new());

/// Path and kind of each, for /proc.
pub fn mounts() -> Vec<(Vec<u8>, &'static str)> {
    let all = MOUNTS.lock().clone();
    let path = |node: Arc<Node>| {
        // Of the directory above: what another mount covers has a path, too.
        let up = node.parent.lock().upgrade()?;
        let mut path = tree::path_of(&up);
        if path != b"/" {
            path.push(b'/');
        }
        path.extend_from_slice(&node.name.lock());
        Some(path)
    };
    all.into_iter().filter_map(|(node, kind)| Some((path(node.upgrade()?)?, kind))).collect()
}

/// Covers a directory by a new one, which is empty, until [`unmount`]: for files of huge pages, if it says so.
///
/// # Errors
///
/// ENOTDIR; EBUSY: the root.
pub fn mount(directory: &Arc<Node>, kind: &'static str, huge: Option<HugePageSize>) -> Result<(), Errno> {
    let _guard = CHANGES.lock();
    let up = directory.parent.lock().upgrade().ok_or(Errno::EBUSY)?;
    entries(directory)?;
    let name = directory.name.lock().clone();
    let new = Node::directory_of(if huge.is_some() { 0o755 } else { 0o1777 }, huge);
    *new.keeps.lock() = Some(directory.clone());
    new.links.store(1, Relaxed);
    set_name(entries(&up)?, (&up, &name), &new);
    let mut mounts = MOUNTS.lock();
    // Those that went with what they lay in.
    mounts.retain(|(node, _)| node.strong_count() > 0);
    mounts.push((Arc::downgrade(&new), kind));
    Ok(())
}

/// Shows what was covered again; the new directory goes, with all that is in it.
///
/// # Errors
///
/// EINVAL: nothing is covered. EBUSY: somebody uses what is there, and `detach` does not say that it may.
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

/// Whether somebody has a directory, or something below it, that is in the tree: open, to be in, or by a mount.
fn is_used(directory: &Arc<Node>) -> bool {
    // A directory has one name, and is in this list; the caller has the first one, too.
    let (mut rest, mut known) = (Vec::from([directory.clone()]), 3);
    while let Some(node) = rest.pop() {
        if Arc::strong_count(&node) > core::mem::replace(&mut known, 2) {
            return true;
        }
        let Kind::Directory(entries) = &node.kind else { continue };
        for below in entries.lock().values() {
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

fn set_name(entries: &Entries, (directory, name): (&Arc<Node>, &[u8]), node: &Arc<Node>) {
    let before = entries.lock().insert(name.to_vec(), node.clone());
    *node.parent.lock() = Arc::downgrade(directory);
    *node.name.lock() = name.to_vec();
    // The caller has a reference, too.
    drop(before);
}

/// Whether `inner` is `outer`, or lies below it.
fn lies_within(inner: &Arc<Node>, outer: &Arc<Node>) -> bool {
    let mut here = Some(inner.clone());
    while let Some(node) = here {
        if Arc::ptr_eq(&node, outer) {
            return true;
        }
        here = node.parent.lock().upgrade();
    }
    false
}

/// A new file at a path; at the end of a link there, if links are followed.
pub fn create(from: &Arc<Node>, path: &[u8], mode: u32, follows: bool) -> Result<Arc<Node>, Errno> {
    let (directory, name) = tree::lookup_parent(from, path, follows)?;
    if path.ends_with(b"/") {
        return Err(errno::EISDIR);
    }
    let name = name.ok_or(errno::EISDIR)?;
    let node = Node::empty(mode, &directory)?;
    match directory.insert(&name, node.clone()) {
        // Somebody else was faster.
        Err(Errno::EEXIST) => directory.child(&name),
        inserted => inserted.map(|()| node),
    }
}
