//! The open file of a tree node that is a regular file or a directory, and of any node that is opened with
//! O_PATH. `files/tree.rs` has the nodes, and `files/open.rs` has the position and the flags.
//!
//! The engine holds the contents of a regular file in a `Mapping`: read, write and mmap use the same pages.
//! `Open` calls `write` with the lock of the contents held ([`File::changing`]). No page fault takes that
//! lock, because the program's buffer may be a mapping of the same file. A position in a directory is the
//! number of an entry: first `.` and `..`, then the names in order. A [`Listing`](super::tree::Listing)
//! chooses its positions. The programs `files.c` and `names.c` of the tests check contents, holes and
//! directories.

use crate::errno;
use crate::files::access::Writing;
use crate::files::tree::{Kind, Node};
use crate::files::{Entry, File, Stat, buffer::UserBuffer};
use crate::platform::Machine;
use crate::sched::{checkpoint, mutex::Mutex};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound::{Excluded, Unbounded};
use core::sync::atomic::Ordering::Relaxed;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file::Mapping;
use freehold::{PAGE_SIZE, PageIndex};

/// Number of entries before the names of a directory: `.` and `..`.
const DOTS: u64 = 2;

/// An open node.
pub struct NodeFile(Arc<Node>, Option<Arc<Writing>>);

impl NodeFile {
    /// Opens a node. The caller has checked the node's kind; with O_PATH every kind is allowed.
    pub fn new(node: Arc<Node>) -> Self {
        NodeFile(node, None)
    }

    /// Opens a regular file for writing.
    pub fn for_writing(node: Arc<Node>, writing: Arc<Writing>) -> Self {
        NodeFile(node, Some(writing))
    }
}

/// Maximum number of entries that are read in one section of a directory's lock.
const PART: usize = 64;

impl File for NodeFile {
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let mapping = self.0.mapping().ok_or(errno::EISDIR)?;
        to.put_parts(|done, part| {
            let from = at.saturating_add(done as u64);
            match self.hole_at(mapping, from, part.len()) {
                bytes @ 1.. => {
                    part[..bytes].fill(0);
                    Ok(bytes)
                }
                0 => mapping.read_at(from, part).map_err(|error| error.errno()),
            }
        })
    }

    fn write(&self, at: u64, from: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let mapping = self.0.mapping().ok_or(errno::EISDIR)?;
        self.0.admit_size(mapping.size().max(at.saturating_add(from.len() as u64)))?;
        let (mut part, mut done) = ([0; 2048], 0);
        while from.len() > 0 {
            let bytes = match from.get(&mut part) {
                Err(error) if done == 0 => return Err(error),
                Ok(bytes) if bytes > 0 => bytes,
                _ => break,
            };
            done += match write_at(mapping, at.saturating_add(done as u64), &part[..bytes]) {
                Err(error) if done == 0 => return Err(error),
                Ok(bytes) if bytes > 0 => bytes,
                _ => break,
            };
        }
        self.0.touch();
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

    fn writing(&self) -> Option<&Arc<Writing>> {
        self.1.as_ref()
    }

    fn changing(&self) -> Option<&Mutex> {
        self.0.mapping().map(|_| &self.0.changing)
    }

    fn entries(&self, from: u64, f: &mut dyn FnMut(&Entry) -> bool) -> Result<(), Errno> {
        if !self.0.is_directory() {
            return Err(errno::ENOTDIR);
        }
        let up = self.0.parent.lock().upgrade().map_or(self.0.inode, |parent| parent.inode);
        let dots = [(self.0.inode, &b"."[..]), (up, b"..")];
        let entry = |inode, next, name: &[u8], kind| Entry { inode, next, name: name.to_vec(), kind };
        let dots = (1..).zip(dots).map(|(next, (inode, name))| entry(inode, next, name, 4));
        let mut part: Vec<Entry> = dots.collect();
        while let Some(last) = part.last() {
            // The caller already has the entries up to position `from`.
            if !part.iter().filter(|entry| entry.next > from).all(&mut *f) {
                break;
            }
            checkpoint()?;
            part = match &self.0.kind {
                Kind::Directory(entries) => {
                    let after = if last.next > DOTS { Excluded(&last.name[..]) } else { Unbounded };
                    let entries = entries.lock();
                    let next = (last.next + 1..).zip(entries.range::<[u8], _>((after, Unbounded)));
                    let kind = |node: &Node| (node.mode.load(Relaxed) >> 12) as u8;
                    let next = next
                        .map(|(next, (name, named))| entry(named.node.inode, next, name, kind(&named.node)));
                    next.take(PART).collect()
                }
                Kind::Listing(listing) => {
                    let names = listing.names(last.next.max(from) - DOTS)?.into_iter();
                    let inode = self.0.inode + 1;
                    names.map(|name| entry(inode, DOTS + name.next, &name.name, name.kind)).collect()
                }
                _ => Vec::new(),
            };
        }
        Ok(())
    }

    fn as_any(&self) -> Option<&dyn core::any::Any> {
        Some(self)
    }
}

/// Writes to the contents of a file at an offset. Returns the number of bytes. The file's size is limited
/// only by memory.
///
/// # Errors
///
/// ENOSPC if memory runs out, EFBIG, EPERM if the file is sealed.
pub fn write_at(mapping: &Mapping<Machine>, at: u64, data: &[u8]) -> Result<usize, Errno> {
    if at > i64::MAX as u64 - data.len() as u64 {
        return Err(errno::EFBIG);
    }
    mapping.write_at(at, data).map_err(|error| match error.errno() {
        Errno::ENOMEM => Errno::ENOSPC,
        error => error,
    })
}

impl NodeFile {
    /// Returns how many of the next `room` bytes are in an absent page that reads as zeroes; 0 if the page is
    /// present. A read of these bytes need not allocate the page.
    fn hole_at(&self, mapping: &Mapping<Machine>, at: u64, room: usize) -> usize {
        let is_other =
            self.0.archived_bytes.is_some() || mapping.huge_page_size().is_some() || mapping.is_secret();
        if is_other || mapping.has_data(page_at(at)) {
            return 0;
        }
        let in_page = PAGE_SIZE - at % PAGE_SIZE;
        in_page.min(mapping.size().saturating_sub(at)).min(room as u64) as usize
    }
}

/// Returns the index of the page with this offset.
fn page_at(at: u64) -> PageIndex {
    PageIndex::new(at / PAGE_SIZE)
}

/// Returns the node of an open file, or `None` if the file is no [`NodeFile`].
pub fn node_of(file: &dyn File) -> Option<&Arc<Node>> {
    Some(&file.as_any()?.downcast_ref::<NodeFile>()?.0)
}
