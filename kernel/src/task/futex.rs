//! Futexes: sleeping on a word of a program's memory.
//!
//! A futex is named by address space and address. (Words in shared memory will be named by file and offset.)

use super::wait::{self, Key, Sleep, Woken};
use crate::arch::clock;
use crate::arch::cpu;
use crate::arch::user;
use crate::calls::errno;
use freehold::counted::Counted;
use freehold::error::Errno;

fn key(at: u64) -> Key {
    Key { of: Counted::as_ptr(cpu::current().space()) as u64, at }
}

/// Wakes up to `most` that sleep on the word; returns how many.
pub fn wake_at(at: u64, most: usize) -> usize {
    wait::wake(key(at), most)
}

/// The same, those whose bits are among these.
pub fn wake_bits(at: u64, most: usize, bits: u32) -> usize {
    wait::wake_bits(key(at), most, bits)
}

/// Sleeps while the word is `expected`, until a wake-up by one of these bits or the deadline, in nanoseconds
/// since the start.
///
/// # Errors
///
/// EAGAIN: the word differs. ETIMEDOUT, EINTR, EFAULT.
pub fn wait_while(at: u64, expected: u32, bits: u32, deadline: u64) -> Result<(), Errno> {
    if !at.is_multiple_of(4) || bits == 0 {
        return Err(Errno::EINVAL);
    }
    // In the list first, then the look: whoever changes the word afterwards finds the thread.
    let waiting = wait::enqueue(key(at), bits);
    match user::load(at) {
        Ok(word) if word == expected => {}
        // A wake-up that came already counts, or it would be lost for others.
        _ if waiting.cancel() => return Ok(()),
        Ok(_) => return Err(Errno::EAGAIN),
        Err(error) => return Err(error),
    }
    match waiting.sleep(Sleep::Interruptible, deadline) {
        Woken::ByWaker => Ok(()),
        Woken::BySignal => Err(Errno::EINTR),
        Woken::ByTime => Err(errno::ETIMEDOUT),
    }
}

/// Sleeps until the deadline.
///
/// # Errors
///
/// EINTR.
pub fn sleep_until(deadline: u64) -> Result<(), Errno> {
    let word = 0u32;
    let waiting = wait::enqueue(Key::kernel(&raw const word as u64), u32::MAX);
    match waiting.sleep(Sleep::Interruptible, deadline) {
        Woken::BySignal if clock::now_ns() < deadline => Err(Errno::EINTR),
        _ => Ok(()),
    }
}
