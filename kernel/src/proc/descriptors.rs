//! The open files of a thread: the folders /proc/PID/fd and /proc/PID/fdinfo. A lookup reads the table of
//! descriptors (`files/table.rs`). The link that a lookup returns keeps no file open, because an open link
//! may be in flight in the queue of the socket to which it leads. Names have Linux's forms, for example
//! `pipe:[NUMBER]` and ` (deleted)`. The program `names.c` of the tests checks the links of deleted files,
//! and `sockets.c` those of sockets.

use crate::files::tree::{self, Jump, Kind, Listed, Listing, Node};
use crate::files::{File, Stat, node::node_of, open::Open, socket::Socket};
use crate::proc::subject::Subject;
use crate::proc::text::{LINKED, PLAIN, number, text};
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;

/// The folder fd or, with `infos`, the folder fdinfo.
pub struct Folder {
    /// The thread that has the descriptors.
    pub of: Subject,
    pub infos: bool,
}

/// A link to an open file.
struct Opened(Weak<Open>);

/// Returns the open file.
///
/// # Errors
///
/// ENOENT if the file was closed.
fn still_open(open: &Weak<Open>) -> Result<Arc<Open>, Errno> {
    open.upgrade().ok_or(Errno::ENOENT)
}

impl Jump for Opened {
    fn text(&self) -> Result<Vec<u8>, Errno> {
        Ok(name_of(&*still_open(&self.0)?))
    }

    fn node(&self) -> Result<Arc<Node>, Errno> {
        let open = still_open(&self.0)?;
        if let Some(node) = node_of(&*open.file) {
            return Ok(node.clone());
        }
        // A file without a node in the tree is opened directly, except for a socket.
        let stat = open.file.stat();
        let file: Arc<dyn File> =
            if Socket::of(&open).is_some() { Arc::new(OnlyStat(stat)) } else { open.file.clone() };
        Ok(Node::new(stat.mode, Kind::Device(file)))
    }
}

/// The place of a socket, which cannot be opened.
struct OnlyStat(Stat);

impl File for OnlyStat {
    fn stat(&self) -> Stat {
        self.0
    }
}

/// Returns the name of an open file.
fn name_of(open: &Open) -> Vec<u8> {
    match node_of(&*open.file) {
        Some(node) => path_of(node, &open.name),
        None if open.name.ends_with(b":") => {
            let inode = open.file.stat().inode;
            [&*open.name, format!("[{inode}]").as_bytes()].concat()
        }
        None => open.name.clone(),
    }
}

/// Returns the path by which a node was opened, if the path still leads to the node. Otherwise returns the
/// node's current path. For a deleted node, returns the path by which it was opened, followed by
/// ` (deleted)`.
fn path_of(node: &Arc<Node>, opened: &[u8]) -> Vec<u8> {
    let found = tree::lookup(&tree::root(), opened, true);
    let path = tree::path_of(node);
    match found {
        Ok(found) if Arc::ptr_eq(&found, node) => opened.to_vec(),
        _ if path.ends_with(DELETED) && !opened.ends_with(DELETED) => [opened, DELETED].concat(),
        _ => path,
    }
}

const DELETED: &[u8] = b" (deleted)";

impl Listing for Folder {
    fn search(&self) -> Result<(), Errno> {
        // On Linux, only fdinfo makes this check.
        if self.infos { self.of.exists() } else { Ok(()) }
    }

    fn child(&self, name: &[u8]) -> Result<Arc<Node>, Errno> {
        let descriptor = number(name).ok().and_then(|n| u64::try_from(n).ok()).ok_or(Errno::ENOENT)?;
        let thread = self.of.process.thread(self.of.tid()).ok_or(Errno::ENOENT)?;
        let open = thread.files.get_any(descriptor).map_err(|_| Errno::ENOENT)?;
        if !self.infos {
            return Ok(Node::jump(Box::new(Opened(Arc::downgrade(&open)))));
        }
        let (of, open) = (self.of.clone(), Arc::downgrade(&open));
        Ok(text(move || {
            of.process.thread(of.tid()).ok_or(Errno::ENOENT)?;
            let open = still_open(&open)?;
            let (position, flags) = (open.position(), open.flags.load(Relaxed));
            Ok(format!("pos:\t{position}\nflags:\t0{flags:o}\nmnt_id:\t1\n").into_bytes())
        }))
    }

    fn names(&self, from: u64) -> Result<Vec<Listed>, Errno> {
        /// Number of names that one call returns.
        const AT_ONCE: usize = 64;
        let kind = if self.infos { PLAIN } else { LINKED };
        // The position of a descriptor is its number, so that a program which closes descriptors while it
        // reads the folder misses none.
        let listed = |n| Listed { next: n as u64 + 1, name: format!("{n}").into_bytes(), kind };
        self.of.exists().map_err(|_| Errno::ENOENT)?;
        let Some(thread) = self.of.process.thread(self.of.tid()) else { return Ok(Vec::new()) };
        Ok(thread.files.numbers(from as usize, AT_ONCE).into_iter().map(listed).collect())
    }
}
