//! userfaultfd (ioctl_userfaultfd(2)): a program serves page faults of its own memory, by messages and
//! requests. The engine implements faults, messages and fills; this file decodes the requests and encodes the
//! messages.
//!
//! The system call (`calls/events.rs`) and the device /dev/userfaultfd ([`Maker`]) make a file [`Fault`],
//! which has no context of the engine until the request UFFDIO_API. A spin lock guards the reference to the
//! context. Requests use a copy of the reference and may sleep. A request that stops before its end stores
//! the number of bytes that it completed ([`answer`]). The program `faults.c` of the tests checks this file.
//!
//! A new request needs its number and an arm in `Fault::ioctl`. A new message of the engine needs an arm in
//! [`words`].

use crate::arch::lock::SpinLock;
use crate::errno;
use crate::files::{CHARACTER, FAILED, File, NO_INODE, READABLE, Stat, buffer::UserBuffer, open::Open};
use crate::platform::user::{self, UserPtr};
use crate::platform::{Machine, key};
use crate::sched::{current, wait::Key};
use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::counted::{Counted, Weak};
use freehold::error::{Errno, UffdError, UffdReadError};
use freehold::space::AddressSpace;
use freehold::uffd::{
    FaultReason, Features, FillMode, Message, MoveMode, ProtectMode, RegisterMode, UffdConfig, Userfaultfd,
};
use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK, O_RDONLY};

/// The version of the interface.
const API: u64 = 0xaa;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const UFFDIO_WAKE: u64 = 0x8010_aa02;
const UFFDIO_COPY: u64 = 0xc028_aa03;
const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
const UFFDIO_MOVE: u64 = 0xc028_aa05;
const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;
const UFFDIO_CONTINUE: u64 = 0xc020_aa07;
const UFFDIO_POISON: u64 = 0xc020_aa08;
/// The request of /dev/userfaultfd that makes a new userfaultfd.
pub const NEW: u64 = 0xaa00;
/// The requests that UFFDIO_API reports: API, REGISTER, UNREGISTER.
const IOCTLS: u64 = 1 << 0x3f | 3;
/// The flag UFFD_USER_MODE_ONLY.
const USER_MODE_ONLY: u32 = 1;
/// Maximum bytes that one step of a fill copies: the size of a huge page.
const MAX_STEP: u64 = 2 << 20;
/// Size of a message in bytes.
const MESSAGE: usize = 32;

/// A context of the engine.
type Handle = Arc<Userfaultfd<Machine>>;

/// The file of a userfaultfd.
pub struct Fault {
    /// The address space whose faults are served. The file does not keep the space alive.
    space: Weak<AddressSpace<Machine>>,
    /// The flags of the call that made the file. Descriptors for the faults of children have the same flags.
    flags: u32,
    /// The engine's context. Made by UFFDIO_API.
    handle: SpinLock<Option<Handle>>,
}

/// Makes a userfaultfd for the calling process's memory. Returns its descriptor.
///
/// # Errors
///
/// EINVAL if the flags are invalid; EMFILE.
pub fn open(flags: u32) -> Result<u64, Errno> {
    if flags & !(O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY) != 0 {
        return Err(Errno::EINVAL);
    }
    let fault = Fault { space: Counted::downgrade(current().space()), flags, handle: SpinLock::new(None) };
    add(fault)
}

/// Adds the file to the caller's descriptors. Returns the descriptor.
fn add(fault: Fault) -> Result<u64, Errno> {
    let flags = fault.flags;
    let open = Open::new(Arc::new(fault), O_RDONLY | flags & O_NONBLOCK, b"anon_inode:[userfaultfd]");
    current().files.add(open, 0, flags & O_CLOEXEC != 0)
}

impl Fault {
    /// Returns the context. Fails with EINVAL before UFFDIO_API.
    fn handle(&self) -> Result<Handle, Errno> {
        self.handle.lock().clone().ok_or(Errno::EINVAL)
    }

    /// Performs UFFDIO_API: checks the version, and sets the features.
    fn begin(&self, at: u64) -> Result<u64, Errno> {
        let place = UserPtr::<[u64; 3]>::new(at);
        let [api, wanted, _] = place.read()?;
        let features = Features::from_bits(wanted).filter(|_| api == API);
        let Some(features) = features.filter(|_| self.handle.lock().is_none()) else {
            place.write(&[0; 3])?;
            return Err(Errno::EINVAL);
        };
        let space = self.space.upgrade().ok_or(Errno::ENOMEM)?;
        let config = UffdConfig::new().features(features).user_mode_only(self.flags & USER_MODE_ONLY != 0);
        let handle = Userfaultfd::new(&space, config).map_err(|_| Errno::ENOMEM)?;
        place.write(&[API, Features::all().bits(), IOCTLS])?;
        let unused = self.handle.lock().replace(Arc::new(handle));
        drop(unused);
        Ok(0)
    }

    /// Performs UFFDIO_REGISTER.
    fn register(&self, at: u64) -> Result<u64, Errno> {
        let [start, len, mode] = UserPtr::<[u64; 3]>::new(at).read()?;
        let mode = RegisterMode::from_bits(mode).ok_or(Errno::EINVAL)?;
        let ioctls = self.handle()?.register(start, len, mode).map_err(|error| error.errno())?;
        UserPtr::<u64>::new(at + 24).write(&ioctls.bits()).map(|()| 0)
    }

    /// Performs UFFDIO_COPY. The request has the destination, the source, the length, the mode, and room for
    /// the answer.
    fn copy(&self, at: u64) -> Result<u64, Errno> {
        let [to, from, len, mode] = UserPtr::<[u64; 4]>::new(at).read()?;
        let mode = FillMode::from_bits(mode).ok_or(Errno::EINVAL)?;
        let handle = self.handle()?;
        if from.checked_add(len).is_none() || len == 0 || len % 4096 != 0 {
            return Err(Errno::EINVAL);
        }
        let room = len.min(MAX_STEP) as usize;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(room).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(room, 0);
        answer(at + 32, len, |done| {
            let part = &mut bytes[..(len - done).min(MAX_STEP) as usize];
            user::copy_in(from + done, part).map_err(|_| Err(Errno::EFAULT))?;
            handle.copy(to.wrapping_add(done), part, mode).map_err(Ok)
        })
    }

    /// Performs a request that consists of a range, a mode, and room for the answer. `f` gets the context,
    /// the rest of the range and the mode, and returns the number of bytes that it completed.
    fn fill(
        &self,
        at: u64,
        f: impl Fn(&Userfaultfd<Machine>, u64, u64, FillMode) -> Result<u64, UffdError>,
    ) -> Result<u64, Errno> {
        let [start, len, mode] = UserPtr::<[u64; 3]>::new(at).read()?;
        let mode = FillMode::from_bits(mode).ok_or(Errno::EINVAL)?;
        let handle = self.handle()?;
        answer(at + 24, len, |done| f(&handle, start.wrapping_add(done), len - done, mode).map_err(Ok))
    }

    /// Performs UFFDIO_MOVE.
    fn move_pages(&self, at: u64) -> Result<u64, Errno> {
        let [to, from, len, mode] = UserPtr::<[u64; 4]>::new(at).read()?;
        let mode = MoveMode::from_bits(mode).ok_or(Errno::EINVAL)?;
        let handle = self.handle()?;
        answer(at + 32, len, |done| {
            let (to, from) = (to.wrapping_add(done), from.wrapping_add(done));
            handle.move_pages(to, from, len - done, mode).map_err(Ok)
        })
    }

    /// Fails with EAGAIN if the message about a change of the mappings is unread. Stores the negative error
    /// number at `answer`, where the request has room for the number of completed bytes. Linux makes this
    /// check before it reads the request.
    fn check_unchanging(&self, answer: Option<u64>) -> Result<(), Errno> {
        if !self.handle()?.is_changing() {
            return Ok(());
        }
        answer.map_or(Ok(()), |at| UserPtr::<i64>::new(at).write(&-i64::from(Errno::EAGAIN.0)))?;
        Err(Errno::EAGAIN)
    }

    /// Performs UFFDIO_WRITEPROTECT.
    fn protect(&self, at: u64) -> Result<u64, Errno> {
        let [start, len, mode] = UserPtr::<[u64; 3]>::new(at).read()?;
        let mode = ProtectMode::from_bits(mode).ok_or(Errno::EINVAL)?;
        self.handle()?.write_protect(start, len, mode).map(|()| 0).map_err(|error| error.errno())
    }
}

/// Returns the next message. Waits for it unless `nonblock` is set.
fn next(handle: &Userfaultfd<Machine>, nonblock: bool) -> Result<Message<Machine>, Errno> {
    match nonblock {
        true => handle.try_read().ok_or(Errno::EAGAIN),
        false => handle.read().map_err(UffdReadError::errno),
    }
}

/// Calls `step` with the number of completed bytes until all `len` bytes are done or `step` fails. Stores at
/// `at` the number of completed bytes or, if there are none, the negative error number.
fn answer(
    at: u64,
    len: u64,
    mut step: impl FnMut(u64) -> Result<u64, Result<UffdError, Errno>>,
) -> Result<u64, Errno> {
    let mut done = 0;
    let error = loop {
        match step(done) {
            Ok(0) => break Errno::EAGAIN,
            Ok(bytes) => done += bytes,
            Err(error) => break error.map_or_else(|errno| errno, |error| error.errno()),
        }
        if done >= len {
            UserPtr::<u64>::new(at).write(&done)?;
            return Ok(0);
        }
    };
    let (word, error) = match done {
        0 => (-i64::from(error.0) as u64, error),
        done => (done, Errno::EAGAIN),
    };
    UserPtr::<u64>::new(at).write(&word)?;
    Err(error)
}

/// Returns the `struct uffd_msg` of a message. For the message of a fork, adds a descriptor of the child's
/// context with these flags.
fn words(message: Message<Machine>, flags: u32) -> Result<[u64; 4], Errno> {
    Ok(match message {
        Message::Fault { addr, reason, write, thread } => {
            let why = match reason {
                FaultReason::Missing => 0,
                FaultReason::WriteProtect => 2,
                FaultReason::Minor => 4,
            };
            [0x12, why | u64::from(write), addr, thread.into()]
        }
        Message::Fork(child) => {
            let fault = Fault { space: current_space(), flags, handle: SpinLock::new(Some(Arc::new(child))) };
            [0x13, add(fault)?, 0, 0]
        }
        Message::Remap { from, to, len } => [0x14, from, to, len],
        Message::Remove(range) => [0x15, range.start(), range.end(), 0],
        Message::Unmap(range) => [0x16, range.start(), range.end(), 0],
        _ => return Err(Errno::EAGAIN),
    })
}

/// Returns the caller's space, for the file of a child's context. That file already has a context of the
/// engine, so it never uses the space.
fn current_space() -> Weak<AddressSpace<Machine>> {
    Counted::downgrade(current().space())
}

impl File for Fault {
    fn read(&self, _: u64, to: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        let handle = self.handle()?;
        if to.len() < MESSAGE {
            return Err(Errno::EINVAL);
        }
        let mut done = 0;
        while to.len() >= MESSAGE {
            let message = match next(&handle, nonblock || done > 0) {
                Ok(message) => words(message, self.flags)?,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            };
            for word in message {
                done += to.put_whole(&word.to_ne_bytes())?;
            }
        }
        Ok(done)
    }

    fn ioctl(&self, request: u64, at: u64) -> Result<u64, Errno> {
        let handle = || self.handle();
        match request {
            UFFDIO_COPY | UFFDIO_MOVE => self.check_unchanging(Some(at.wrapping_add(32)))?,
            UFFDIO_ZEROPAGE | UFFDIO_CONTINUE | UFFDIO_POISON => {
                self.check_unchanging(Some(at.wrapping_add(24)))?
            }
            UFFDIO_WRITEPROTECT => self.check_unchanging(None)?,
            _ => {}
        }
        match request {
            UFFDIO_API => self.begin(at),
            UFFDIO_REGISTER => self.register(at),
            UFFDIO_UNREGISTER => {
                let [start, len] = UserPtr::<[u64; 2]>::new(at).read()?;
                handle()?.unregister(start, len).map(|()| 0).map_err(|error| error.errno())
            }
            UFFDIO_WAKE => {
                let [start, len] = UserPtr::<[u64; 2]>::new(at).read()?;
                handle()?.wake(start, len).map(|()| 0).map_err(|error| error.errno())
            }
            UFFDIO_COPY => self.copy(at),
            UFFDIO_ZEROPAGE => self.fill(at, |uffd, start, len, mode| uffd.zeropage(start, len, mode)),
            UFFDIO_CONTINUE => self.fill(at, |uffd, start, len, mode| uffd.continue_with(start, len, mode)),
            UFFDIO_POISON => self.fill(at, |uffd, start, len, mode| uffd.poison(start, len, mode)),
            UFFDIO_MOVE => self.move_pages(at),
            UFFDIO_WRITEPROTECT => self.protect(at),
            _ => Err(errno::ENOTTY),
        }
    }

    fn stat(&self) -> Stat {
        Stat { inode: NO_INODE, mode: 0o600, links: 1, ..Stat::default() }
    }

    fn ready(&self) -> u32 {
        // Before UFFDIO_API, polling reports an error.
        let Ok(handle) = self.handle() else { return FAILED };
        if handle.poll().readable { READABLE } else { 0 }
    }

    // Without O_NONBLOCK, polling reports an error, because a reader that has polled a message could still
    // block: another reader may take the message first.
    fn polls_blocking(&self) -> bool {
        false
    }

    fn changes(&self) -> u64 {
        self.handle().map_or(0, |handle| handle.poll().seen.into())
    }

    fn ready_key(&self) -> Option<Key> {
        // `poll` requests a wake-up for the next message. Callers take the key before they check the
        // readiness, so a message that arrives in between wakes them.
        self.handle().ok().map(|handle| key(handle.poll().bell))
    }
}

/// The device /dev/userfaultfd.
pub struct Maker;

impl File for Maker {
    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        if request == NEW { open(argument as u32) } else { Err(errno::ENOTTY) }
    }

    fn stat(&self) -> Stat {
        Stat { inode: 126, mode: CHARACTER | 0o600, links: 1, device: 10 << 8 | 126, ..Stat::default() }
    }
}
