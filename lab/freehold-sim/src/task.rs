//! What a task of a run does beside accesses: it waits, and it takes time. Outside of a run nothing happens.

use crate::atomic::{AtomicU32, Ordering};
use crate::run::{give_way, look, step};
use crate::world::{Next, World};
use std::ptr;

/// The number of the calling task, from 0 on. None: it is none of a run.
pub fn current() -> Option<usize> {
    look(|world| world.task())
}

/// How many runs this thread has begun. Each has a clock of its own.
pub fn runs() -> u64 {
    crate::run::runs()
}

/// The processor that it runs on.
pub fn cpu() -> Option<usize> {
    look(|world| world.cpu())
}

/// The socket of that.
pub fn socket() -> Option<usize> {
    look(|world| world.machine().socket_of(world.cpu()))
}

/// How long a grace period lasts beyond the read sections that it waits for, in nanoseconds.
pub fn grace_ns() -> u64 {
    look(|world| world.machine().cost.grace.ps() / 1000).unwrap_or(0)
}

/// Takes so many frames off the socket's free ones, whose lock the caller holds.
pub fn frames(count: usize) {
    step(|world| world.spend(world.machine().memory.frame.ps() * count as u64));
}

/// Virtual time, in nanoseconds since the run began.
pub fn now_ns() -> Option<u64> {
    look(|world| world.clock() / 1000)
}

/// Sleeps while the word has this value, until a wake-up for its address.
#[track_caller]
pub fn sleep(word: &AtomicU32, expected: u32) {
    // Both in one step: no other task goes on between the look and the sleep.
    if word.load(Ordering::SeqCst) == expected && look(|world| world.sleep_at(address(word))).is_some() {
        give_way(Next::Asleep);
    }
}

/// Sleeps until that time, in nanoseconds since the run began.
pub fn sleep_until(ns: u64) {
    if step(|world| world.sleep_until(ns.saturating_mul(1000))).is_some() {
        give_way(Next::Asleep);
    }
}

/// Wakes up to `most` tasks that sleep at this address, the longest asleep first.
pub fn wake(word: &AtomicU32, most: usize) {
    wake_at(address(word), most);
}

/// As [`wake`], by the address of the word.
pub fn wake_at(address: usize, most: usize) {
    step(|world| world.wake(address, most));
}

/// A turn of a loop that waits for another processor.
pub fn relax() {
    if let Some(Some(next)) = step(World::relax) {
        give_way(next);
    }
}

/// The task keeps its processor until as many calls of [`release`]: no other task runs there meanwhile. It
/// does not sleep in between.
pub fn keep() {
    look(World::keep);
}

/// See [`keep`].
pub fn release() {
    look(World::release);
}

/// So many nanoseconds of instructions.
pub fn work(ns: u64) {
    step(|world| world.spend(ns * 1000));
}

/// A page fault's way into the kernel and back, and what a kernel does for it beside the address space.
pub fn trap() {
    step(World::trap);
}

/// Zeroes so many bytes of memory.
pub fn zeroes(bytes: u64) {
    step(|world| world.moves(bytes, false));
}

/// Copies so many bytes of memory.
pub fn copies(bytes: u64) {
    step(|world| world.moves(bytes, true));
}

/// Interrupts other processors, and waits until they have all answered.
pub fn interrupt(others: impl Iterator<Item = usize>) {
    step(|world| world.interrupt(others));
}

fn address(word: &AtomicU32) -> usize {
    ptr::from_ref(word).addr()
}
