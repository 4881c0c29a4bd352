//! The System V segments of shared memory, by identifier: the data that shmctl shows. The engine has the
//! memory and counts how often a segment is attached; `calls/shm.rs` has the calls. The spin lock of [`ALL`]
//! guards the table and the data of every segment. A segment is dropped without that lock, because dropping
//! it may free its memory. A segment that is marked for removal stays in the table until [`forget`] finds
//! that it is attached nowhere. Identifiers are assigned as on Linux, because programs can observe them. The
//! programs `corners.c`, `faults.c` and `files.c` of the tests check segments.

use crate::arch::{clock, lock::SpinLock, preempt::preempt_point};
use crate::files::pages::allocated;
use crate::platform::Machine;
use crate::process::settings;
use crate::sched::charge::Charge;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file;

/// A segment.
#[derive(Clone)]
pub struct Shm {
    /// The memory.
    pub memory: Counted<file::Segment<Machine>>,
    /// The charge for the segment without its memory.
    pub _charge: Arc<Charge>,
    /// The key by which shmget finds the segment; [`PRIVATE`] for none.
    pub key: u32,
    /// The size that the program requested, in bytes.
    pub bytes: u64,
    /// The bytes that count against the limit on memory that outlives programs.
    pub reserved: u64,
    /// Permissions and flags, as in `shm_perm.mode`.
    pub mode: u32,
    /// User and group of the owner.
    pub owner: [u32; 2],
    /// User and group of the process that made the segment.
    pub maker: [u32; 2],
    /// The number of the process that made the segment, and of the process that attached or detached it last.
    pub pids: [u32; 2],
    /// Times of attaching, detaching and changing, in seconds since 1970.
    pub times: [u64; 3],
}

/// All segments, by identifier.
pub static ALL: SpinLock<BTreeMap<u32, Shm>> = SpinLock::new(BTreeMap::new());

/// The key IPC_PRIVATE, for which shmget and semget always make a new object. Programs find an object with this
/// key only by its identifier.
pub const PRIVATE: u32 = 0;

/// Returns the seconds since 1970.
pub fn seconds() -> u64 {
    (clock::epoch_ns() + clock::now_ns()) / 1_000_000_000
}

/// Removes each segment that is marked as removed and attached nowhere. Called before the table is used, and at
/// the end of a process.
pub fn forget() {
    let mut from = 0;
    loop {
        let mut all = ALL.lock();
        let mut rest = all.range(from..);
        let Some(id) = rest.find(|(_, shm)| shm.memory.is_destroyed()).map(|(id, _)| *id) else { return };
        let gone = all.remove(&id);
        drop(all);
        drop(gone);
        preempt_point();
        from = id + 1;
    }
}

/// Returns a segment.
///
/// # Errors
///
/// EINVAL if no segment has this identifier.
pub fn find(id: u64) -> Result<Shm, Errno> {
    forget();
    let shm = ALL.lock().get(&(id as u32)).cloned().ok_or(Errno::EINVAL)?;
    Ok(shm)
}

/// Changes the data of a segment, if it still exists.
pub fn change(id: u64, f: impl FnOnce(&mut Shm)) {
    if let Some(shm) = ALL.lock().get_mut(&(id as u32)) {
        f(shm);
    }
}

/// Returns the identifier for a new segment: the one that /proc/sys/kernel/shm_next_id requests, or else the
/// next free one.
pub fn new_id(all: &BTreeMap<u32, Shm>) -> u32 {
    let wanted = settings::SHM.next_id.swap(u64::MAX, Relaxed);
    let is_free = |index: u32| all.keys().all(|id| id % PLACES != index);
    match u32::try_from(wanted) {
        Ok(id) if is_free(id % PLACES) => id,
        _ => {
            let last = settings::SHM.last_id.load(Relaxed) as u32;
            let (index, round) = if last == u32::MAX { (0, 0) } else { (last % PLACES + 1, last / PLACES) };
            let places = (all.len() as u32 * 3 / 2).clamp(ROUND, PLACES);
            let later = (index..places).find(|index| is_free(*index)).map(|index| (round, index));
            let (round, index) = later.unwrap_or_else(|| {
                let first = (0..places).find(|index| is_free(*index)).unwrap_or(0);
                ((round + 1) % (i32::MAX as u32 / PLACES + 1), first)
            });
            let id = round * PLACES + index;
            settings::SHM.last_id.store(id.into(), Relaxed);
            id
        }
    }
}

/// Number of places in the table of segments, and in that of sets of semaphores. An identifier is a place plus
/// n times `PLACES`, where n counts how often the numbering of places has wrapped.
pub const PLACES: u32 = 1 << 15;
/// Number of places after which the numbering wraps while there are few segments.
const ROUND: u32 = 64;

/// Returns the highest place in use.
pub fn last_index() -> u64 {
    ALL.lock().keys().map(|id| u64::from(id % PLACES)).max().unwrap_or(0)
}

/// Writes /proc/sysvipc/shm, one line for each segment.
pub fn write_report(out: &mut Vec<u8>) {
    forget();
    out.extend_from_slice(
        b"       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      \
          atime      dtime      ctime                   rss                  swap\n",
    );
    for (id, shm) in ALL.lock().iter() {
        let (key, mode, bytes, nattch) = (shm.key as i32, shm.mode, shm.bytes, shm.memory.attached());
        let ([cpid, lpid], [uid, gid], [atime, dtime, ctime]) = (shm.pids, shm.owner, shm.times);
        let rss = allocated(shm.memory.mapping());
        let line = alloc::format!(
            "{key:>10} {id:>10}  {mode:>4o} {bytes:>21} {cpid:>5} {lpid:>5}  {nattch:>5} {uid:>5} {gid:>5} \
             {:>5} {:>5} {atime:>10} {dtime:>10} {ctime:>10} {rss:>21} {:>21}\n",
            0,
            0,
            0
        );
        out.extend_from_slice(line.as_bytes());
    }
}
