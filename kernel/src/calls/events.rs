//! Calls that make files without a path: eventfd, timerfd, signalfd, memory files, userfaultfd.
//! `files/event.rs`, `files/timer.rs`, `process/signalfd.rs`, `files/node.rs` and `process/userfault.rs` have
//! the types of these files, and their locks. A memory file is a node of the tree without a name in a
//! directory. The programs `files.c`, `signals.c`, `faults.c` and `corners.c` test the calls. A new kind of file needs its type in `files/`, and a call here
//! that passes the file to `add`.

use crate::arch::{clock, frame::Frame};
use crate::calls::answer::{Answer, Calls};
use crate::calls::{descriptors::file, time};
use crate::errno;
use crate::files::tree::{self, Kind, Node};
use crate::files::{File, REGULAR, event::Event, node::NodeFile, open::Open, timer::Timer};
use crate::platform::engine;
use crate::platform::user::{self, UserPtr};
use crate::process::{signal, signalfd::SignalFile, userfault};
use crate::sched::current;
use alloc::sync::Arc;
use freehold::error::Errno;
use freehold::file::{Mapping, Seals};
use freehold::hugetlb::HugePageSize;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_eventfd, eventfd),
    (__NR_eventfd2, eventfd2),
    (__NR_timerfd_create, timerfd_create),
    (__NR_timerfd_settime, timerfd_settime),
    (__NR_timerfd_gettime, timerfd_gettime),
    (__NR_signalfd, signalfd),
    (__NR_signalfd4, signalfd4),
    (__NR_memfd_create, memfd_create),
    (__NR_memfd_secret, memfd_secret),
    (__NR_userfaultfd, userfaultfd),
];

/// Adds an open file to the caller's descriptors.
fn add(file: Arc<dyn File>, flags: u32, name: &[u8]) -> Answer {
    let open = Open::new(file, O_RDWR | flags & O_NONBLOCK, name);
    current().files.add(open, 0, flags & O_CLOEXEC != 0)
}

fn eventfd(frame: &mut Frame) -> Answer {
    let [number, ..] = frame.args();
    add(Arc::new(Event::new(number & 0xffff_ffff, false)), 0, b"anon_inode:[eventfd]")
}

/// The flag EFD_SEMAPHORE.
const COUNTS_DOWN: u32 = 1;

fn eventfd2(frame: &mut Frame) -> Answer {
    let [number, flags, ..] = frame.args();
    let flags = flags as u32;
    if flags & !(O_CLOEXEC | O_NONBLOCK | COUNTS_DOWN) != 0 {
        return Err(Errno::EINVAL);
    }
    let event = Event::new(number & 0xffff_ffff, flags & COUNTS_DOWN != 0);
    add(Arc::new(event), flags, b"anon_inode:[eventfd]")
}

fn timerfd_create(frame: &mut Frame) -> Answer {
    let [clock, flags, ..] = frame.args();
    let (clock, flags) = (clock as u32, flags as u32);
    let is_known = matches!(
        clock,
        CLOCK_REALTIME | CLOCK_MONOTONIC | CLOCK_BOOTTIME | CLOCK_REALTIME_ALARM | CLOCK_BOOTTIME_ALARM
    );
    if !is_known || flags & !(O_CLOEXEC | O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    add(Arc::new(Timer::new(clock)), flags, b"anon_inode:[timerfd]")
}

/// Calls `f` with the timer of a descriptor.
fn with_timer<R>(open: &Open, f: impl FnOnce(&Timer) -> Result<R, Errno>) -> Result<R, Errno> {
    f(open.file.as_any().and_then(|any| any.downcast_ref()).ok_or(Errno::EINVAL)?)
}

/// Stores a `struct itimerspec`.
fn put_setting(at: u64, (left, interval): (u64, u64)) -> Result<(), Errno> {
    const SECOND: u64 = 1_000_000_000;
    let words = [interval / SECOND, interval % SECOND, left / SECOND, left % SECOND];
    UserPtr::<[u64; 4]>::new(at).write(&words)
}

/// The flag TFD_TIMER_ABSTIME.
const ABSOLUTE: u32 = 1;
/// The flag TFD_TIMER_CANCEL_ON_SET, which is accepted without an effect.
const CANCEL_ON_SET: u32 = 2;

fn timerfd_settime(frame: &mut Frame) -> Answer {
    let [descriptor, flags, new, old, ..] = frame.args();
    if flags as u32 & !(ABSOLUTE | CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    let open = file(descriptor)?;
    let before = with_timer(&open, |timer| {
        let (interval, wanted) = (time::duration(new)?, time::duration(new.wrapping_add(16))?);
        let next = match wanted {
            0 => 0,
            _ if flags as u32 & ABSOLUTE != 0 => time::deadline(new.wrapping_add(16), timer.clock)?,
            wanted => clock::now_ns().saturating_add(wanted),
        };
        Ok(timer.set(next, interval))
    })?;
    if old != 0 {
        put_setting(old, before)?;
    }
    Ok(0)
}

fn timerfd_gettime(frame: &mut Frame) -> Answer {
    let [descriptor, out, ..] = frame.args();
    let open = file(descriptor)?;
    put_setting(out, with_timer(&open, |timer| Ok(timer.get()))?).map(|()| 0)
}

fn signalfd(frame: &mut Frame) -> Answer {
    let [descriptor, set, bytes, ..] = frame.args();
    signal_file(descriptor, set, bytes, 0)
}

fn signalfd4(frame: &mut Frame) -> Answer {
    let [descriptor, set, bytes, flags, ..] = frame.args();
    signal_file(descriptor, set, bytes, flags as u32)
}

/// Makes a signalfd for the set of signals at `set`. If `descriptor` is not -1, changes the set of this
/// signalfd instead.
fn signal_file(descriptor: u64, set: u64, bytes: u64, flags: u32) -> Answer {
    if bytes != 8 {
        return Err(Errno::EINVAL);
    }
    let set = UserPtr::<u64>::new(set).read()? & !signal::ALWAYS;
    if flags & !(O_CLOEXEC | O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    if descriptor as i32 == -1 {
        return add(Arc::new(SignalFile::new(set)), flags, b"anon_inode:[signalfd]");
    }
    let open = file(descriptor)?;
    let of = open.file.as_any().and_then(|any| any.downcast_ref::<SignalFile>()).ok_or(Errno::EINVAL)?;
    of.set(set);
    Ok((descriptor as u32).into())
}

/// Maximum length of a memory file's name, in bytes.
const MAX_NAME: usize = 249;
/// Lowest bit of the flags that hold the binary logarithm of the page size (MFD_HUGE_SHIFT).
const HUGE_SHIFT: u32 = 26;

fn memfd_create(frame: &mut Frame) -> Answer {
    let [name, flags, ..] = frame.args();
    let flags = flags as u32;
    let known = MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_NOEXEC_SEAL | MFD_EXEC;
    let size = flags >> HUGE_SHIFT & 0x3f;
    let huge = flags & MFD_HUGETLB != 0;
    if flags & !(known | 0x3f << HUGE_SHIFT) != 0
        || (size != 0 && !huge)
        || flags & (MFD_EXEC | MFD_NOEXEC_SEAL) == MFD_EXEC | MFD_NOEXEC_SEAL
    {
        return Err(Errno::EINVAL);
    }
    let name = user::read_string(name, MAX_NAME + 1)?.ok_or(Errno::EINVAL)?;
    let mapping = match huge {
        true => {
            let bytes = if size == 0 { 2 << 20 } else { 1 << size };
            let page = HugePageSize::from_bytes(bytes).ok_or(errno::ENODEV)?;
            Mapping::of_huge_pages(engine(), page, 0, true).map_err(|error| error.errno())?
        }
        false => Mapping::memfd(engine(), 0).map_err(|_| Errno::ENOMEM)?,
    };
    let mut seals = Seals::empty();
    seals.set(Seals::SEAL, flags & (MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL) == 0);
    seals.set(Seals::EXEC, flags & MFD_NOEXEC_SEAL != 0);
    if !seals.is_empty() {
        mapping.add_seals(seals).map_err(|error| error.errno())?;
    }
    let mode = if flags & MFD_NOEXEC_SEAL != 0 { 0o666 } else { 0o777 };
    let node = Node::new(REGULAR | mode, Kind::Regular(mapping));
    *node.name.lock() = [b"memfd:", &*name].concat();
    let path = tree::path_of(&node);
    add(Arc::new(NodeFile::new(node)), if flags & MFD_CLOEXEC != 0 { O_CLOEXEC } else { 0 }, &path)
}

fn memfd_secret(frame: &mut Frame) -> Answer {
    let [flags, ..] = frame.args();
    if flags as u32 & !O_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let mapping = Mapping::secret(engine()).map_err(|_| Errno::ENOMEM)?;
    let node = Node::new(REGULAR | 0o600, Kind::Regular(mapping));
    *node.name.lock() = b"secretmem".to_vec();
    let path = tree::path_of(&node);
    add(Arc::new(NodeFile::new(node)), flags as u32, &path)
}

fn userfaultfd(frame: &mut Frame) -> Answer {
    let [flags, ..] = frame.args();
    userfault::open(flags as u32)
}
