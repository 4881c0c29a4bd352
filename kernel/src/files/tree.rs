//! The root file system: a tree in memory, unpacked from the archive at the start. Contents of files are
//! Freehold's: read, write and mmap see the same pages.

use super::buffer::UserBuffer;
use super::console::Console;
use super::devices;
use super::pages::Archived;
use super::{CHARACTER, DIRECTORY, Entry, File, LINK, REGULAR, Stat};
use crate::arch::lock::SpinLock;
use crate::calls::errno;
use crate::engine;
use crate::memory::platform::Machine;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::object::{Mapping, Zeroes};
use freehold_kernel::cpio;

const MOST_LINKS: usize = 40;

static NEXT_INODE: AtomicU64 = AtomicU64::new(2);
/// The root; from `Arc::into_raw`, and never given back.
static ROOT: AtomicPtr<Node> = AtomicPtr::new(core::ptr::null_mut());

/// What has a name.
pub struct Node {
    pub inode: u64,
    pub mode: AtomicU32,
    pub parent: SpinLock<Weak<Node>>,
    pub kind: Kind,
}

pub enum Kind {
    Regular(Counted<Mapping<Machine>>),
    Directory(SpinLock<BTreeMap<Vec<u8>, Arc<Node>>>),
    Link(Vec<u8>),
    /// Opened as this file.
    Device(Arc<dyn File>),
}

impl Node {
    fn new(mode: u32, kind: Kind) -> Arc<Node> {
        Arc::new(Node {
            inode: NEXT_INODE.fetch_add(1, Relaxed),
            mode: AtomicU32::new(mode),
            parent: SpinLock::new(Weak::new()),
            kind,
        })
    }

    pub fn directory(mode: u32) -> Arc<Node> {
        Self::new(DIRECTORY | mode & 0o7777, Kind::Directory(SpinLock::new(BTreeMap::new())))
    }

    /// An empty file.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn empty(mode: u32) -> Result<Arc<Node>, Errno> {
        let mapping = Mapping::new(engine(), Zeroes, 0, true).map_err(|_| Errno::ENOMEM)?;
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
        Ok(Self::new(REGULAR | mode & 0o7777, Kind::Regular(mapping)))
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
            Kind::Device(_) => 0,
        };
        let device = if let Kind::Device(file) = &self.kind { file.stat().device } else { 0 };
        Stat { inode: self.inode, mode: self.mode.load(Relaxed), links: 1, size, device }
    }

    /// The entry of a directory.
    ///
    /// # Errors
    ///
    /// ENOENT; ENOTDIR.
    pub fn child(&self, name: &[u8]) -> Result<Arc<Node>, Errno> {
        match &self.kind {
            Kind::Directory(entries) => entries.lock().get(name).cloned().ok_or(Errno::ENOENT),
            _ => Err(errno::ENOTDIR),
        }
    }

    /// Gives `child` a name in this directory.
    ///
    /// # Errors
    ///
    /// ENOTDIR; EEXIST.
    pub fn insert(self: &Arc<Self>, name: &[u8], child: Arc<Node>) -> Result<(), Errno> {
        let Kind::Directory(entries) = &self.kind else { return Err(errno::ENOTDIR) };
        let mut entries = entries.lock();
        if entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        *child.parent.lock() = Arc::downgrade(self);
        entries.insert(name.to_vec(), child);
        Ok(())
    }
}

/// An open node.
pub struct NodeFile(pub Arc<Node>);

impl File for NodeFile {
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let mapping = self.0.mapping().ok_or(errno::EISDIR)?;
        let (mut part, mut done) = ([0; 2048], 0);
        while to.len() > 0 {
            let room = to.len().min(part.len());
            let read = match mapping.read_at(at + done as u64, &mut part[..room]) {
                Err(error) if done == 0 => return Err(error.errno()),
                Ok(bytes) if bytes > 0 => bytes,
                _ => break,
            };
            done += match to.put(&part[..read]) {
                Err(error) if done == 0 => return Err(error),
                put => put.unwrap_or(0),
            };
        }
        Ok(done)
    }

    fn write(&self, at: u64, from: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let mapping = self.0.mapping().ok_or(errno::EISDIR)?;
        let (mut part, mut done) = ([0; 2048], 0);
        while from.len() > 0 {
            let bytes = match from.get(&mut part) {
                Err(error) if done == 0 => return Err(error),
                Ok(bytes) if bytes > 0 => bytes,
                _ => break,
            };
            done += match mapping.write_at(at + done as u64, &part[..bytes]) {
                Err(error) if done == 0 => return Err(error.errno()),
                written => written.unwrap_or(0),
            };
        }
        Ok(done)
    }

    fn stat(&self) -> Stat {
        self.0.stat()
    }

    fn can_seek(&self) -> bool {
        true
    }

    fn mapping(&self) -> Option<&Counted<Mapping<Machine>>> {
        self.0.mapping()
    }

    fn entries(&self, from: u64, f: &mut dyn FnMut(&Entry) -> bool) -> Result<(), Errno> {
        let Kind::Directory(entries) = &self.0.kind else { return Err(errno::ENOTDIR) };
        let up = self.0.parent.lock().upgrade().map_or(self.0.inode, |parent| parent.inode);
        let dots = [(self.0.inode, &b"."[..]), (up, b"..")];
        let entry = |inode, name: &[u8], kind| Entry { inode, name: name.to_vec(), kind };
        let mut all: Vec<Entry> = dots.iter().map(|(inode, name)| entry(*inode, name, 4)).collect();
        for (name, node) in entries.lock().iter() {
            all.push(entry(node.inode, name, (node.mode.load(Relaxed) >> 12) as u8));
        }
        let _ = all.iter().skip(from as usize).all(f);
        Ok(())
    }

    fn node(&self) -> Option<&Arc<Node>> {
        Some(&self.0)
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
    let (directory, name) = lookup_parent(from, path, follow)?;
    match name {
        None => Ok(directory),
        Some(name) => directory.child(&name),
    }
}

/// The directory where a path's last name is, or would be, and that name; `None` where the path ends with
/// a directory itself.
///
/// # Errors
///
/// As [`lookup`].
pub fn lookup_parent(
    from: &Arc<Node>,
    path: &[u8],
    follow: bool,
) -> Result<(Arc<Node>, Option<Vec<u8>>), Errno> {
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    let start = |path: &[u8], here: &Arc<Node>| if path[0] == b'/' { root() } else { here.clone() };
    let split = |path: &[u8]| -> Vec<Vec<u8>> {
        path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).rev().map(<[u8]>::to_vec).collect()
    };
    let (mut here, mut left, mut links) = (start(path, from), split(path), 0);
    while let Some(name) = left.pop() {
        let last = left.is_empty();
        match &*name {
            b"." => continue,
            b".." => {
                let up = here.parent.lock().upgrade();
                here = up.unwrap_or(here);
                continue;
            }
            _ => {}
        }
        let child = match here.child(&name) {
            Ok(child) => child,
            Err(Errno::ENOENT) if last => return Ok((here, Some(name))),
            Err(error) => return Err(error),
        };
        match &child.kind {
            Kind::Link(target) if !last || follow => {
                links += 1;
                if links > MOST_LINKS || target.is_empty() {
                    return Err(errno::ELOOP);
                }
                here = start(target, &here);
                left.extend(split(target));
            }
            Kind::Directory(_) => here = child,
            _ if last => return Ok((here, Some(name))),
            _ => return Err(errno::ENOTDIR),
        }
    }
    Ok((here, None))
}

/// Makes the root file system of an archive, or of a program alone, which is then `/program`.
pub fn unpack(module: &'static [u8]) {
    let root = Node::directory(0o755);
    ROOT.store(Arc::into_raw(root.clone()).cast_mut(), Release);
    if module.starts_with(b"\x7fELF") {
        let program = Node::archived(0o755, module).expect("memory for the first program");
        root.insert(b"program", program).expect("an empty directory");
    }
    add_devices(&root);
    for entry in cpio::entries(module) {
        if let Err(error) = add(&root, &entry) {
            let name = core::str::from_utf8(entry.name).unwrap_or("?");
            crate::arch::report::say!("{name} of the initial file system is left out: {error:?}");
        }
    }
}

/// The devices, in /dev.
fn add_devices(root: &Arc<Node>) {
    let directory = Node::directory(0o755);
    let console = || Node::device(Arc::new(Console));
    let consoles = [(&b"console"[..], console()), (b"tty", console())];
    for (name, node) in devices::all().chain(consoles) {
        directory.insert(name, node).expect("names that differ");
    }
    root.insert(b"dev", directory).expect("a root without devices");
}

fn add(root: &Arc<Node>, entry: &cpio::Entry<'static>) -> Result<(), Errno> {
    let (directory, name) = lookup_parent(root, entry.name, false)?;
    // A directory that is there already.
    let Some(name) = name else { return Ok(()) };
    let node = match entry.mode & 0o170_000 {
        DIRECTORY => Node::directory(entry.mode),
        LINK => Node::link(entry.contents),
        REGULAR => Node::archived(entry.mode, entry.contents)?,
        // Devices are the kernel's own.
        _ => return Ok(()),
    };
    directory.insert(&name, node)
}
