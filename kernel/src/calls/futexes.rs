//! The futex calls. This file decodes their arguments; `process/futex.rs` has the operations, and
//! `sched/wait.rs` has the lists of sleepers. Operations with priority inheritance answer ENOSYS. No lock is
//! held while a word is read, because reading may fault and sleep. The programs `jobs.c` and `threads.c` test
//! the calls. A new operation needs an arm in `call`. If the operation waits, `class`
//! (`process/signal/restart.rs`) decides about its restart.

use crate::arch::{frame::Frame, lock::relax};
use crate::calls::answer::{Answer, Calls};
use crate::calls::time;
use crate::errno;
use crate::platform::user::{self, UserPtr};
use crate::process::futex::{self, Word};
use crate::process::{self, signal::restart::deadline_after};
use crate::sched::{Thread, current};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_futex, call),
    (__NR_futex_waitv, waitv),
    (__NR_set_robust_list, set_robust_list),
    (__NR_get_robust_list, get_robust_list),
];

/// Performs `futex`: decodes the operation and its arguments, whose meaning depends on the operation.
fn call(frame: &mut Frame) -> Answer {
    let [at, operation, value, timeout, second, bits] = frame.args();
    let (operation, value, bits) = (operation as u32, value as u32, bits as u32);
    let word = Word { at, private: operation & FUTEX_PRIVATE_FLAG != 0 };
    let command = operation & FUTEX_CMD_MASK as u32;
    if operation & FUTEX_CLOCK_REALTIME != 0 && command != FUTEX_WAIT_BITSET {
        return Err(errno::ENOSYS);
    }
    if command == FUTEX_WAKE_BITSET && bits == 0 {
        return Err(Errno::EINVAL);
    }
    // For a wake, the word of a shared futex must be readable. The word of a private futex needs only a valid
    // address. `load` also refuses addresses that are not aligned.
    if matches!(command, FUTEX_WAKE | FUTEX_WAKE_BITSET | FUTEX_WAKE_OP | FUTEX_REQUEUE) {
        match word.private && at.is_multiple_of(4) {
            true => user::check(at, 4)?,
            false => user::load(at).map(|_| ())?,
        }
    }
    match command {
        FUTEX_WAIT => word.wait(value, u32::MAX, relative(timeout)?).map(|()| 0),
        FUTEX_WAIT_BITSET => {
            let realtime = operation & FUTEX_CLOCK_REALTIME != 0;
            let clock = if realtime { CLOCK_REALTIME } else { CLOCK_MONOTONIC };
            word.wait(value, bits, time::deadline(timeout, clock)?).map(|()| 0)
        }
        FUTEX_WAKE => Ok(word.wake(value as usize, u32::MAX) as u64),
        FUTEX_WAKE_BITSET => Ok(word.wake(value as usize, bits) as u64),
        FUTEX_CMP_REQUEUE if user::load(at)? != bits => Err(Errno::EAGAIN),
        FUTEX_REQUEUE | FUTEX_CMP_REQUEUE => {
            if (value as i32) < 0 || (timeout as i32) < 0 {
                return Err(Errno::EINVAL);
            }
            user::load(second)?;
            let to = Word { at: second, private: word.private };
            let (woken, moved) = word.requeue(to, value as usize, timeout as u32 as usize);
            Ok((woken + moved) as u64)
        }
        FUTEX_WAKE_OP => {
            let to = Word { at: second, private: word.private };
            let holds = change(second, bits)?;
            let mut woken = word.wake(value as usize, u32::MAX);
            if holds {
                woken += to.wake(timeout as u32 as usize, u32::MAX);
            }
            Ok(woken as u64)
        }
        _ => Err(errno::ENOSYS),
    }
}

/// Performs the change of FUTEX_WAKE_OP: `how` encodes an operation for the word and a comparison of its old
/// value. Returns the result of the comparison.
fn change(at: u64, how: u32) -> Result<bool, Errno> {
    let signed = |bits: u32| (bits << 20) as i32 >> 20;
    let (mut operand, compared) = (signed(how >> 12 & 0xfff), signed(how & 0xfff));
    if how >> 31 != 0 {
        operand = 1i32.wrapping_shl(operand as u32);
    }
    let mut old = user::load(at)?;
    loop {
        let new = match how >> 28 & 7 {
            0 => operand as u32,
            1 => old.wrapping_add(operand as u32),
            2 => old | operand as u32,
            3 => old & !(operand as u32),
            4 => old ^ operand as u32,
            _ => return Err(errno::ENOSYS),
        };
        match user::exchange(at, old, new)? {
            found if found == old => break,
            found => old = found,
        }
        relax();
    }
    let old = old as i32;
    match how >> 24 & 0xf {
        0 => Ok(old == compared),
        1 => Ok(old != compared),
        2 => Ok(old < compared),
        3 => Ok(old <= compared),
        4 => Ok(old > compared),
        5 => Ok(old >= compared),
        _ => Err(errno::ENOSYS),
    }
}

/// Maximum number of words that one call waits for.
const MAX_WAITED: u64 = 128;
/// The flag FUTEX2_SIZE_U32, for words of 32 bits.
const SIZE_32: u64 = 2;

/// Waits for any of several words, which an array of `struct futex_waitv` lists.
fn waitv(frame: &mut Frame) -> Answer {
    let [at, count, flags, timeout, clock, _] = frame.args();
    let is_clock = timeout == 0 || matches!(clock as u32, CLOCK_REALTIME | CLOCK_MONOTONIC);
    let count = count & 0xffff_ffff;
    if flags as u32 != 0 || at == 0 || !(1..=MAX_WAITED).contains(&count) || !is_clock {
        return Err(Errno::EINVAL);
    }
    let deadline = time::deadline(timeout, clock as u32)?;
    let word = |n| {
        let [value, word, flags] = UserPtr::<[u64; 3]>::new(at).add(n).read()?;
        let private = flags & u64::from(FUTEX_PRIVATE_FLAG) != 0;
        // The upper half of the flags is reserved.
        match u32::try_from(value) {
            Ok(value) if flags & !u64::from(FUTEX_PRIVATE_FLAG) == SIZE_32 => {
                Ok((Word { at: word, private }, value))
            }
            _ => Err(Errno::EINVAL),
        }
    };
    let words: Result<Vec<_>, Errno> = (0..count).map(word).collect();
    futex::wait_any(&words?, deadline).map(|woken| woken as u64)
}

/// Returns the end of a timeout that begins now; `u64::MAX` if the pointer is null.
fn relative(timeout: u64) -> Result<u64, Errno> {
    match timeout {
        0 => Ok(u64::MAX),
        at => Ok(deadline_after(time::duration(at)?)),
    }
}

/// Stores the address of the list of robust futexes, which `release_robust` reads when the thread ends.
fn set_robust_list(frame: &mut Frame) -> Answer {
    let [at, bytes, ..] = frame.args();
    if bytes != 24 {
        return Err(Errno::EINVAL);
    }
    current().robust_list.store(at, Relaxed);
    Ok(0)
}

/// Returns the robust list of a thread. Fails with ESRCH if there is no thread with this number.
fn get_robust_list(frame: &mut Frame) -> Answer {
    let [tid, head, bytes, ..] = frame.args();
    let thread = match tid as u32 {
        0 => Some(Thread::hold_current()),
        tid => process::find_task(tid).ok_or(Errno::ESRCH)?.1,
    };
    // A first thread that has ended has no list.
    let at = thread.map_or(0, |thread| thread.robust_list.load(Relaxed));
    UserPtr::<u64>::new(head).write(&at)?;
    UserPtr::<u64>::new(bytes).write(&24)?;
    Ok(0)
}
