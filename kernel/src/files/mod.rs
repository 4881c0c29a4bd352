//! Files: everything to which a descriptor can refer.
//!
//! | file | what |
//! | --- | --- |
//! | here | [`File`]: the interface of everything that a descriptor can refer to |
//! | [`open`] | an open file: position and flags, which descriptors share |
//! | [`table`] | the descriptors of a thread |
//! | [`buffer`] | the memory of a program that a call reads or writes |
//! | [`tree`] | the root file system: names, directories, files whose contents Freehold holds |
//! | [`unpack`] | the contents of the root file system at the start |
//! | [`node`] | an open node of the tree |
//! | [`access`] | files that are open for writing, and files that are executed |
//! | [`pages`] | file contents that are read from the archive on demand |
//! | [`names`] | changes of the tree: removal, renaming, hard links |
//! | [`attributes`] | extended attributes |
//! | [`console`], [`devices`], [`pipe`], [`pipe_queue`], [`fifo`], [`socket`] | files without contents in the tree |
//! | [`event`], [`timer`], [`epoll`] | descriptors for events |
//!
//! `calls/` has the system calls, and `process/` and `proc/` have further kinds of files. No spin lock is
//! held while bytes are copied from or to a program, because the copy may sleep. No spin lock is held while a
//! file is dropped, because the drop may be slow and may take other locks. Sleeping locks are taken in this
//! order: the position of an open file (`open.rs`), then the contents of the file ([`File::changing`]).
//!
//! A new kind implements [`File`] in a file beside these. If threads can wait for the file, the kind
//! overrides `ready` and `ready_key`, and wakes the key at each change. Most calls that make a file without a
//! path are in `calls/events.rs`.

pub mod access;
pub mod attributes;
pub mod buffer;
pub mod console;
pub mod devices;
pub mod epoll;
pub mod event;
pub mod fifo;
pub mod names;
pub mod node;
pub mod open;
pub mod pages;
pub mod pipe;
pub mod pipe_queue;
pub mod socket;
pub mod table;
pub mod timer;
pub mod tree;
pub mod unpack;

use crate::errno;
use crate::platform::Machine;
use crate::sched::mutex::Mutex;
use alloc::sync::Arc;
use alloc::vec::Vec;
use buffer::UserBuffer;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file::Mapping;

/// The fields of `stat` that differ between files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stat {
    /// Number of the file, unique among files of its kind.
    pub inode: u64,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub links: u64,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of the allocated pages.
    pub allocated: u64,
    /// Major and minor number of a device, as in `st_rdev`.
    pub device: u64,
    /// The number of the user in the lower half, and of the group in the upper half.
    pub owner: u64,
    /// Times of access, modification and status change, in nanoseconds.
    pub times: [u64; 3],
}

/// An entry of a directory.
pub struct Entry {
    pub inode: u64,
    /// The position in the directory after this entry.
    pub next: u64,
    pub name: Vec<u8>,
    /// The type, as in `d_type`.
    pub kind: u8,
}

/// The interface of everything that a descriptor can refer to. A file has no position and no flags;
/// [`open::Open`] has them.
///
/// `read` and `write` may sleep, with [`wait`](crate::sched::wait) and [`Sleep::Interruptible`]; with
/// `nonblock` they fail with EAGAIN instead. The default of each function suits a file that does not have the
/// feature.
///
/// [`Sleep::Interruptible`]: crate::sched::wait::Sleep::Interruptible
pub trait File: Send + Sync {
    /// Reads from offset `at`, if files of this kind have positions. Returns the number of bytes.
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        let _ = (at, to, nonblock);
        Err(Errno::EINVAL)
    }

    /// Writes at offset `at`, if files of this kind have positions. Returns the number of bytes.
    fn write(&self, at: u64, from: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        let _ = (at, from, nonblock);
        Err(Errno::EINVAL)
    }

    /// Returns the fields of `stat`.
    fn stat(&self) -> Stat;

    /// Returns true if files of this kind have positions.
    fn can_seek(&self) -> bool {
        false
    }

    /// Returns true if pread and pwrite may name an offset in a file of this kind.
    fn takes_offsets(&self) -> bool {
        self.can_seek()
    }

    /// Returns the pages that read, write and mmap share, if the file is memory.
    fn mapping(&self) -> Option<&Counted<Mapping<Machine>>> {
        None
    }

    /// Returns the lock under which calls change the contents or the size, if the file has such a lock.
    fn changing(&self) -> Option<&Mutex> {
        None
    }

    /// Returns the count of the file as open for writing, if the file is counted. Mappings keep a reference.
    fn writing(&self) -> Option<&Arc<access::Writing>> {
        None
    }

    /// Passes the entries of a directory to `f`, beginning at position `from`, until `f` returns false.
    fn entries(&self, from: u64, f: &mut dyn FnMut(&Entry) -> bool) -> Result<(), Errno> {
        let _ = (from, f);
        Err(errno::ENOTDIR)
    }

    /// Performs an ioctl that is special to files of this kind.
    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        let _ = (request, argument);
        Err(errno::ENOTTY)
    }

    /// Returns the events for which the file is ready: POLLIN, POLLOUT, POLLHUP and so on.
    fn ready(&self) -> u32 {
        READABLE | WRITABLE
    }

    /// Returns true if the file may be polled even without O_NONBLOCK.
    fn polls_blocking(&self) -> bool {
        true
    }

    /// Returns the key that is woken when [`ready`](Self::ready) changes.
    fn ready_key(&self) -> Option<crate::sched::wait::Key> {
        None
    }

    /// Returns the time, in nanoseconds since the start, at which a waiting thread must call
    /// [`ready`](Self::ready) again even if the key was not woken.
    fn ready_at(&self) -> u64 {
        u64::MAX
    }

    /// Counts the events that made the file ready. epoll uses the count to detect edges.
    fn changes(&self) -> u64 {
        0
    }

    /// Returns the PID of the process that the file represents, if the file is a pidfd.
    fn process(&self) -> Option<u32> {
        None
    }

    /// Returns the sum of [`Open::left`](open::Open::left) of the files in flight to this file.
    fn left_in_flight(&self, _survey: u64, _depth: u32) -> u64 {
        0
    }

    /// Returns the concrete type, for calls on one kind of file: `as_any().downcast_ref()`.
    fn as_any(&self) -> Option<&dyn core::any::Any> {
        None
    }
}

/// The inode number of all files that have no node and no other number, as on Linux.
pub const NO_INODE: u64 = 1;

/// POLLIN.
pub const READABLE: u32 = 1;
/// POLLOUT.
pub const WRITABLE: u32 = 4;
/// POLLERR.
pub const FAILED: u32 = 8;
/// POLLHUP.
pub const HUNG_UP: u32 = 16;

/// File types in `st_mode`.
pub const REGULAR: u32 = 0o100_000;
pub const DIRECTORY: u32 = 0o040_000;
pub const LINK: u32 = 0o120_000;
pub const CHARACTER: u32 = 0o020_000;
pub const FIFO: u32 = 0o010_000;
pub const SOCKET: u32 = 0o140_000;
