//! timerfd: counts how often a timer expired.
//!
//! A timer is only a setting, and nothing is armed in `sched/timers.rs`: each read computes the number of
//! expirations from the clock, and sleeps until the next one. One spin lock guards the setting.
//! `calls/events.rs` has the calls, and `process/itimers.rs` has the timers that send signals. The program
//! `files.c` of the tests checks a timerfd with epoll.

use crate::arch::{clock, lock::SpinLock};
use crate::files::{File, NO_INODE, READABLE, Stat, buffer::UserBuffer};
use crate::sched::wait::{self, Key, Sleep, Woken};
use freehold::error::Errno;

/// The setting of a timer. Times are in nanoseconds since the start.
#[derive(Clone, Copy, Default)]
struct Setting {
    /// Time of the next expiration; 0 if the timer is disarmed.
    next: u64,
    /// Interval between expirations; 0 if the timer expires once.
    interval: u64,
}

impl Setting {
    /// Returns how often the timer has expired by now. With `takes`, sets `next` to the next expiration after
    /// now.
    fn expirations(&mut self, takes: bool) -> u64 {
        let now = clock::now_ns();
        if self.next == 0 || now < self.next {
            return 0;
        }
        let count = (now - self.next).checked_div(self.interval).map_or(1, |more| more + 1);
        if takes {
            self.next = if self.interval == 0 { 0 } else { self.next + count * self.interval };
        }
        count
    }
}

/// The file of a timerfd.
pub struct Timer {
    /// The clock of the timer (`CLOCK_REALTIME` and so on). The calls convert its times.
    pub clock: u32,
    setting: SpinLock<Setting>,
}

impl Timer {
    /// Makes a timer that is disarmed.
    pub fn new(clock: u32) -> Self {
        Timer { clock, setting: SpinLock::new(Setting::default()) }
    }

    /// Returns the key on which readers sleep.
    fn key(&self) -> Key {
        Key::kernel(&raw const self.setting as u64)
    }

    /// Sets the timer. Returns the time that was left until the next expiration, and the old interval.
    pub fn set(&self, next: u64, interval: u64) -> (u64, u64) {
        let before = self.get();
        *self.setting.lock() = Setting { next, interval };
        wait::wake(self.key(), usize::MAX);
        before
    }

    /// Returns the time until the next expiration, and the interval.
    pub fn get(&self) -> (u64, u64) {
        let mut setting = *self.setting.lock();
        // A periodic timer that has expired reports the time until its next expiration.
        if setting.interval != 0 {
            setting.expirations(true);
        }
        let left = if setting.next == 0 { 0 } else { setting.next.saturating_sub(clock::now_ns()) };
        (left, setting.interval)
    }
}

impl File for Timer {
    fn read(&self, _: u64, to: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        if to.len() < 8 {
            return Err(Errno::EINVAL);
        }
        loop {
            let waiting = wait::enqueue(self.key(), u32::MAX);
            let count = self.setting.lock().expirations(true);
            if count > 0 || nonblock {
                waiting.cancel();
                return if count > 0 { to.put_whole(&count.to_ne_bytes()) } else { Err(Errno::EAGAIN) };
            }
            if waiting.sleep(Sleep::Interruptible, self.ready_at()) == Woken::Signal {
                return Err(Errno::EINTR);
            }
        }
    }

    fn stat(&self) -> Stat {
        Stat { inode: NO_INODE, mode: 0o600, links: 1, ..Stat::default() }
    }

    fn ready(&self) -> u32 {
        if self.setting.lock().expirations(false) > 0 { READABLE } else { 0 }
    }

    fn ready_at(&self) -> u64 {
        match self.setting.lock().next {
            0 => u64::MAX,
            next => next,
        }
    }

    fn changes(&self) -> u64 {
        self.setting.lock().expirations(false)
    }

    fn ready_key(&self) -> Option<Key> {
        Some(self.key())
    }

    fn as_any(&self) -> Option<&dyn core::any::Any> {
        Some(self)
    }
}
