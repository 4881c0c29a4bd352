//! Futexes.

use super::{Answer, Calls, errno, nothing, time};
use crate::arch::clock;
use crate::arch::cpu::current;
use crate::arch::trap::Frame;
use crate::arch::user;
use crate::task::futex;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls =
    &[(__NR_futex, call), (__NR_set_robust_list, set_robust_list), (__NR_membarrier, nothing)];

fn call(frame: &mut Frame) -> Answer {
    let [at, operation, value, timeout, second, bits] = frame.args();
    let (operation, value, bits) = (operation as u32, value as u32, bits as u32);
    match operation & FUTEX_CMD_MASK as u32 {
        FUTEX_WAIT => wait(at, value, u32::MAX, relative(timeout)?),
        FUTEX_WAIT_BITSET => {
            let deadline = match operation & FUTEX_CLOCK_REALTIME {
                0 => time::deadline(timeout, CLOCK_MONOTONIC)?,
                _ => time::deadline(timeout, CLOCK_REALTIME)?,
            };
            wait(at, value, bits, deadline)
        }
        FUTEX_WAKE => Ok(futex::wake_at(at, value as usize) as u64),
        FUTEX_WAKE_BITSET if bits == 0 => Err(Errno::EINVAL),
        FUTEX_WAKE_BITSET => Ok(futex::wake_bits(at, value as usize, bits) as u64),
        FUTEX_CMP_REQUEUE if user::load(at)? != bits => Err(Errno::EAGAIN),
        // Those that would be moved are woken as well: they look at their word again.
        FUTEX_REQUEUE | FUTEX_CMP_REQUEUE => {
            let _ = second;
            let most = (value as usize).saturating_add(timeout as u32 as usize);
            Ok(futex::wake_at(at, most) as u64)
        }
        _ => Err(errno::ENOSYS),
    }
}

fn wait(at: u64, value: u32, bits: u32, deadline: u64) -> Answer {
    futex::wait_while(at, value, bits, deadline).map(|()| 0)
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
