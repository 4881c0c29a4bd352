//! The folder /dev: the memory devices null, zero, full, random and urandom, the names of the console
//! (`files/console.rs`), links to the standard descriptors, and the folder shm. Files of memory devices have
//! no state and no lock. `start.rs` adds the device of userfaultfd, because it belongs to a later layer. A
//! new memory device needs a line in `all`; a new behaviour also needs a `Kind`.

use crate::arch::random;
use crate::files::{CHARACTER, File, Stat, buffer::UserBuffer, console::Console, tree::Node};
use crate::platform::{Machine, engine};
use alloc::sync::Arc;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file::Mapping;

/// The behaviour of a memory device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Reads return no bytes; writes discard their bytes.
    Null,
    /// Reads return zeroes.
    Zero,
    /// Reads return zeroes; writes fail with ENOSPC.
    Full,
    /// Reads return pseudorandom bytes.
    Random,
}

/// The file of a memory device.
struct Device {
    kind: Kind,
    /// The minor number of the device; the major number is 1.
    minor: u64,
    /// The memory that mmap of `zero` maps: new pages. `None` for all other devices.
    zeroes: Option<Counted<Mapping<Machine>>>,
}

/// Returns the names and nodes of all memory devices.
fn all() -> impl Iterator<Item = (&'static [u8], Arc<Node>)> {
    let names: [(&'static [u8], Kind, u64); 5] = [
        (b"null", Kind::Null, 3),
        (b"zero", Kind::Zero, 5),
        (b"full", Kind::Full, 7),
        (b"random", Kind::Random, 8),
        (b"urandom", Kind::Random, 9),
    ];
    names.into_iter().map(|(name, kind, minor)| {
        let zeroes = if kind == Kind::Zero { Mapping::zeroes(engine()).ok() } else { None };
        (name, Node::device(Arc::new(Device { kind, minor, zeroes })))
    })
}

impl File for Device {
    fn read(&self, _: u64, to: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        if self.kind == Kind::Null {
            return Ok(0);
        }
        to.put_parts(|_, part| {
            if self.kind == Kind::Random {
                random::fill(part);
            }
            Ok(part.len())
        })
    }

    fn write(&self, _: u64, from: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        if self.kind == Kind::Full { Err(Errno::ENOSPC) } else { Ok(from.len()) }
    }

    fn stat(&self) -> Stat {
        let device = 1 << 8 | self.minor;
        Stat { inode: self.minor, mode: CHARACTER | 0o666, links: 1, device, ..Stat::default() }
    }

    fn can_seek(&self) -> bool {
        true
    }

    fn mapping(&self) -> Option<&Counted<Mapping<Machine>>> {
        self.zeroes.as_ref()
    }
}

/// Makes the folder /dev. `other` is the name and the node of the device that a later layer adds.
pub fn folder(other: (&'static [u8], Arc<Node>)) -> Arc<Node> {
    let directory = Node::directory(0o755);
    let console = || Node::device(Arc::new(Console));
    let consoles = [(&b"console"[..], console()), (b"tty", console()), (b"ttyS0", console())];
    for (name, node) in all().chain(consoles).chain([other]) {
        directory.insert(name, node).expect("names that differ");
    }
    let links = [
        (&b"fd"[..], &b"/proc/self/fd"[..]),
        (b"stdin", b"fd/0"),
        (b"stdout", b"fd/1"),
        (b"stderr", b"fd/2"),
    ];
    for (name, target) in links {
        directory.insert(name, Node::link(target)).expect("names that differ");
    }
    directory.insert(b"shm", Node::directory(0o1777)).expect("a name that differs");
    directory
}
