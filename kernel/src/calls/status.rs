//! Status of files: the stat calls, permissions, owners, times, file systems. The fields are those of
//! [`Stat`](crate::files::Stat) and of [`Node`]; this file writes them in Linux's layouts. Permissions and
//! owners are stored but not checked, except for the execute bit. Fields of a node are atomic and set one by
//! one, so a concurrent stat may see only some of the changes. The programs `files.c` and `names.c` use these
//! calls. A new field of stat belongs in `Stat` or `Node`, and in [`put_stat`] and [`statx`].

use crate::arch::{clock, frame::Frame};
use crate::calls::answer::{Answer, Calls};
use crate::calls::files::{HERE, directory, find, path};
use crate::calls::time;
use crate::files::tree::{Kind, Node};
use crate::files::{Stat, node::node_of};
use crate::memory::frames;
use crate::platform::engine::most_file_pages;
use crate::platform::user::UserPtr;
use crate::sched::current;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use freehold::PAGE_SIZE;
use freehold::error::Errno;
use freehold::file::Seals;
use freehold::hugetlb::HugePageSize;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_stat, |frame| put_stat(find(HERE, frame.rdi, true)?.stat(), frame.rsi)),
    (__NR_lstat, |frame| put_stat(find(HERE, frame.rdi, false)?.stat(), frame.rsi)),
    (__NR_fstat, |frame| put_stat(current().files.get_any(frame.rdi)?.file.stat(), frame.rsi)),
    (__NR_newfstatat, |frame| put_stat(stat_of(frame.rdi, frame.rsi, frame.r10 as u32)?, frame.rdx)),
    (__NR_statx, statx),
    (__NR_access, |frame| may_access(find(HERE, frame.rdi, true)?, frame.rsi)),
    (__NR_faccessat, |frame| may_access(find(frame.rdi, frame.rsi, true)?, frame.rdx)),
    (__NR_faccessat2, faccessat2),
    (__NR_statfs, |frame| put_statfs(kind_of(&*find(HERE, frame.rdi, true)?), frame.rsi)),
    (__NR_fstatfs, fstatfs),
    (__NR_chmod, |frame| set_mode(&*find(HERE, frame.rdi, true)?, frame.rsi)),
    (__NR_fchmod, fchmod),
    (__NR_fchmodat2, fchmodat2),
    (__NR_fchmodat, |frame| set_mode(&*find(frame.rdi, frame.rsi, true)?, frame.rdx)),
    (__NR_chown, |frame| set_owner(&*find(HERE, frame.rdi, true)?, frame.rsi, frame.rdx)),
    (__NR_lchown, |frame| set_owner(&*find(HERE, frame.rdi, false)?, frame.rsi, frame.rdx)),
    (__NR_fchown, fchown),
    (__NR_fchownat, fchownat),
    (__NR_utime, utime),
    (__NR_utimes, utimes),
    (__NR_utimensat, utimensat),
];

const SECOND: u64 = 1_000_000_000;

/// Returns the number of blocks of 512 bytes.
fn blocks(of: &Stat) -> u64 {
    of.allocated / 512
}

/// Writes `struct stat`.
fn put_stat(of: Stat, at: u64) -> Answer {
    // The memory layout of `struct stat`, in words of eight bytes.
    let mode = u64::from(of.mode) | of.owner << 32;
    let mut words = [0u64; 18];
    let first = [1, of.inode, of.links, mode, of.owner >> 32, of.device, of.size, 4096, blocks(&of)];
    words[..9].copy_from_slice(&first);
    for (time, words) in of.times.iter().zip(words[9..15].chunks_mut(2)) {
        words.copy_from_slice(&[time / SECOND, time % SECOND]);
    }
    UserPtr::<[u64; 18]>::new(at).write(&words)?;
    Ok(0)
}

/// Returns the status of the node that a path names or, with AT_EMPTY_PATH and an empty path, of the
/// descriptor's file.
fn stat_of(descriptor: u64, at: u64, flags: u32) -> Result<Stat, Errno> {
    if flags & AT_EMPTY_PATH != 0 && (at == 0 || path(at)?.is_empty()) {
        return match descriptor & 0xffff_ffff {
            HERE => Ok(directory(descriptor)?.stat()),
            descriptor => Ok(current().files.get_any(descriptor)?.file.stat()),
        };
    }
    Ok(find(descriptor, at, flags & AT_SYMLINK_NOFOLLOW == 0)?.stat())
}

fn statx(frame: &mut Frame) -> Answer {
    let [descriptor, at, flags, mask, out, _] = frame.args();
    if mask as u32 & STATX__RESERVED != 0 {
        return Err(Errno::EINVAL);
    }
    let of = stat_of(descriptor, at, flags as u32)?;
    // The memory layout of `struct statx`.
    let mut words = [0u64; 32];
    words[0] = u64::from(STATX_BASIC_STATS) | 4096 << 32;
    words[2] = of.links | of.owner << 32;
    words[3] = of.owner >> 32 | u64::from(of.mode) << 32;
    (words[4], words[5], words[6]) = (of.inode, of.size, blocks(&of));
    // Times of access, modification and status change. The creation time is not recorded.
    for (time, at) in of.times.iter().zip([8, 14, 12]) {
        (words[at], words[at + 1]) = (time / SECOND, time % SECOND);
    }
    words[16] = of.device >> 8 | (of.device & 0xff) << 32;
    words[17] = 1 << 32;
    UserPtr::<[u64; 32]>::new(out).write(&words)?;
    Ok(0)
}

fn faccessat2(frame: &mut Frame) -> Answer {
    let [descriptor, at, mode, flags, ..] = frame.args();
    if flags as u32 & AT_EMPTY_PATH != 0 && path(at)?.is_empty() {
        return stat_of(descriptor, at, flags as u32).map(|_| 0);
    }
    may_access(find(descriptor, at, flags as u32 & AT_SYMLINK_NOFOLLOW == 0)?, mode)
}

/// Allows every access, except execution of a file that has no execute bit.
fn may_access(node: Arc<Node>, mode: u64) -> Answer {
    match mode {
        mode if mode & u64::from(X_OK) != 0 && node.mode.load(Relaxed) & 0o111 == 0 => Err(Errno::EACCES),
        0..=7 => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

const TMPFS: u64 = 0x0102_1994;
const PROC: u64 = 0x9fa0;
const HUGETLBFS: u64 = 0x9584_58f6;

/// Writes the `struct statfs` of a file system of this kind.
fn put_statfs(kind: u64, out: u64) -> Answer {
    let all = most_file_pages();
    let free = all.min(frames::free_count());
    let block = if kind == HUGETLBFS { HugePageSize::Mib2.bytes() } else { PAGE_SIZE };
    let words = [kind, block, all, free, free, all, free, 0, 255, 4096, 0, 0, 0, 0, 0];
    UserPtr::<[u64; 15]>::new(out).write(&words)?;
    Ok(0)
}

/// Returns the number of the file system that contains a node.
fn kind_of(node: &Node) -> u64 {
    let is_huge = node.huge.is_some() || node.mapping().is_some_and(|file| file.huge_page_size().is_some());
    match node.kind {
        Kind::Listing(_) | Kind::Made(_) => PROC,
        _ if is_huge => HUGETLBFS,
        _ => TMPFS,
    }
}

fn fstatfs(frame: &mut Frame) -> Answer {
    let [descriptor, out, ..] = frame.args();
    let open = current().files.get_any(descriptor)?;
    put_statfs(node_of(&*open.file).map_or(TMPFS, |node| kind_of(node)), out)
}

/// Returns the node of a descriptor, if its file has one.
fn node(descriptor: u64) -> Result<Option<Arc<Node>>, Errno> {
    Ok(node_of(&*current().files.get(descriptor)?.file).cloned())
}

/// Returns the node of a descriptor, which may be open with O_PATH, if its file has one.
fn place(descriptor: u64) -> Result<Option<Arc<Node>>, Errno> {
    Ok(node_of(&*current().files.get_any(descriptor)?.file).cloned())
}

fn fchmod(frame: &mut Frame) -> Answer {
    let [descriptor, mode, ..] = frame.args();
    node(descriptor)?.map_or(Ok(0), |node| set_mode(&node, mode))
}

/// Sets the permissions. Fails with EPERM if a seal forbids a change of the execute bits.
fn set_mode(node: &Node, mode: u64) -> Answer {
    let seals = node.mapping().and_then(|mapping| mapping.seals()).unwrap_or(Seals::empty());
    if seals.contains(Seals::EXEC) && (node.mode.load(Relaxed) ^ mode as u32) & 0o111 != 0 {
        return Err(Errno::EPERM);
    }
    let step = |before: u32| Some(before & !0o7777 | mode as u32 & 0o7777);
    let _ = node.mode.fetch_update(Relaxed, Relaxed, step);
    node.times[2].store(clock::epoch_ns() + clock::now_ns(), Relaxed);
    Ok(0)
}

fn fchmodat2(frame: &mut Frame) -> Answer {
    let [descriptor, at, mode, flags, ..] = frame.args();
    let flags = flags as u32;
    if flags & !(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    let node = match flags & AT_EMPTY_PATH != 0 && path(at)?.is_empty() {
        true => place(descriptor)?,
        false => Some(find(descriptor, at, flags & AT_SYMLINK_NOFOLLOW == 0)?),
    };
    match node {
        Some(node) if matches!(node.kind, Kind::Link(_)) => Err(Errno::EOPNOTSUPP),
        node => node.map_or(Ok(0), |node| set_mode(&node, mode)),
    }
}

fn fchown(frame: &mut Frame) -> Answer {
    let [descriptor, user, group, ..] = frame.args();
    node(descriptor)?.map_or(Ok(0), |node| set_owner(&node, user, group))
}

fn fchownat(frame: &mut Frame) -> Answer {
    let [descriptor, at, user, group, flags, _] = frame.args();
    let flags = flags as u32;
    if flags & AT_EMPTY_PATH != 0 && path(at)?.is_empty() {
        return place(descriptor)?.map_or(Ok(0), |node| set_owner(&node, user, group));
    }
    set_owner(&*find(descriptor, at, flags & AT_SYMLINK_NOFOLLOW == 0)?, user, group)
}

/// Sets the owner and the group; -1 leaves a number unchanged.
fn set_owner(node: &Node, user: u64, group: u64) -> Answer {
    let choose = |new: u64, old: u64| if new as u32 == u32::MAX { old } else { new & 0xffff_ffff };
    let step = |owner: u64| Some(choose(user, owner & 0xffff_ffff) | choose(group, owner >> 32) << 32);
    let _ = node.owner.fetch_update(Relaxed, Relaxed, step);
    node.times[2].store(clock::epoch_ns() + clock::now_ns(), Relaxed);
    Ok(0)
}

fn utime(frame: &mut Frame) -> Answer {
    let [path, times, ..] = frame.args();
    let times = UserPtr::<[u64; 2]>::optional(times).map(UserPtr::read).transpose()?;
    let times = times.map(|times| times.map(|seconds| Some(seconds.saturating_mul(SECOND))));
    set_times(&*find(HERE, path, true)?, times)
}

fn utimes(frame: &mut Frame) -> Answer {
    let [path, times, ..] = frame.args();
    let times = UserPtr::<[u64; 4]>::optional(times).map(UserPtr::read).transpose()?;
    let ns =
        |seconds: u64, us: u64| Some(seconds.saturating_mul(SECOND).saturating_add(us.saturating_mul(1000)));
    let times = times.map(|[a, a_us, b, b_us]| [ns(a, a_us), ns(b, b_us)]);
    set_times(&*find(HERE, path, true)?, times)
}

const UTIME_NOW: u64 = 0x3fff_ffff;
const UTIME_OMIT: u64 = 0x3fff_fffe;

fn utimensat(frame: &mut Frame) -> Answer {
    let [descriptor, name, at, flags, ..] = frame.args();
    let mut times = None;
    if let Some(given) = UserPtr::<[u64; 4]>::optional(at) {
        let words = given.read()?;
        let mut both = [None; 2];
        for n in 0..2u64 {
            both[n as usize] = match words[2 * n as usize + 1] {
                UTIME_NOW => Some(clock::epoch_ns() + clock::now_ns()),
                UTIME_OMIT => None,
                _ => Some(time::duration(at + 16 * n)?),
            };
        }
        times = Some(both);
    }
    if name == 0 {
        return node(descriptor)?.map_or(Ok(0), |node| set_times(&node, times));
    }
    if flags as u32 & AT_EMPTY_PATH != 0 && path(name)?.is_empty() {
        return place(descriptor)?.map_or(Ok(0), |node| set_times(&node, times));
    }
    set_times(&*find(descriptor, name, flags as u32 & AT_SYMLINK_NOFOLLOW == 0)?, times)
}

/// Sets the times of access and modification: both to now if `times` is `None`. A single time that is `None`
/// stays unchanged.
fn set_times(node: &Node, times: Option<[Option<u64>; 2]>) -> Answer {
    let now = clock::epoch_ns() + clock::now_ns();
    for (n, time) in times.unwrap_or([Some(now); 2]).into_iter().enumerate() {
        if let Some(time) = time {
            node.times[n].store(time, Relaxed);
        }
    }
    node.times[2].store(now, Relaxed);
    Ok(0)
}
