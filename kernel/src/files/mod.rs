//! Files, as descriptors name them.
//!
//! | file | what |
//! | --- | --- |
//! | here | [`File`]: what may stand behind a descriptor |
//! | [`open`] | an open file: position and flags, which descriptors share |
//! | [`table`] | the descriptors of a process |
//! | [`buffer`] | a program's memory that a call reads into or writes from |
//! | [`tree`] | the root file system: names, directories, contents that are Freehold's files |
//! | [`node`] | a node of the tree, opened |
//! | [`pages`] | contents that come from the archive as they are touched |
//! | [`names`] | changes of the tree: removing, renaming, hard links |
//! | [`console`], [`devices`], [`pipe`], [`socket`] | files that are not of the tree's memory |
//! | [`event`], [`timer`], [`epoll`] | what programs wait for by descriptor |

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
pub mod socket;
pub mod table;
pub mod timer;
pub mod tree;

use crate::errno;
use crate::platform::Machine;
use crate::sched::mutex::Mutex;
use alloc::vec::Vec;
use buffer::UserBuffer;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file::Mapping;

/// What of `stat` differs between files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stat {
    pub inode: u64,
    /// Type and permissions, as `st_mode` has them.
    pub mode: u32,
    pub links: u64,
    pub size: u64,
    /// Bytes that it takes, in whole pages.
    pub allocated: u64,
    /// Of a device: major and minor number as `st_rdev` has them.
    pub device: u64,
    /// User, and group in the upper half.
    pub owner: u64,
    /// When it was read, written and changed, in nanoseconds.
    pub times: [u64; 3],
}

/// An entry of a directory.
pub struct Entry {
    pub inode: u64,
    pub name: Vec<u8>,
    /// `d_type`.
    pub kind: u8,
}

/// What may stand behind a descriptor. It has no position: [`open::Open`] has.
///
/// Calls may sleep, with [`wait`](crate::sched::wait) by [`Sleep::Interruptible`]; with `nonblock` they answer
/// EAGAIN instead.
///
/// [`Sleep::Interruptible`]: crate::sched::wait::Sleep::Interruptible
pub trait File: Send + Sync {
    /// Reads from `at`, where files have positions; returns how many bytes.
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        let _ = (at, to, nonblock);
        Err(Errno::EINVAL)
    }

    /// Writes; as `read`.
    fn write(&self, at: u64, from: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        let _ = (at, from, nonblock);
        Err(Errno::EINVAL)
    }

    fn stat(&self) -> Stat;

    /// Whether there are positions.
    fn can_seek(&self) -> bool {
        false
    }

    /// The pages that read, write and mmap share, if it is memory.
    fn mapping(&self) -> Option<&Counted<Mapping<Machine>>> {
        None
    }

    /// What calls hold that change its contents or its size, if those exclude each other.
    fn changing(&self) -> Option<&Mutex> {
        None
    }

    /// Entries of a directory from the `from`th on, each by `f` until that says false.
    fn entries(&self, from: u64, f: &mut dyn FnMut(&Entry) -> bool) -> Result<(), Errno> {
        let _ = (from, f);
        Err(errno::ENOTDIR)
    }

    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        let _ = (request, argument);
        Err(errno::ENOTTY)
    }

    /// What of POLLIN, POLLOUT, POLLHUP and so on holds now.
    fn ready(&self) -> u32 {
        READABLE | WRITABLE
    }

    /// Whether it may be polled by one who has not said that reads shall not wait.
    fn polls_blocking(&self) -> bool {
        true
    }

    /// The key that is woken when [`ready`](Self::ready) changes.
    fn ready_key(&self) -> Option<crate::sched::wait::Key> {
        None
    }

    /// When to look at [`ready`](Self::ready) again though nobody wakes its key, in nanoseconds.
    fn ready_at(&self) -> u64 {
        u64::MAX
    }

    /// How often something came that made it ready: edges, for epoll.
    fn changes(&self) -> u64 {
        0
    }

    /// The process that it stands for.
    fn process(&self) -> Option<u32> {
        None
    }

    /// What it is beyond a file, for calls that want just that: `as_any().downcast_ref()`.
    fn as_any(&self) -> Option<&dyn core::any::Any> {
        None
    }
}

/// POLLIN.
pub const READABLE: u32 = 1;
/// POLLOUT.
pub const WRITABLE: u32 = 4;
/// POLLERR.
pub const FAILED: u32 = 8;
/// POLLHUP.
pub const HUNG_UP: u32 = 16;

/// `st_mode`: the types.
pub const REGULAR: u32 = 0o100_000;
pub const DIRECTORY: u32 = 0o040_000;
pub const LINK: u32 = 0o120_000;
pub const CHARACTER: u32 = 0o020_000;
pub const FIFO: u32 = 0o010_000;
pub const SOCKET: u32 = 0o140_000;
