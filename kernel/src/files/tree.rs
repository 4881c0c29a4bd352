//! The root file system: a tree of nodes in memory. `files/unpack.rs` fills it from the archive at the start.
//! The engine holds the files' contents.
//!
//! A spin lock per directory guards its entries, so lookups lock one directory at a time. `files/names.rs`
//! changes names under a lock of its own. `files/node.rs` has the open file of a node, and `proc/` has the
//! nodes whose text is generated. The locks of a node's parent and name may be taken under the lock of a
//! directory's entries. None of these locks is held while a node is dropped. A node has only a weak reference
//! to its parent. No permissions are checked.
//!
//! A new [`Kind`] also needs an arm in `open_node` (`calls/files.rs`). If [`walk`] follows the new kind like
//! a link, [`walk`] needs an arm too. The programs `files.c`, `names.c` and `corners.c` of the tests check
//! the tree.

use crate::arch::{clock, lock::SpinLock, preempt::preempt_point};
use crate::errno;
use crate::files::access::Uses;
use crate::files::attributes::Attributes;
use crate::files::pages::{Archived, allocated};
use crate::files::pipe::Pipe;
use crate::files::{CHARACTER, DIRECTORY, File, LINK, REGULAR, Stat};
use crate::platform::{Machine, engine};
use crate::sched::charge::{self, Charge};
use crate::sched::mutex::Mutex;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use freehold::PAGE_SIZE;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file::{Mapping, Zeroes};
use freehold::hugetlb::HugePageSize;

/// Maximum number of symbolic links in one lookup.
const MAX_LINKS: usize = 40;
/// Maximum length of a name, in bytes.
const LONGEST_NAME: usize = 255;

/// Maximum length of a path in bytes, with a terminating zero byte (PATH_MAX).
pub const LONGEST_PATH: usize = 4096;

/// The number of the next node, pipe or socket.
static NEXT_INODE: AtomicU64 = AtomicU64::new(2);

/// Returns the number of a new node, pipe or socket.
pub fn new_inode() -> u64 {
    NEXT_INODE.fetch_add(1, Relaxed)
}

/// The root: a pointer from `Arc::into_raw` that is never freed.
static ROOT: AtomicPtr<Node> = AtomicPtr::new(core::ptr::null_mut());

/// A node of the tree.
pub struct Node {
    /// The number of the node, which is unique.
    pub inode: u64,
    /// Type and permissions, as in `st_mode`.
    pub mode: AtomicU32,
    /// The directory that has the node's last name; none for the root and for nodes without a name.
    pub parent: SpinLock<Weak<Node>>,
    /// A reference that keeps another node alive: for a node that is made on demand, its parent; for a
    /// mounted directory, the directory that it covers.
    pub keeps: SpinLock<Option<Arc<Node>>>,
    /// The name that the node got last.
    pub name: SpinLock<Vec<u8>>,
    /// Number of names. Decremented only under the lock of [`names`](crate::files::names); an insertion
    /// increments it without that lock.
    pub links: AtomicU32,
    /// The user in the lower half, and the group in the upper half.
    pub owner: AtomicU64,
    /// Times of access, modification and status change, in nanoseconds. Relaxed: each is set and read
    /// separately.
    pub times: [AtomicU64; 3],
    /// Held by calls that change the contents or the size of a regular file, so that they exclude each other.
    /// No fault takes this lock, because a write to a file may copy from a mapping of the same file.
    pub changing: Mutex,
    /// The original size of a file that came with the archive. Such a file counts as completely allocated.
    pub archived_bytes: Option<u64>,
    /// For a file from the archive: the charge for the bytes behind its original contents, which the engine's
    /// limit on pages of files does not count.
    pub(super) growth: SpinLock<Charge>,
    /// For a directory: the page size of files made in it, if they have huge pages (hugetlbfs).
    pub huge: Option<HugePageSize>,
    /// Counts the open files that may write and the executions of a regular file.
    pub(super) uses: Arc<Uses>,
    /// The extended attributes.
    pub attributes: Attributes,
    /// The kind, which never changes, with the contents.
    pub kind: Kind,
    _charge: Charge,
}

/// Bytes of kernel memory for a node: the node, and the engine's or the kernel's object for its contents.
const COST: usize = size_of::<Node>() + 256;
/// Bytes of kernel memory for a name in a directory, without the bytes of the name.
const NAME_COST: usize = 128;

/// A name of a node in a directory.
pub struct Named {
    pub node: Arc<Node>,
    _charge: Charge,
}

impl Named {
    /// Returns an entry for this name.
    pub fn new(name: &[u8], node: Arc<Node>) -> Self {
        Named { node, _charge: Charge::of_files(NAME_COST + name.len()) }
    }
}

impl Node {
    /// Removes and returns the references of this node to other nodes. Dropping one of them may free its
    /// node.
    fn take_below(&mut self) -> Vec<Arc<Node>> {
        let mut below: Vec<_> = self.keeps.lock().take().into_iter().collect();
        if let Kind::Directory(entries) = &self.kind {
            let entries = core::mem::take(&mut *entries.lock());
            below.extend(entries.into_values().map(|named| named.node));
        }
        below
    }
}

impl Drop for Node {
    // Frees the nodes in a loop rather than recursively: a tree may be deeper than a kernel stack allows.
    fn drop(&mut self) {
        let mut rest = self.take_below();
        while let Some(node) = rest.pop() {
            preempt_point();
            if let Some(mut node) = Arc::into_inner(node) {
                rest.append(&mut node.take_below());
            }
        }
    }
}

/// The kind of a node, with its contents.
pub enum Kind {
    /// A regular file, with its contents.
    Regular(Counted<Mapping<Machine>>),
    /// A directory, with its entries.
    Directory(SpinLock<BTreeMap<Vec<u8>, Named>>),
    /// A symbolic link, with its target.
    Link(Vec<u8>),
    /// A named pipe.
    Fifo(Arc<Pipe>),
    /// A node that is always opened as this file.
    Device(Arc<dyn File>),
    /// A directory whose entries are made on demand.
    Listing(Box<dyn Listing>),
    /// A symbolic link to a node that may have no name.
    Jump(Box<dyn Jump>),
    /// A node that this function opens, for example a file of /proc.
    Made(Maker),
}

/// A function that makes the file for an open call.
pub type Maker = Box<dyn Fn() -> Result<Arc<dyn File>, Errno> + Send + Sync>;

/// A directory whose entries are made on demand.
pub trait Listing: Send + Sync {
    /// Checks that the directory may be searched. Called for every name, `.` and `..` included.
    fn search(&self) -> Result<(), Errno> {
        Ok(())
    }
    /// Returns the node with this name, made for this lookup.
    fn child(&self, name: &[u8]) -> Result<Arc<Node>, Errno>;
    /// Returns the next names from position `from` on, in the order of their positions. The result may lack
    /// further names; an empty result means that no name is left. The first position is 0.
    fn names(&self, from: u64) -> Result<Vec<Listed>, Errno>;
}

/// A name in a [`Listing`].
pub struct Listed {
    /// The position after this name.
    pub next: u64,
    pub name: Vec<u8>,
    /// The type, as in `d_type`.
    pub kind: u8,
}

/// Returns the rest of these names from position `from` on. The position of a name is its index.
pub fn listed(names: Vec<(Vec<u8>, u8)>, from: u64) -> Vec<Listed> {
    let numbered = (1..).zip(names).skip(from as usize);
    numbered.map(|(next, (name, kind))| Listed { next, name, kind }).collect()
}

/// A link of /proc.
pub trait Jump: Send + Sync {
    /// Returns the text for `readlink`.
    fn text(&self) -> Result<Vec<u8>, Errno>;
    /// Returns the target.
    fn node(&self) -> Result<Arc<Node>, Errno>;
}

impl Node {
    /// Makes a node without a name.
    pub fn new(mode: u32, kind: Kind) -> Arc<Node> {
        let now = clock::epoch_ns() + clock::now_ns();
        let bytes = COST + if let Kind::Link(target) = &kind { target.len() } else { 0 };
        Arc::new(Node {
            inode: new_inode(),
            mode: AtomicU32::new(mode),
            parent: SpinLock::new(Weak::new()),
            keeps: SpinLock::new(None),
            name: SpinLock::new(Vec::new()),
            links: AtomicU32::new(0),
            owner: AtomicU64::new(0),
            times: [const { AtomicU64::new(0) }; 3].map(|_| AtomicU64::new(now)),
            changing: Mutex::new(),
            archived_bytes: None,
            growth: SpinLock::new(Charge::of_files(0)),
            huge: None,
            uses: Arc::default(),
            attributes: Attributes::default(),
            kind,
            _charge: Charge::of_files(bytes),
        })
    }

    /// Makes an empty directory.
    pub fn directory(mode: u32) -> Arc<Node> {
        Self::new(DIRECTORY | mode & 0o7777, Kind::Directory(SpinLock::new(BTreeMap::new())))
    }

    /// Makes a node that `maker` opens: each open gets a new file.
    pub fn made(mode: u32, maker: Maker) -> Arc<Node> {
        Self::new(REGULAR | mode, Kind::Made(maker))
    }

    /// Makes a directory whose entries are made on demand.
    pub fn listing(listing: Box<dyn Listing>) -> Arc<Node> {
        Self::new(DIRECTORY | 0o555, Kind::Listing(listing))
    }

    /// Makes a link of /proc.
    pub fn jump(jump: Box<dyn Jump>) -> Arc<Node> {
        Self::new(LINK | 0o777, Kind::Jump(jump))
    }

    /// Returns true if the node is a directory, with entries of its own or with entries that are made on
    /// demand.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory(_) | Kind::Listing(_))
    }

    /// Updates the times after a change of contents or names.
    pub fn touch(&self) {
        let now = clock::epoch_ns() + clock::now_ns();
        self.times[1].store(now, Relaxed);
        self.times[2].store(now, Relaxed);
    }

    /// Makes a directory. With `huge`, files made in it have huge pages.
    pub fn directory_of(mode: u32, huge: Option<HugePageSize>) -> Arc<Node> {
        let mut node = Self::directory(mode);
        if let Some(node) = Arc::get_mut(&mut node) {
            node.huge = huge;
        }
        node
    }

    /// Makes an empty regular file that is to be inserted into this directory.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn empty(mode: u32, directory: &Node) -> Result<Arc<Node>, Errno> {
        let mapping = match directory.huge {
            Some(page) => Mapping::of_huge_pages(engine(), page, 0, true).map_err(|error| error.errno())?,
            None => Mapping::new(engine(), Zeroes, 0, true).map_err(|_| Errno::ENOMEM)?,
        };
        Ok(Self::new(REGULAR | mode & 0o7777, Kind::Regular(mapping)))
    }

    /// Makes a regular file with contents from the archive.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn archived(mode: u32, contents: &'static [u8]) -> Result<Arc<Node>, Errno> {
        let pager = Archived::new(contents).map_err(|_| Errno::ENOMEM)?;
        let mapping =
            Mapping::new(engine(), pager, contents.len() as u64, true).map_err(|_| Errno::ENOMEM)?;
        let mut node = Self::new(REGULAR | mode & 0o7777, Kind::Regular(mapping));
        if let Some(node) = Arc::get_mut(&mut node) {
            node.archived_bytes = Some(contents.len() as u64);
        }
        Ok(node)
    }

    /// Checks that a file may get a size of `size` bytes, before it gets this size. Only the growth of a file from
    /// the archive is limited here.
    ///
    /// # Errors
    ///
    /// ENOSPC if all files together have their part of memory.
    pub fn admit_size(&self, size: u64) -> Result<(), Errno> {
        match self.archived_bytes {
            Some(original) => self.growth.lock().grow(size.saturating_sub(original)),
            None => Ok(()),
        }
    }

    /// Makes a symbolic link.
    pub fn link(target: &[u8]) -> Arc<Node> {
        Self::new(LINK | 0o777, Kind::Link(target.to_vec()))
    }

    /// Makes a node that is always opened as this file.
    pub fn device(file: Arc<dyn File>) -> Arc<Node> {
        Self::new(CHARACTER | 0o666, Kind::Device(file))
    }

    /// Returns the contents of a regular file.
    pub fn mapping(&self) -> Option<&Counted<Mapping<Machine>>> {
        match &self.kind {
            Kind::Regular(mapping) => Some(mapping),
            _ => None,
        }
    }

    /// Returns the fields of `stat`.
    pub fn stat(&self) -> Stat {
        let size = match &self.kind {
            Kind::Regular(mapping) => mapping.size(),
            Kind::Link(target) => target.len() as u64,
            Kind::Directory(_) => 4096,
            _ => 0,
        };
        let allocated = match &self.kind {
            Kind::Regular(_) if self.archived_bytes.is_some() => size.next_multiple_of(PAGE_SIZE),
            Kind::Regular(mapping) => allocated(mapping),
            _ => 0,
        };
        let device = if let Kind::Device(file) = &self.kind { file.stat().device } else { 0 };
        let links = self.links.load(Relaxed).max(u32::from(self.is_directory()) * 2);
        let times = [0, 1, 2].map(|n: usize| self.times[n].load(Relaxed));
        let owner = self.owner.load(Relaxed);
        let mode = self.mode.load(Relaxed);
        Stat { inode: self.inode, mode, links: links.into(), size, allocated, device, owner, times }
    }

    /// Returns the node with this name in a directory.
    ///
    /// # Errors
    ///
    /// ENOENT, ENOTDIR.
    pub fn child(self: &Arc<Self>, name: &[u8]) -> Result<Arc<Node>, Errno> {
        match &self.kind {
            Kind::Directory(entries) => {
                let entries = entries.lock();
                entries.get(name).map(|named| named.node.clone()).ok_or(Errno::ENOENT)
            }
            Kind::Listing(listing) => {
                let child = listing.child(name)?;
                *child.parent.lock() = Arc::downgrade(self);
                *child.keeps.lock() = Some(self.clone());
                *child.name.lock() = name.to_vec();
                if child.owner.load(Relaxed) == 0 {
                    child.owner.store(self.owner.load(Relaxed), Relaxed);
                }
                Ok(child)
            }
            _ => Err(errno::ENOTDIR),
        }
    }

    /// Adds `child` to this directory by a name.
    ///
    /// # Errors
    ///
    /// ENOTDIR if this is no directory; EPERM if its entries are made on demand; ENAMETOOLONG; EEXIST; ENOSPC,
    /// ENOMEM.
    pub fn insert(self: &Arc<Self>, name: &[u8], child: Arc<Node>) -> Result<(), Errno> {
        let entries = match &self.kind {
            Kind::Directory(entries) => entries,
            Kind::Listing(_) => return Err(Errno::EPERM),
            _ => return Err(errno::ENOTDIR),
        };
        if name.len() > LONGEST_NAME {
            return Err(errno::ENAMETOOLONG);
        }
        charge::admit_to_files()?;
        let mut entries = entries.lock();
        if entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        *child.parent.lock() = Arc::downgrade(self);
        *child.name.lock() = name.to_vec();
        child.links.fetch_add(1, Relaxed);
        entries.insert(name.to_vec(), Named::new(name, child));
        drop(entries);
        self.touch();
        Ok(())
    }
}

/// Returns the root directory.
pub fn root() -> Arc<Node> {
    // Acquire pairs with the release of `set_root`.
    let root = ROOT.load(Acquire);
    assert!(!root.is_null(), "there is no root file system");
    // SAFETY: the pointer comes from `Arc::into_raw`, and that reference is never dropped.
    unsafe {
        Arc::increment_strong_count(root);
        Arc::from_raw(root)
    }
}

/// Makes a directory the root. Called once, at boot.
pub(super) fn set_root(root: Arc<Node>) {
    ROOT.store(Arc::into_raw(root).cast_mut(), Release);
}

/// Returns the node that a path names, beginning in `from`. With `follow`, a symbolic link at the end of the
/// path is followed.
///
/// # Errors
///
/// ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP; ESRCH in the folder of a process that does not exist any more.
pub fn lookup(from: &Arc<Node>, path: &[u8], follow: bool) -> Result<Arc<Node>, Errno> {
    walk(from, path, follow)?.node.ok_or(Errno::ENOENT)
}

/// Returns the last name of a path, and the directory in which a node with this name is or would be. The name
/// is `None` if the path ends with the root, `.` or `..`.
///
/// # Errors
///
/// Fails like [`lookup`].
pub fn lookup_parent(
    from: &Arc<Node>,
    path: &[u8],
    follow: bool,
) -> Result<(Arc<Node>, Option<Vec<u8>>), Errno> {
    let found = walk(from, path, follow)?;
    Ok((found.directory, found.name))
}

/// The result of walking a path.
struct Found {
    /// The directory in which a node with the last name is or would be.
    directory: Arc<Node>,
    /// The last name; `None` if the path ends with the root, `.` or `..`.
    name: Option<Vec<u8>>,
    /// The node with that name, if it exists.
    node: Option<Arc<Node>>,
}

/// Returns the names of a path, the last one first.
fn split(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).rev().map(<[u8]>::to_vec)
}

/// Adds the names of a path to the names that a walk still has to visit.
///
/// # Errors
///
/// ENOMEM.
fn extend(left: &mut Vec<Vec<u8>>, path: &[u8]) -> Result<(), Errno> {
    for name in split(path) {
        charge::reserve(left, 1)?;
        left.push(name);
    }
    Ok(())
}

/// Walks a path, and follows the links in it. With `follow`, also follows a link at its end.
fn walk(from: &Arc<Node>, path: &[u8], follow: bool) -> Result<Found, Errno> {
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    let start = |path: &[u8], here: &Arc<Node>| if path[0] == b'/' { root() } else { here.clone() };
    // With a trailing slash the path means a directory, and a link at its end is followed.
    let whole = path.ends_with(b"/");
    let (mut here, mut links) = (start(path, from), 0);
    let mut left = Vec::new();
    extend(&mut left, path)?;
    let mut found = Found { directory: here.clone(), name: None, node: Some(here.clone()) };
    while let Some(name) = left.pop() {
        let last = left.is_empty();
        if !here.is_directory() {
            return Err(errno::ENOTDIR);
        }
        if let Kind::Listing(listing) = &here.kind {
            listing.search()?;
        }
        if &*name == b"." || &*name == b".." {
            let up = if name.len() == 2 { here.parent.lock().upgrade() } else { None };
            here = up.unwrap_or(here);
            found = Found { directory: here.clone(), name: None, node: Some(here.clone()) };
            continue;
        }
        if name.len() > LONGEST_NAME {
            return Err(errno::ENAMETOOLONG);
        }
        let child = match here.child(&name) {
            Ok(child) => child,
            Err(Errno::ENOENT) if last => return Ok(Found { directory: here, name: Some(name), node: None }),
            Err(error) => return Err(error),
        };
        let follows = !last || follow || whole;
        match &child.kind {
            Kind::Link(_) | Kind::Jump(_) if follows && links >= MAX_LINKS => return Err(errno::ELOOP),
            Kind::Link(target) if follows => {
                links += 1;
                if target.is_empty() {
                    return Err(Errno::ENOENT);
                }
                here = start(target, &here);
                found = Found { directory: here.clone(), name: None, node: Some(here.clone()) };
                extend(&mut left, target)?;
            }
            Kind::Jump(jump) if follows => {
                links += 1;
                let node = jump.node()?;
                found = Found { directory: here, name: Some(name), node: Some(node.clone()) };
                here = node;
            }
            _ => {
                found = Found { directory: here, name: Some(name), node: Some(child.clone()) };
                here = child;
            }
        }
    }
    match &found.node {
        Some(node) if whole && !node.is_directory() => Err(errno::ENOTDIR),
        _ => Ok(found),
    }
}

/// Returns the path of a node from the root. Adds ` (deleted)` if the node or a directory above it has lost
/// its name. Directories may be nested more deeply than [`LONGEST_PATH`] allows. The result is then the end of
/// the path, and is longer than [`LONGEST_PATH`]: see [`short_path_of`].
pub fn path_of(node: &Arc<Node>) -> Vec<u8> {
    let (mut names, mut here, mut gone, mut bytes) = (Vec::new(), node.clone(), false, 0);
    let root = root();
    while !Arc::ptr_eq(&here, &root) && bytes < LONGEST_PATH {
        let up = here.parent.lock().upgrade();
        let name = here.name.lock().clone();
        let Some(up) = up else {
            gone = true;
            names.push(name);
            break;
        };
        bytes += name.len() + 1;
        if let Kind::Directory(entries) = &up.kind {
            gone |= !entries.lock().get(&name).is_some_and(|named| Arc::ptr_eq(&named.node, &here));
        }
        names.push(name);
        here = up;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    if gone {
        path.extend_from_slice(b" (deleted)");
    }
    path
}

/// Returns the path of a node as [`path_of`] does.
///
/// # Errors
///
/// ENAMETOOLONG.
pub fn short_path_of(node: &Arc<Node>) -> Result<Vec<u8>, Errno> {
    let path = path_of(node);
    if path.len() < LONGEST_PATH { Ok(path) } else { Err(errno::ENAMETOOLONG) }
}
