//! Futexes (futex(2)): sleeping on a word of a program's memory. `calls/futexes.rs` has the calls, and
//! `sched/wait.rs` has the lists of sleepers.
//!
//! A futex is identified by address space and address or, in shared memory, by file and offset
//! ([`Word::key`]). The kernel keeps no state for a word on which no thread sleeps. A waiter enters the list
//! before it reads the word, and a waker changes the word before it wakes, so no wake-up is lost and no lock
//! is needed. Reading the word may fault and sleep, so no lock is held during the read. When a thread ends,
//! the kernel walks its robust list. There are no futexes with priority inheritance. The program `jobs.c` of
//! the tests checks requeueing, and `threads.c` checks robust locks.

use crate::arch::{clock, lock};
use crate::errno;
use crate::platform::user::{self, UserPtr};
use crate::sched::wait::{self, Key, Sleep, Woken};
use crate::sched::{Thread, current};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file::Object;
use freehold::report::QueryFlags;
use freehold::report::maps::MapName;

/// Parts of a word in a robust list: the number of the thread that owns the lock, a flag for waiting threads,
/// and a flag for the death of the owner.
const OWNER: u32 = 0x3fff_ffff;
const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;
/// Maximum number of entries of a robust list that are processed.
const MAX_ROBUST: usize = 2048;

/// A word that may be a futex. `private` is the program's statement that no other process uses the word.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    pub at: u64,
    pub private: bool,
}

impl Word {
    /// Returns the key of the word in the calling thread's space.
    fn key(self) -> Key {
        let space = current().space();
        if !self.private
            && let Ok(line) = space.query_vma(self.at, QueryFlags::SHARED)
            && let MapName::Object(Object::File(file)) = &line.name
        {
            let of = Counted::as_ptr(file.mapping()) as u64;
            return Key { of, at: line.offset + (self.at - line.start) };
        }
        Key { of: Counted::as_ptr(space) as u64, at: self.at }
    }

    /// Wakes up to `most` threads that sleep on the word with one of these bits, the longest sleepers first.
    /// Returns the number of woken threads.
    pub fn wake(self, most: usize, bits: u32) -> usize {
        wait::wake_bits(self.key(), most, bits)
    }

    /// Wakes up to `wakes` threads, and moves up to `moves` others to another word. Returns both numbers.
    pub fn requeue(self, to: Word, wakes: usize, moves: usize) -> (usize, usize) {
        wait::requeue(self.key(), to.key(), wakes, moves)
    }

    /// Sleeps if the word is `expected`, until a wake-up with one of these bits or until the deadline, in
    /// nanoseconds since the start.
    ///
    /// # Errors
    ///
    /// EAGAIN if the word is not `expected`; ETIMEDOUT, EINTR, EFAULT, EINVAL.
    pub fn wait(self, expected: u32, bits: u32, deadline: u64) -> Result<(), Errno> {
        if bits == 0 {
            return Err(Errno::EINVAL);
        }
        user::load(self.at)?;
        // The thread is queued before it reads the word, so a waker that changes the word afterwards finds
        // the thread in the list.
        let waiting = wait::enqueue(self.key(), bits);
        match user::load(self.at) {
            Ok(word) if word == expected => {}
            // A waker has already chosen this thread, so the wait must succeed: no other thread gets this
            // wake-up.
            _ if waiting.cancel() => return Ok(()),
            Ok(_) => return Err(Errno::EAGAIN),
            Err(error) => return Err(error),
        }
        match waiting.sleep(Sleep::Interruptible, deadline) {
            Woken::Waker => Ok(()),
            woken => Err(ended_by(woken)),
        }
    }
}

/// Returns the error for a wait that ended without a wake-up.
fn ended_by(woken: Woken) -> Errno {
    if woken == Woken::Time { errno::ETIMEDOUT } else { Errno::EINTR }
}

/// Sleeps if every word has its expected value, until a waker wakes the thread at one of the words. Returns
/// the index of that word.
///
/// # Errors
///
/// Fails like [`Word::wait`].
pub fn wait_any(words: &[(Word, u32)], deadline: u64) -> Result<usize, Errno> {
    words.iter().try_for_each(|(word, _)| user::load(word.at).map(|_| ()))?;
    let waiting: Vec<_> = words.iter().map(|(word, _)| wait::enqueue_one_of_many(word.key())).collect();
    let holds = words.iter().try_for_each(|(word, expected)| match user::load(word.at)? {
        found if found == *expected => Ok(()),
        _ => Err(Errno::EAGAIN),
    });
    match holds {
        Ok(()) => wait::sleep_any(&waiting, Sleep::Interruptible, deadline).map_err(ended_by),
        Err(error) => wait::cancel_all(&waiting).ok_or(error),
    }
}

/// Sleeps until the deadline.
///
/// # Errors
///
/// EINTR if a signal arrives earlier.
pub fn sleep_until(deadline: u64) -> Result<(), Errno> {
    let word = 0u32;
    let waiting = wait::enqueue(Key::kernel(&raw const word as u64), u32::MAX);
    match waiting.sleep(Sleep::Interruptible, deadline) {
        Woken::Signal if clock::now_ns() < deadline => Err(Errno::EINTR),
        _ => Ok(()),
    }
}

/// Marks the robust futexes that the ending thread holds, and wakes one waiter of each. The list is in the
/// program's memory; an invalid entry ends the walk.
pub fn release_robust(thread: &Thread) {
    let head = thread.robust_list.load(Relaxed);
    if head == 0 {
        return;
    }
    let Ok([first, offset, pending]) = UserPtr::<[u64; 3]>::new(head).read() else { return };
    let mut entry = first;
    for _ in 0..MAX_ROBUST {
        if entry & !1 == head {
            break;
        }
        let Ok(next) = UserPtr::<u64>::new(entry & !1).read() else { return };
        if entry & !1 != pending & !1 && release(thread, (entry & !1).wrapping_add(offset)).is_err() {
            return;
        }
        entry = next;
    }
    if pending != 0 {
        let _ = release(thread, (pending & !1).wrapping_add(offset));
    }
}

/// Releases one robust futex if the thread owns it: records in the futex that the owner died, and wakes one
/// waiter.
fn release(thread: &Thread, at: u64) -> Result<(), Errno> {
    let mut word = user::load(at)?;
    while word & OWNER == thread.tid() {
        let found = user::exchange(at, word, word & WAITERS | OWNER_DIED)?;
        if found == word {
            if word & WAITERS != 0 {
                Word { at, private: false }.wake(1, u32::MAX);
            }
            return Ok(());
        }
        word = found;
        lock::relax();
    }
    Ok(())
}
