//! Calls that wait for files: poll, select, epoll. A caller sleeps on the keys of all its files at once.
//!
//! A call collects the keys and the readiness of its files (`Look`), queues itself on every key, and looks
//! again before it sleeps. No lock is held while a file computes its readiness. `files/epoll.rs` has the sets
//! of epoll. A file whose readiness changes without a wake-up gives a time at which the caller looks again
//! (`File::ready_at`). The program `files.c` tests the calls.

use crate::arch::{clock, frame::Frame, preempt::preempt_point};
use crate::calls::answer::{Answer, Calls};
use crate::calls::{descriptors::file, time};
use crate::files::{epoll::Epoll, epoll::Looked, node::node_of, open::Open};
use crate::platform::user::{self, UserPtr};
use crate::process::{signal, signal::restart::deadline_after};
use crate::sched::wait::{self, Key, Sleep, Woken};
use crate::sched::{charge, checkpoint, current};
use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_poll, poll),
    (__NR_ppoll, ppoll),
    (__NR_select, select),
    (__NR_pselect6, pselect),
    (__NR_epoll_create, epoll_create),
    (__NR_epoll_create1, epoll_create1),
    (__NR_epoll_ctl, epoll_ctl),
    (__NR_epoll_wait, epoll_wait),
    (__NR_epoll_pwait, epoll_pwait),
    (__NR_epoll_pwait2, epoll_pwait2),
];

/// The result of one look at all files.
struct Look<R> {
    /// The ready files, or `None` if no file is ready.
    found: Option<R>,
    /// Keys on which the caller sleeps if no file is ready.
    keys: Vec<Key>,
    /// Time in nanoseconds at which the caller must look again even if no key is woken.
    again: u64,
    /// The epolls among the files.
    looked: Looked,
}

impl<R> Look<R> {
    fn new() -> Self {
        Look { found: None, keys: Vec::new(), again: u64::MAX, looked: Looked::default() }
    }

    /// Returns the events for which a file is ready, and adds the file's key and time to this look.
    ///
    /// # Errors
    ///
    /// ENOMEM; EINTR if the calling thread has to end.
    fn ask(&mut self, open: &Open) -> Result<u32, Errno> {
        charge::reserve(&mut self.keys, 1)?;
        self.keys.extend(open.file.ready_key());
        self.again = self.again.min(open.file.ready_at());
        self.looked.ready(open)
    }
}

/// Calls `look` until it finds a ready file, and sleeps on the keys in between. Returns `None` when the
/// deadline has passed. Fails with EINTR if a signal arrives.
fn wait_for<R>(deadline: u64, mut look: impl FnMut() -> Result<Look<R>, Errno>) -> Result<Option<R>, Errno> {
    loop {
        let first = look()?;
        if first.found.is_some() || clock::now_ns() >= deadline {
            return Ok(first.found);
        }
        let mut waiting = Vec::new();
        charge::reserve(&mut waiting, first.keys.len().max(1))?;
        for key in &first.keys {
            preempt_point();
            if let Err(error) = charge::admit() {
                wait::cancel_all(&waiting);
                return Err(error);
            }
            waiting.push(wait::enqueue(*key, u32::MAX));
        }
        if waiting.is_empty() {
            waiting.push(wait::enqueue(Key::kernel(&raw const deadline as u64), u32::MAX));
        }
        // Looks again, because an event may have arrived before the thread was queued.
        let second = look();
        if !matches!(&second, Ok(Look { found: None, .. })) {
            wait::cancel_all(&waiting);
            return second.map(|look| look.found);
        }
        let until = deadline.min(first.again);
        if wait::sleep_any(&waiting, Sleep::Interruptible, until) == Err(Woken::Signal) {
            return Err(Errno::EINTR);
        }
    }
}

/// Sleeps until a file is ready for one of these events or has failed. Fails with EINTR if a signal arrives.
pub fn wait_until_ready(open: &Open, events: u32) -> Result<(), Errno> {
    wait_for(u64::MAX, || {
        let mut look = Look::new();
        let ready = look.ask(open)? & (events | POLLERR | POLLHUP);
        look.found = (ready != 0).then_some(());
        Ok(look)
    })
    .map(|_| ())
}

/// Returns the time in nanoseconds at which a timeout of `timeout` milliseconds ends. Returns `u64::MAX`,
/// which means never, if the timeout is negative.
fn by_ms(timeout: u64) -> u64 {
    match timeout as i32 {
        ms @ 0.. => deadline_after(ms as u64 * 1_000_000),
        _ => u64::MAX,
    }
}

/// Blocks the signals of `mask` until the call is over, if the program passed a mask.
fn block(mask: u64, bytes: u64) -> Result<(), Errno> {
    let Some(mask) = UserPtr::<u64>::optional(mask) else { return Ok(()) };
    if bytes != 8 {
        return Err(Errno::EINVAL);
    }
    signal::set_blocked_for_call(mask.read()?);
    Ok(())
}

fn poll(frame: &mut Frame) -> Answer {
    let [at, count, timeout, ..] = frame.args();
    poll_until(at, count, by_ms(timeout))
}

fn ppoll(frame: &mut Frame) -> Answer {
    let [at, count, timeout, mask, bytes, _] = frame.args();
    let deadline = time::after_timeout(timeout)?;
    block(mask, bytes)?;
    poll_until(at, count, deadline)
}

fn poll_until(at: u64, count: u64, deadline: u64) -> Answer {
    let count = u64::from(count as u32);
    if count > current().files.limit() as u64 {
        return Err(Errno::EINVAL);
    }
    Ok(wait_for(deadline, || look_poll(at, count))?.unwrap_or(0))
}

/// Looks at every file of a poll, and stores the events for which each is ready. The result is the number of
/// ready files.
fn look_poll(at: u64, count: u64) -> Result<Look<u64>, Errno> {
    let (mut look, mut ready) = (Look::new(), 0);
    for n in 0..count {
        checkpoint()?;
        let entry = UserPtr::<u64>::new(at).add(n);
        let word = entry.read()?;
        let (descriptor, events) = (word as i32, (word >> 32) as u16);
        let found = match file(descriptor as u32 as u64) {
            _ if descriptor < 0 => 0,
            Ok(open) => {
                // Normal data is the only kind of data, so POLLRDNORM equals POLLIN and POLLWRNORM equals
                // POLLOUT.
                let events = u32::from(events);
                let more = if events & POLLRDNORM != 0 { POLLIN } else { 0 }
                    | if events & POLLWRNORM != 0 { POLLOUT } else { 0 };
                let ready = look.ask(&open)? & (events | more | POLLERR | POLLHUP);
                let more = if ready & POLLIN != 0 { events & POLLRDNORM } else { 0 }
                    | if ready & POLLOUT != 0 { events & POLLWRNORM } else { 0 };
                ready & (events | POLLERR | POLLHUP) | more
            }
            Err(_) => POLLNVAL,
        };
        ready += u64::from(found != 0);
        UserPtr::<u16>::new(entry.at() + 6).write(&(found as u16))?;
    }
    look.found = (ready > 0).then_some(ready);
    Ok(look)
}

fn select(frame: &mut Frame) -> Answer {
    let [count, read, write, except, timeout, _] = frame.args();
    let deadline = match UserPtr::<[u64; 2]>::optional(timeout) {
        None => u64::MAX,
        Some(timeout) => {
            let [seconds, us] = timeout.read()?;
            if seconds > i64::MAX as u64 || us > i64::MAX as u64 {
                return Err(Errno::EINVAL);
            }
            let ns = seconds.saturating_mul(1_000_000_000).saturating_add(us.saturating_mul(1000));
            clock::now_ns().saturating_add(ns)
        }
    };
    select_until(count, [read, write, except], deadline)
}

fn pselect(frame: &mut Frame) -> Answer {
    let [count, read, write, except, timeout, mask] = frame.args();
    let deadline = time::after_timeout(timeout)?;
    if let Some(mask) = UserPtr::<[u64; 2]>::optional(mask) {
        let [mask, bytes] = mask.read()?;
        block(mask, bytes)?;
    }
    select_until(count, [read, write, except], deadline)
}

/// Three sets of descriptors, one bit each: for reading, for writing, and for exceptional conditions.
type Sets = [Vec<u8>; 3];
/// Events that make a descriptor ready in each set.
const COUNTS: [u32; 3] = [POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI];

/// Waits for sets of descriptors. Ignores descriptors beyond the size of the process's table, as Linux does.
fn select_until(count: u64, at: [u64; 3], deadline: u64) -> Answer {
    if count as i32 <= -1 {
        return Err(Errno::EINVAL);
    }
    let count = (count as u32 as usize).min(current().files.room());
    let set = || charge::filled(0, count.div_ceil(64) * 8);
    let empty = || -> Result<Sets, Errno> { Ok([set()?, set()?, set()?]) };
    let mut asked = empty()?;
    for (at, set) in at.iter().zip(&mut asked).filter(|(at, _)| **at != 0) {
        user::copy_in(*at, set)?;
    }
    let found = wait_for(deadline, || look_select(count, &asked, empty()?))?;
    let (ready, sets) = match found {
        Some(found) => found,
        None => (0, empty()?),
    };
    for (at, set) in at.iter().zip(&sets).filter(|(at, _)| **at != 0) {
        user::copy_out(*at, set)?;
    }
    Ok(ready)
}

/// Looks at every descriptor in the sets `asked`. The result is the number of bits and the sets of ready
/// descriptors.
fn look_select(count: usize, asked: &Sets, mut found: Sets) -> Result<Look<(u64, Sets)>, Errno> {
    let (mut look, mut ready) = (Look::new(), 0);
    for n in 0..count {
        checkpoint()?;
        let (byte, bit) = (n / 8, 1 << (n % 8));
        if asked.iter().all(|set| set[byte] & bit == 0) {
            continue;
        }
        let open = current().files.get_any(n as u64)?;
        // A file that is open with O_PATH is ready for everything, as poll's POLLNVAL is for select.
        let is = if open.is_path() { u32::MAX } else { look.ask(&open)? };
        for (set, (asked, counts)) in found.iter_mut().zip(asked.iter().zip(COUNTS)) {
            if asked[byte] & bit != 0 && is & counts != 0 {
                set[byte] |= bit;
                ready += 1;
            }
        }
    }
    look.found = (ready > 0).then_some((ready, found));
    Ok(look)
}

fn epoll_create(frame: &mut Frame) -> Answer {
    let [size, ..] = frame.args();
    if size as i32 <= 0 {
        return Err(Errno::EINVAL);
    }
    new_epoll(false)
}

fn epoll_create1(frame: &mut Frame) -> Answer {
    let [flags, ..] = frame.args();
    if flags as u32 & !O_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    new_epoll(flags != 0)
}

fn new_epoll(close_on_exec: bool) -> Answer {
    let open = Open::new(Arc::new(Epoll::new()), O_RDWR, b"anon_inode:[eventpoll]");
    current().files.add(open, 0, close_on_exec)
}

/// Calls `f` with the epoll of a descriptor.
fn with_epoll<R>(open: &Open, f: impl FnOnce(&Epoll) -> Result<R, Errno>) -> Result<R, Errno> {
    f(Epoll::of(open).ok_or(Errno::EINVAL)?)
}

fn epoll_ctl(frame: &mut Frame) -> Answer {
    let [set, what, descriptor, event, ..] = frame.args();
    let (set, open) = (file(set)?, file(descriptor)?);
    if Arc::ptr_eq(&set, &open) {
        return Err(Errno::EINVAL);
    }
    if open.file.mapping().is_some() || node_of(&*open.file).is_some() {
        return Err(Errno::EPERM);
    }
    // `struct epoll_event` is packed: the events, then the program's word.
    let (mut events, mut data) = (0, 0);
    if what as u32 != EPOLL_CTL_DEL {
        let words = UserPtr::<[u32; 3]>::new(event).read()?;
        (events, data) = (words[0], u64::from(words[1]) | u64::from(words[2]) << 32);
    }
    with_epoll(&set, |epoll| match what as u32 {
        EPOLL_CTL_ADD => Epoll::add(&set, descriptor, &open, events, data),
        EPOLL_CTL_MOD => epoll.modify(descriptor, &open, events, data),
        EPOLL_CTL_DEL => epoll.remove(&set, descriptor, &open),
        _ => Err(Errno::EINVAL),
    })?;
    Ok(0)
}

fn epoll_wait(frame: &mut Frame) -> Answer {
    let [set, out, most, timeout, ..] = frame.args();
    epoll_until(set, out, most, by_ms(timeout))
}

fn epoll_pwait(frame: &mut Frame) -> Answer {
    let [set, out, most, timeout, mask, bytes] = frame.args();
    block(mask, bytes)?;
    epoll_until(set, out, most, by_ms(timeout))
}

fn epoll_pwait2(frame: &mut Frame) -> Answer {
    let [set, out, most, timeout, mask, bytes] = frame.args();
    let deadline = time::after_timeout(timeout)?;
    block(mask, bytes)?;
    epoll_until(set, out, most, deadline)
}

/// Waits for events of an epoll until the deadline, and stores up to `most` of them at `out`.
fn epoll_until(set: u64, out: u64, most: u64, deadline: u64) -> Answer {
    let most = usize::try_from(most as i32).ok().filter(|most| *most > 0).ok_or(Errno::EINVAL)?;
    let set = file(set)?;
    let told = with_epoll(&set, |epoll| {
        wait_for(deadline, || {
            let mut look = Look::new();
            let (told, again) = epoll.look(most, &mut look.keys)?;
            look.again = again;
            look.found = (!told.is_empty()).then_some(told);
            Ok(look)
        })
    })?;
    let told = told.unwrap_or_default();
    for (n, (events, data)) in told.iter().enumerate() {
        checkpoint()?;
        let words = [*events, *data as u32, (*data >> 32) as u32];
        UserPtr::<[u32; 3]>::new(out).add(n as u64).write(&words)?;
    }
    Ok(told.len() as u64)
}
