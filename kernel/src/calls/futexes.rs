//! Futexes.

use super::{Answer, Calls, errno, nothing, time};
use crate::arch::clock;
use crate::arch::cpu::current;
use crate::arch::trap::Frame;
use crate::arch::user;
use crate::task::futex::Word;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls =
    &[(__NR_futex, call), (__NR_set_robust_list, set_robust_list), (__NR_membarrier, nothing)];

fn call(frame: &mut Frame) -> Answer {
    let [at, operation, value, timeout, _, bits] = frame.args();
    let (operation, value, bits) = (operation as u32, value as u32, bits as u32);
    let word = Word { at, private: operation & FUTEX_PRIVATE_FLAG != 0 };
    match operation & FUTEX_CMD_MASK as u32 {
        FUTEX_WAIT => word.wait(value, u32::MAX, relative(timeout)?).map(|()| 0),
        FUTEX_WAIT_BITSET => {
            let realtime = operation & FUTEX_CLOCK_REALTIME != 0;
            let clock = if realtime { CLOCK_REALTIME } else { CLOCK_MONOTONIC };
            word.wait(value, bits, time::deadline(timeout, clock)?).map(|()| 0)
        }
        FUTEX_WAKE => Ok(word.wake(value as usize, u32::MAX) as u64),
        FUTEX_WAKE_BITSET if bits == 0 => Err(Errno::EINVAL),
        FUTEX_WAKE_BITSET => Ok(word.wake(value as usize, bits) as u64),
        FUTEX_CMP_REQUEUE if user::load(at)? != bits => Err(Errno::EAGAIN),
        // Those that would be moved are woken as well: they look at their word again.
        FUTEX_REQUEUE | FUTEX_CMP_REQUEUE => {
            let most = (value as usize).saturating_add(timeout as u32 as usize);
            Ok(word.wake(most, u32::MAX) as u64)
        }
        _ => Err(errno::ENOSYS),
    }
}

/// The end of a time that begins now.
fn relative(timeout: u64) -> Result<u64, Errno> {
    match timeout {
        0 => Ok(u64::MAX),
        at => Ok(clock::now_ns().saturating_add(time::duration(at)?)),
    }
}

fn set_robust_list(frame: &mut Frame) -> Answer {
    let [at, bytes, ..] = frame.args();
    if bytes != 24 {
        return Err(Errno::EINVAL);
    }
    current().robust_list.set((at, bytes));
    Ok(0)
}
