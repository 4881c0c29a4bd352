//! The devices of memory: null, zero, full, random.

use crate::arch::random;
use crate::files::buffer::UserBuffer;
use crate::files::tree::Node;
use crate::files::{CHARACTER, File, Stat};
use crate::platform::{Machine, engine};
use crate::process::userfault;
use alloc::sync::Arc;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file::Mapping;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Null,
    Zero,
    Full,
    Random,
}

struct Device {
    kind: Kind,
    minor: u64,
    /// What mmap maps of it: new memory.
    zeroes: Option<Counted<Mapping<Machine>>>,
}

/// Names and nodes of all of them.
pub fn all() -> impl Iterator<Item = (&'static [u8], Arc<Node>)> {
    let names: [(&'static [u8], Kind, u64); 5] = [
        (b"null", Kind::Null, 3),
        (b"zero", Kind::Zero, 5),
        (b"full", Kind::Full, 7),
        (b"random", Kind::Random, 8),
        (b"urandom", Kind::Random, 9),
    ];
    let made = [(&b"userfaultfd"[..], Node::device(Arc::new(userfault::Maker)))];
    let devices = names.into_iter().map(|(name, kind, minor)| {
        let zeroes = if kind == Kind::Zero { Mapping::zeroes(engine()).ok() } else { None };
        (name, Node::device(Arc::new(Device { kind, minor, zeroes })))
    });
    devices.chain(made)
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
