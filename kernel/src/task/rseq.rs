//! Restartable sequences, as rseq(2): a thread has memory that says on which processor it runs, and names a
//! sequence of instructions that begins again elsewhere if the thread is interrupted in it.
//!
//! `struct rseq`: the processor (twice, as words), the address of a description or 0 (at 8), flags, the node
//! (at 20) and a number that no other thread of the space has meanwhile, for which the processor's does. A
//! description: version and flags, the first address, the length, and where to go on: before that lies the
//! signature that the thread has registered.

use super::{signal, work};
use crate::arch::cpu::{self, current};
use crate::arch::trap::Frame;
use crate::arch::user::{self, UserAddr, UserPtr};
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use freehold::error::Errno;
use linux_raw_sys::general::SIGSEGV;

/// Bytes of the oldest `struct rseq`, and its alignment.
pub const ORIGINAL: u32 = 32;
/// Bytes that have a meaning: AT_RSEQ_FEATURE_SIZE.
pub const BYTES: u64 = 28;
/// The flag that gives up what was registered.
pub const UNREGISTER: u32 = 1;
const SEQUENCE: u64 = 8;
const FLAGS: u64 = 16;
const NODE: u64 = 20;
/// The processor where nobody says it any more: RSEQ_CPU_ID_UNINITIALIZED.
const UNINITIALIZED: u32 = u32::MAX;

/// What a thread has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    pub at: u64,
    pub bytes: u32,
    pub signature: u32,
}

/// Registers an area for the calling thread.
///
/// # Errors
///
/// EBUSY, EINVAL or EPERM: there is one, the same, with other bounds, or with another signature. EINVAL: no area
/// is like this. EFAULT: no program's memory is there.
pub fn register(area: Area) -> Result<(), Errno> {
    let thread = current();
    match thread.rseq.get() {
        Some(old) => Err(differs(old, area).err().unwrap_or(Errno::EBUSY)),
        None if area.bytes < ORIGINAL || !area.at.is_multiple_of(ORIGINAL.into()) => Err(Errno::EINVAL),
        None => {
            user::check(area.at, area.bytes as usize)?;
            thread.rseq.set(Some(area));
            thread.work.fetch_or(work::RSEQ, AcqRel);
            Ok(())
        }
    }
}

/// Gives up what was registered.
///
/// # Errors
///
/// EINVAL, EPERM: it was something else; EFAULT: it is not there any more.
pub fn unregister(area: Area) -> Result<(), Errno> {
    differs(current().rseq.get().ok_or(Errno::EINVAL)?, area)?;
    say(area, [0, UNINITIALIZED], [0, 0])?;
    current().rseq.set(None);
    Ok(())
}

fn differs(old: Area, new: Area) -> Result<(), Errno> {
    match new {
        _ if (old.at, old.bytes) != (new.at, new.bytes) => Err(Errno::EINVAL),
        _ if old.signature != new.signature => Err(Errno::EPERM),
        _ => Ok(()),
    }
}

/// The calling thread was away from its processor, and goes back to its program.
pub fn resume(frame: &mut Frame) {
    // Before it looks: what happens meanwhile counts again.
    current().work.fetch_and(!work::RSEQ, AcqRel);
    let Some(area) = current().rseq.get() else { return };
    let cpu = cpu::number() as u32;
    if interrupt(frame).and_then(|()| say(area, [cpu, cpu], [0, cpu])).is_err() {
        signal::force(signal::Info::kernel(SIGSEGV));
    }
}

/// The program is interrupted where `frame` says: a sequence that it is in is left for its abort handler.
///
/// # Errors
///
/// What the program says of it cannot be read, or is not valid.
pub fn interrupt(frame: &mut Frame) -> Result<(), Errno> {
    let Some(area) = current().rseq.get() else { return Ok(()) };
    let named = UserPtr::<u64>::new(area.at + SEQUENCE);
    let at = named.read()?;
    if at == 0 {
        return Ok(());
    }
    let [version_and_flags, start, length, abort] = UserPtr::<[u64; 4]>::new(at).read()?;
    let is_inside = |at: u64| at.wrapping_sub(start) < length;
    let has_place = start.checked_add(length).and_then(UserAddr::new).is_some();
    let is_valid = version_and_flags as u32 == 0 && has_place && !is_inside(abort);
    let abort = UserAddr::new(abort).filter(|_| is_valid).ok_or(Errno::EINVAL)?;
    if UserPtr::<u32>::new(abort.get().wrapping_sub(4)).read()? != area.signature {
        return Err(Errno::EINVAL);
    }
    if is_inside(frame.rip) {
        // Flags once kept a sequence from being restarted.
        if version_and_flags >> 32 != 0 || UserPtr::<u32>::new(area.at + FLAGS).read()? != 0 {
            return Err(Errno::EINVAL);
        }
        (frame.rip, frame.vector) = (abort.get(), Frame::WHOLE);
    }
    named.write(&0)
}

fn say(area: Area, cpus: [u32; 2], node: [u32; 2]) -> Result<(), Errno> {
    UserPtr::new(area.at).write(&cpus)?;
    UserPtr::new(area.at + NODE).write(&node)
}

/// A thread leaves its processor.
#[inline]
pub fn note_switch(thread: &super::Thread) {
    if thread.rseq.get().is_some() {
        // Relaxed: the thread itself finds it.
        thread.work.fetch_or(work::RSEQ, Relaxed);
    }
}
