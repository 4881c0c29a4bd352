//! Loop devices: files as block devices (loop(4)).

use super::buffer::UserBuffer;
use super::open::Open;
use super::tree::{Kind, Node};
use super::{BLOCK, CHARACTER, File, Stat};
use crate::arch::cpu::current;
use crate::arch::lock::SpinLock;
use crate::arch::user::{self, UserPtr};
use crate::calls::errno;
use alloc::sync::Arc;
use freehold::error::Errno;

const COUNT: usize = 8;
pub const NAMES: [&[u8]; COUNT] =
    [b"loop0", b"loop1", b"loop2", b"loop3", b"loop4", b"loop5", b"loop6", b"loop7"];

/// The files behind the devices.
static BEHIND: [SpinLock<Option<Arc<Open>>>; COUNT] = [const { SpinLock::new(None) }; COUNT];

const EBUSY: Errno = Errno(16);
const ENXIO: Errno = Errno(6);

const SET_FD: u64 = 0x4c00;
const CLEAR_FD: u64 = 0x4c01;
const SET_STATUS: u64 = 0x4c02;
const GET_STATUS: u64 = 0x4c03;
const SET_STATUS_64: u64 = 0x4c04;
const GET_STATUS_64: u64 = 0x4c05;
const GET_FREE: u64 = 0x4c82;
const BLOCKS: u64 = 0x1260;
const FLUSH: u64 = 0x1261;
const IS_READ_ONLY: u64 = 0x125e;
const SECTOR: u64 = 0x1268;
const BYTES: u64 = 0x8008_1272;

/// /dev/loop-control.
struct Control;

struct Loop(usize);

/// Names and nodes of all of them.
pub fn all() -> impl Iterator<Item = (&'static [u8], Arc<Node>)> {
    let devices = NAMES.iter().enumerate().map(|(n, name)| {
        let kind = Kind::Device(Arc::new(Loop(n)));
        (*name, Node::new(BLOCK | 0o660, kind))
    });
    devices.chain([(&b"loop-control"[..], Node::device(Arc::new(Control)))])
}

impl File for Control {
    fn stat(&self) -> Stat {
        Stat { mode: CHARACTER | 0o660, links: 1, device: 10 << 8 | 237, ..Stat::default() }
    }

    fn ioctl(&self, request: u64, _: u64) -> Result<u64, Errno> {
        if request != GET_FREE {
            return Err(errno::ENOSYS);
        }
        let free = BEHIND.iter().position(|file| file.lock().is_none());
        free.map(|n| n as u64).ok_or(Errno::ENOSPC)
    }
}

impl Loop {
    fn file(&self) -> Result<Arc<Open>, Errno> {
        BEHIND[self.0].lock().clone().ok_or(ENXIO)
    }

    fn bind(&self, descriptor: u64) -> Result<u64, Errno> {
        let open = current().process().files.get(descriptor)?;
        open.file.mapping().ok_or(Errno::EINVAL)?;
        let mut behind = BEHIND[self.0].lock();
        if behind.is_some() {
            return Err(EBUSY);
        }
        *behind = Some(open);
        Ok(0)
    }

    fn size(&self) -> u64 {
        self.file().map_or(0, |open| open.file.stat().size & !511)
    }

    /// `struct loop_info`, or `loop_info64`: the number is all that is known of it.
    fn put_status(&self, at: u64, bytes: usize, number_at: usize) -> Result<u64, Errno> {
        self.file()?;
        let mut status = [0; 232];
        status[number_at..number_at + 4].copy_from_slice(&(self.0 as u32).to_le_bytes());
        user::copy_out(at, &status[..bytes]).map(|()| 0)
    }
}

impl File for Loop {
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        to.shorten(self.size().saturating_sub(at) as usize);
        if to.len() == 0 { Ok(0) } else { self.file()?.read(Some(at), to) }
    }

    fn write(&self, at: u64, from: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        if at >= self.size() && from.len() > 0 {
            return Err(Errno::ENOSPC);
        }
        from.shorten(self.size().saturating_sub(at) as usize);
        self.file()?.write(Some(at), from)
    }

    fn stat(&self) -> Stat {
        Stat { mode: BLOCK | 0o660, links: 1, device: 7 << 8 | self.0 as u64, ..Stat::default() }
    }

    fn can_seek(&self) -> bool {
        true
    }

    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        match request {
            SET_FD => self.bind(argument),
            CLEAR_FD => {
                let before = BEHIND[self.0].lock().take();
                before.map(|_| 0).ok_or(ENXIO)
            }
            SET_STATUS | SET_STATUS_64 => self.file().map(|_| 0),
            GET_STATUS => self.put_status(argument, 168, 0),
            GET_STATUS_64 => self.put_status(argument, 232, 40),
            BYTES => UserPtr::<u64>::new(argument).write(&self.size()).map(|()| 0),
            BLOCKS => UserPtr::<u64>::new(argument).write(&(self.size() / 512)).map(|()| 0),
            SECTOR => UserPtr::<u32>::new(argument).write(&512).map(|()| 0),
            IS_READ_ONLY => UserPtr::<u32>::new(argument).write(&0).map(|()| 0),
            FLUSH => Ok(0),
            _ => Err(errno::ENOTTY),
        }
    }
}
