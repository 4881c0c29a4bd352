//! The root file system: a tree in memory, unpacked from the archive at the start. Contents of files are
//! Freehold's: read, write and mmap see the same pages.

use crate::arch::{clock, lock::SpinLock};
use crate::errno;
use crate::files::pages::{Archived, allocated};
use crate::files::pipe::Pipe;
use crate::files::{CHARACTER, DIRECTORY, File, LINK, REGULAR, Stat};
use crate::platform::{Machine, engine};
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
use freehold_kernel::cpio;

const MOST_LINKS: usize = 40;
const LONGEST_NAME: usize = 255;

static NEXT_INODE: AtomicU64 = AtomicU64::new(2);
/// The root; from `Arc::into_raw`, and never given back.
static ROOT: AtomicPtr<Node> = AtomicPtr::new(core::ptr::null_mut());

/// What has a name.
pub struct Node {
    pub inode: u64,
    pub mode: AtomicU32,
    pub parent: SpinLock<Weak<Node>>,
    /// The parent of a node that is made when it is asked for: nothing else keeps that one. Of a directory in
    /// memory: the one that it covers.
    pub keeps: SpinLock<Option<Arc<Node>>>,
    /// Its last name.
    pub name: SpinLock<Vec<u8>>,
    /// How many names it has. Changed under the lock of all changes, [`names`](crate::files::names).
    pub links: AtomicU32,
    /// User, and group in the upper half.
    pub owner: AtomicU64,
    /// When it was read, written and changed, in nanoseconds. Each is set and read alone.
    pub times: [AtomicU64; 3],
    /// Held by calls that change contents or size of a regular file, which exclude each other so. No fault
    /// needs it: what is written to a file may come from a mapping of that file.
    pub changing: Mutex,
    /// Its contents came with the archive: they are all there, whether they were touched or not.
    pub is_archived: bool,
    /// Of a directory: files that are made there are of huge pages (hugetlbfs).
    pub huge: Option<HugePageSize>,
    pub kind: Kind,
}

impl Node {
    /// Takes out what it alone may keep.
    fn take_below(&mut self) -> Vec<Arc<Node>> {
        let mut below: Vec<_> = self.keeps.lock().take().into_iter().collect();
        if let Kind::Directory(entries) = &self.kind {
            below.extend(core::mem::take(&mut *entries.lock()).into_values());
        }
        below
    }
}

impl Drop for Node {
    // Not each by the one above: a tree may be deeper than a kernel stack.
    fn drop(&mut self) {
        let mut rest = self.take_below();
        while let Some(node) = rest.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                rest.append(&mut node.take_below());
            }
        }
    }
}

pub enum Kind {
    Regular(Counted<Mapping<Machine>>),
    Directory(SpinLock<BTreeMap<Vec<u8>, Arc<Node>>>),
    Link(Vec<u8>),
    Fifo(Arc<Pipe>),
    /// Opened as this file.
    Device(Arc<dyn File>),
    /// A directory whose entries are made when they are asked for.
    Listing(Box<dyn Listing>),
    /// A link to what may have no name.
    Jump(Box<dyn Jump>),
    /// Opened as what this makes.
    Made(Maker),
}

/// Makes what an open gets.
pub type Maker = Box<dyn Fn() -> Result<Arc<dyn File>, Errno> + Send + Sync>;

/// A directory whose entries are made when they are asked for.
pub trait Listing: Send + Sync {
    fn child(&self, name: &[u8]) -> Result<Arc<Node>, Errno>;
    /// Names, each with its `d_type`.
    fn names(&self) -> Vec<(Vec<u8>, u8)>;
}

/// A link of /proc.
pub trait Jump: Send + Sync {
    /// What `readlink` says.
    fn text(&self) -> Result<Vec<u8>, Errno>;
    /// Where it leads.
    fn node(&self) -> Result<Arc<Node>, Errno>;
}

impl Node {
    pub fn new(mode: u32, kind: Kind) -> Arc<Node> {
        let now = clock::epoch_ns() + clock::now_ns();
        Arc::new(Node {
            inode: NEXT_INODE.fetch_add(1, Relaxed),
            mode: AtomicU32::new(mode),
            parent: SpinLock::new(Weak::new()),
            keeps: SpinLock::new(None),
            name: SpinLock::new(Vec::new()),
            links: AtomicU32::new(0),
            owner: AtomicU64::new(0),
            times: [const { AtomicU64::new(0) }; 3].map(|_| AtomicU64::new(now)),
            changing: Mutex::new(),
            is_archived: false,
            huge: None,
            kind,
        })
    }

    pub fn directory(mode: u32) -> Arc<Node> {
        Self::new(DIRECTORY | mode & 0o7777, Kind::Directory(SpinLock::new(BTreeMap::new())))
    }

    /// A file whose text is made when it is opened.
    pub fn made(mode: u32, maker: Maker) -> Arc<Node> {
        Self::new(REGULAR | mode, Kind::Made(maker))
    }

    pub fn listing(listing: Box<dyn Listing>) -> Arc<Node> {
        Self::new(DIRECTORY | 0o555, Kind::Listing(listing))
    }

    pub fn jump(jump: Box<dyn Jump>) -> Arc<Node> {
        Self::new(LINK | 0o777, Kind::Jump(jump))
    }

    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory(_) | Kind::Listing(_))
    }

    /// Its contents, or names, have changed.
    pub fn touch(&self) {
        let now = clock::epoch_ns() + clock::now_ns();
        self.times[1].store(now, Relaxed);
        self.times[2].store(now, Relaxed);
    }

    /// The same, for files of huge pages, if it says so.
    pub fn directory_of(mode: u32, huge: Option<HugePageSize>) -> Arc<Node> {
        let mut node = Self::directory(mode);
        if let Some(node) = Arc::get_mut(&mut node) {
            node.huge = huge;
        }
        node
    }

    /// An empty file, for this directory.
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

    /// A file with these contents.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn archived(mode: u32, contents: &'static [u8]) -> Result<Arc<Node>, Errno> {
        let pager = Archived::new(contents);
        let mapping =
            Mapping::new(engine(), pager, contents.len() as u64, true).map_err(|_| Errno::ENOMEM)?;
        let mut node = Self::new(REGULAR | mode & 0o7777, Kind::Regular(mapping));
        if let Some(node) = Arc::get_mut(&mut node) {
            node.is_archived = true;
        }
        Ok(node)
    }

    pub fn link(target: &[u8]) -> Arc<Node> {
        Self::new(LINK | 0o777, Kind::Link(target.to_vec()))
    }

    pub fn device(file: Arc<dyn File>) -> Arc<Node> {
        Self::new(CHARACTER | 0o666, Kind::Device(file))
    }

    pub fn mapping(&self) -> Option<&Counted<Mapping<Machine>>> {
        match &self.kind {
            Kind::Regular(mapping) => Some(mapping),
            _ => None,
        }
    }

    pub fn stat(&self) -> Stat {
        let size = match &self.kind {
            Kind::Regular(mapping) => mapping.size(),
            Kind::Link(target) => target.len() as u64,
            Kind::Directory(_) => 4096,
            _ => 0,
        };
        let allocated = match &self.kind {
            Kind::Regular(_) if self.is_archived => size.next_multiple_of(PAGE_SIZE),
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

    /// The entry of a directory.
    ///
    /// # Errors
    ///
    /// ENOENT; ENOTDIR.
    pub fn child(self: &Arc<Self>, name: &[u8]) -> Result<Arc<Node>, Errno> {
        match &self.kind {
            Kind::Directory(entries) => entries.lock().get(name).cloned().ok_or(Errno::ENOENT),
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

    /// Gives `child` a name in this directory.
    ///
    /// # Errors
    ///
    /// ENOTDIR; EEXIST.
    pub fn insert(self: &Arc<Self>, name: &[u8], child: Arc<Node>) -> Result<(), Errno> {
        let entries = match &self.kind {
            Kind::Directory(entries) => entries,
            Kind::Listing(_) => return Err(Errno::EPERM),
            _ => return Err(errno::ENOTDIR),
        };
        if name.len() > LONGEST_NAME {
            return Err(errno::ENAMETOOLONG);
        }
        let mut entries = entries.lock();
        if entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        *child.parent.lock() = Arc::downgrade(self);
        *child.name.lock() = name.to_vec();
        child.links.fetch_add(1, Relaxed);
        entries.insert(name.to_vec(), child);
        drop(entries);
        self.touch();
        Ok(())
    }
}

/// The root directory.
pub fn root() -> Arc<Node> {
    // Acquire pairs with the release of `unpack`.
    let root = ROOT.load(Acquire);
    assert!(!root.is_null(), "a root file system");
    // SAFETY: from `Arc::into_raw`, and kept for ever.
    unsafe {
        Arc::increment_strong_count(root);
        Arc::from_raw(root)
    }
}

/// What a path names, from a directory on. With `follow`, also a symbolic link at its end is followed.
///
/// # Errors
///
/// ENOENT, ENOTDIR, ELOOP.
pub fn lookup(from: &Arc<Node>, path: &[u8], follow: bool) -> Result<Arc<Node>, Errno> {
    walk(from, path, follow)?.node.ok_or(Errno::ENOENT)
}

/// The directory where a path's last name is, or would be, and that name; `None` where the path ends with
/// a directory that has no name there: the root, `.` or `..`.
///
/// # Errors
///
/// As [`lookup`].
pub fn lookup_parent(
    from: &Arc<Node>,
    path: &[u8],
    follow: bool,
) -> Result<(Arc<Node>, Option<Vec<u8>>), Errno> {
    let found = walk(from, path, follow)?;
    Ok((found.directory, found.name))
}

/// Where a path leads.
struct Found {
    /// Where its last name is, or would be.
    directory: Arc<Node>,
    name: Option<Vec<u8>>,
    /// What is there.
    node: Option<Arc<Node>>,
}

fn split(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).rev().map(<[u8]>::to_vec)
}

fn walk(from: &Arc<Node>, path: &[u8], follow: bool) -> Result<Found, Errno> {
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    let start = |path: &[u8], here: &Arc<Node>| if path[0] == b'/' { root() } else { here.clone() };
    // A slash at the end: a directory is meant, and a link to one followed.
    let whole = path.ends_with(b"/");
    let (mut here, mut links) = (start(path, from), 0);
    let mut left: Vec<Vec<u8>> = split(path).collect();
    let mut found = Found { directory: here.clone(), name: None, node: Some(here.clone()) };
    while let Some(name) = left.pop() {
        let last = left.is_empty();
        if !here.is_directory() {
            return Err(errno::ENOTDIR);
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
            Kind::Link(_) | Kind::Jump(_) if follows && links >= MOST_LINKS => return Err(errno::ELOOP),
            Kind::Link(target) if follows => {
                links += 1;
                if target.is_empty() {
                    return Err(Errno::ENOENT);
                }
                here = start(target, &here);
                found = Found { directory: here.clone(), name: None, node: Some(here.clone()) };
                left.extend(split(target));
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

/// The path of a node, from the root on.
pub fn path_of(node: &Arc<Node>) -> Vec<u8> {
    let (mut names, mut here, mut gone) = (Vec::new(), node.clone(), false);
    let root = root();
    while !Arc::ptr_eq(&here, &root) {
        let up = here.parent.lock().upgrade();
        let name = here.name.lock().clone();
        let Some(up) = up else {
            gone = true;
            names.push(name);
            break;
        };
        if let Kind::Directory(entries) = &up.kind {
            gone |= !entries.lock().get(&name).is_some_and(|node| Arc::ptr_eq(node, &here));
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

/// A name in the root directory, and what makes the directory there.
pub type Mount = (&'static [u8], fn() -> Arc<Node>);

/// Makes the root file system of an archive, or of a program alone, which is then `/program`.
pub fn unpack(module: &'static [u8], mounts: &[Mount]) {
    let root = Node::directory(0o755);
    ROOT.store(Arc::into_raw(root.clone()).cast_mut(), Release);
    if module.starts_with(b"\x7fELF") {
        let program = Node::archived(0o755, module).expect("memory for the first program");
        root.insert(b"program", program).expect("an empty directory");
    }
    root.insert(b"tmp", Node::directory(0o1777)).expect("a root without /tmp");
    for (name, make) in mounts {
        root.insert(name, make()).expect("names that differ");
    }
    for entry in cpio::entries(module) {
        if let Err(error) = add(&root, &entry) {
            let name = core::str::from_utf8(entry.name).unwrap_or("?");
            crate::arch::report::say!("{name} of the initial file system is left out: {error:?}");
        }
    }
}

fn add(root: &Arc<Node>, entry: &cpio::Entry<'static>) -> Result<(), Errno> {
    let (directory, name) = lookup_parent(root, entry.name, false)?;
    // A directory that is there already.
    let Some(name) = name.filter(|name| directory.child(name).is_err()) else { return Ok(()) };
    let node = match entry.mode & 0o170_000 {
        DIRECTORY => Node::directory(entry.mode),
        LINK => Node::link(entry.contents),
        REGULAR => Node::archived(entry.mode, entry.contents)?,
        // Devices are the kernel's own.
        _ => return Ok(()),
    };
    directory.insert(&name, node)
}
