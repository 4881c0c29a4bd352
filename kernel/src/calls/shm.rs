//! The calls for System V shared memory. `process/segments.rs` has the table of segments with their keys,
//! identifiers and times; the engine has the memory and counts how often a segment is attached.
//!
//! Calls use a copy of a segment's data ([`find`]) and change the table under its lock ([`change`]), because
//! the engine and programs' memory must not be used under a spin lock. A segment may be removed between the
//! copy and the change; the change is then ignored. The programs `corners.c`, `faults.c` and `files.c` test
//! the calls.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::calls::memory::reading_executes;
use crate::files::pages::allocated;
use crate::platform::engine::most_file_pages;
use crate::platform::{engine, user::UserPtr};
use crate::process::segments::{
    ALL, PLACES, PRIVATE, Shm, change, find, forget, last_index, new_id, seconds,
};
use crate::process::settings;
use crate::sched::charge::{self, Charge};
use crate::sched::current;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::call::ShmFlags;
use freehold::counted::Counted;
use freehold::error::{Errno, FillError};
use freehold::file;
use freehold::hugetlb::HugePageSize;
use freehold::{PAGE_SIZE, PageRange};
use linux_raw_sys::general::*;

pub const CALLS: Calls =
    &[(__NR_shmget, shmget), (__NR_shmat, shmat), (__NR_shmdt, shmdt), (__NR_shmctl, shmctl)];

/// The flags of shmget.
const CREATE: u32 = 0o1000;
const EXCLUSIVE: u32 = 0o2000;
const HUGE: u32 = 0o4000;
const NORESERVE: u32 = 0o10000;
/// Lowest bit of the flags that hold the binary logarithm of the page size.
const HUGE_SHIFT: u32 = 26;
/// Bit of `shm_perm.mode`: the segment is marked for removal.
const REMOVED: u32 = 0o1000;
/// Bit of `shm_perm.mode`: the segment is locked, which has no other effect.
const LOCKED: u32 = 0o2000;

fn shmget(frame: &mut Frame) -> Answer {
    let [key, bytes, flags, ..] = frame.args();
    let (key, flags) = (key as u32, flags as u32);
    forget();
    if key != PRIVATE {
        let all = ALL.lock();
        let found = all.iter().find(|(_, shm)| shm.key == key && !shm.memory.is_removed());
        match found {
            Some(_) if flags & (CREATE | EXCLUSIVE) == CREATE | EXCLUSIVE => return Err(Errno::EEXIST),
            Some((_, shm)) if bytes > shm.bytes => return Err(Errno::EINVAL),
            Some((id, _)) => return Ok((*id).into()),
            None if flags & CREATE == 0 => return Err(Errno::ENOENT),
            None => {}
        }
    }
    let limits = &settings::SHM;
    if bytes == 0 || bytes > limits.most_bytes.load(Relaxed) {
        return Err(Errno::EINVAL);
    }
    if ALL.lock().len() as u64 >= limits.most_segments.load(Relaxed) {
        return Err(Errno::ENOSPC);
    }
    charge::admit()?;
    let memory = match flags & HUGE != 0 {
        false => match flags & NORESERVE == 0 {
            true => file::Segment::new(engine(), key, bytes),
            false => file::Segment::noreserve(engine(), key, bytes),
        }
        .map_err(|_| Errno::ENOMEM)?,
        true => {
            let size = flags >> HUGE_SHIFT & 0x3f;
            let page = if size == 0 { 2 << 20 } else { 1 << size };
            let page = HugePageSize::from_bytes(page).ok_or(Errno::EINVAL)?;
            let bytes = bytes.checked_next_multiple_of(page.bytes()).ok_or(Errno::EINVAL)?;
            let reserved = flags & NORESERVE == 0;
            let made = file::Segment::of_huge_pages(engine(), key, page, bytes, reserved);
            made.map_err(|error| if error == FillError::Killed { Errno::EINTR } else { Errno::ENOMEM })?
        }
    };
    let pid = current().process().pid;
    let ids = *current().process().ids.lock();
    let (user, group) = (ids.user.effective, ids.group.effective);
    let shm = Shm {
        memory,
        key,
        bytes,
        reserved: if flags & (HUGE | NORESERVE) == 0 { bytes } else { 0 },
        mode: flags & 0o777,
        owner: [user, group],
        maker: [user, group],
        pids: [pid, 0],
        times: [0, 0, seconds()],
        _charge: Arc::new(Charge::new(size_of::<Shm>() + 512)),
    };
    let mut all = ALL.lock();
    // The engine counts the touched pages of the other segments.
    let reserved = all.values().fold(shm.reserved, |sum, other| sum.saturating_add(other.reserved));
    if reserved > most_file_pages() * PAGE_SIZE {
        drop(all);
        return Err(Errno::ENOMEM);
    }
    let id = new_id(&all);
    all.insert(id, shm);
    Ok(id.into())
}

fn shmat(frame: &mut Frame) -> Answer {
    let [id, at, flags, ..] = frame.args();
    let shm = find(id)?;
    let mut flags = ShmFlags::from_bits_truncate(flags as u32);
    if reading_executes() {
        flags |= ShmFlags::EXEC;
    }
    let place = current().space().shmat(&shm.memory, at, flags).map_err(|error| error.errno())?;
    let pid = current().process().pid;
    change(id, |shm| {
        shm.times[0] = seconds();
        shm.pids[1] = pid;
    });
    Ok(place)
}

fn shmdt(frame: &mut Frame) -> Answer {
    let [at, ..] = frame.args();
    let space = current().space();
    let segment = match space.find_vma(at) {
        Some(vma) => vma.object().file().and_then(|file| file.segment().cloned()),
        None => None,
    };
    space.shmdt(at).map_err(|error| error.errno())?;
    if let Some(segment) = segment {
        let pid = current().process().pid;
        let mut all = ALL.lock();
        if let Some(shm) = all.values_mut().find(|shm| Counted::ptr_eq(&shm.memory, &segment)) {
            shm.times[1] = seconds();
            shm.pids[1] = pid;
        }
        drop(all);
        drop(segment);
    }
    forget();
    Ok(0)
}

/// The commands of shmctl.
const RMID: u64 = 0;
const SET: u64 = 1;
const STAT: u64 = 2;
const INFO: u64 = 3;
const LOCK: u64 = 11;
const UNLOCK: u64 = 12;
const STAT_BY_INDEX: u64 = 13;
const SHM_INFO: u64 = 14;
const STAT_ANY: u64 = 15;

fn shmctl(frame: &mut Frame) -> Answer {
    let [id, what, out, ..] = frame.args();
    match what & 0xffff_ffff {
        RMID => {
            let shm = find(id)?;
            shm.memory.remove();
            // From now on a segment that is still attached can be found only by its identifier.
            change(id, |shm| {
                shm.mode |= REMOVED;
                shm.key = PRIVATE;
            });
            forget();
        }
        SET => {
            find(id)?;
            let words = UserPtr::<[u32; 6]>::new(out).read()?;
            change(id, |shm| {
                shm.owner = [words[1], words[2]];
                shm.mode = shm.mode & !0o777 | words[5] & 0o777;
                shm.times[2] = seconds();
            });
        }
        STAT => {
            let shm = find(id)?;
            put_stat(id as u32, &shm, out)?;
        }
        STAT_BY_INDEX | STAT_ANY => return stat_by_index(id, out),
        LOCK => {
            find(id)?;
            change(id, |shm| shm.mode |= LOCKED);
        }
        UNLOCK => {
            find(id)?;
            change(id, |shm| shm.mode &= !LOCKED);
        }
        INFO => return put_limits(out),
        SHM_INFO => return put_sums(out),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// Writes the `struct shmid_ds` of a segment.
fn put_stat(id: u32, shm: &Shm, out: u64) -> Result<(), Errno> {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let mut words = [0u64; 14];
    words[0] = pair(shm.key, shm.owner[0]);
    words[1] = pair(shm.owner[1], shm.maker[0]);
    words[2] = pair(shm.maker[1], shm.mode);
    words[3] = u64::from(id >> 15);
    words[6] = shm.bytes;
    words[7..10].copy_from_slice(&shm.times);
    words[10] = pair(shm.pids[0], shm.pids[1]);
    words[11] = shm.memory.attached();
    UserPtr::<[u64; 14]>::new(out).write(&words)
}

/// Writes the status of the segment at an index of the table. Returns the segment's identifier.
fn stat_by_index(index: u64, out: u64) -> Answer {
    forget();
    let place = index as u32 % PLACES;
    let found = ALL.lock().iter().find(|(id, _)| *id % PLACES == place).map(|(id, shm)| (*id, shm.clone()));
    let (id, shm) = found.ok_or(Errno::EINVAL)?;
    put_stat(id, &shm, out)?;
    Ok(id.into())
}

/// Writes `struct shminfo`, which has the limits. Returns the highest index in use.
fn put_limits(out: u64) -> Answer {
    let limits = &settings::SHM;
    let most = limits.most_segments.load(Relaxed);
    let (bytes, pages) = (limits.most_bytes.load(Relaxed), limits.most_pages.load(Relaxed));
    UserPtr::<[u64; 9]>::new(out).write(&[bytes, 1, most, most, pages, 0, 0, 0, 0])?;
    Ok(last_index())
}

/// Writes `struct shm_info`, which has sums over all segments. Returns the highest index in use.
fn put_sums(out: u64) -> Answer {
    forget();
    let all = ALL.lock();
    let count = all.len() as u64;
    let pages: u64 = all.values().map(|shm| shm.bytes.div_ceil(PAGE_SIZE)).sum();
    let present: Vec<_> = all.values().map(|shm| shm.memory.clone()).collect();
    drop(all);
    let allocated: u64 = present.iter().map(|memory| allocated(memory.mapping()) / PAGE_SIZE).sum();
    let swapped: u64 = present.iter().map(|memory| memory.mapping().swapped_pages(PageRange::ALL)).sum();
    let resident = allocated.saturating_sub(swapped);
    UserPtr::<[u64; 6]>::new(out).write(&[count, pages, resident, swapped, 0, 0])?;
    Ok(last_index())
}
