//! Operations of a task other than accesses: waiting, and spending time.
//!
//! The host of the simulation (`host_sim/` of `freehold-machine`) and the experiments call these functions.
//! Each call is one step of the task: `run.rs` first lets tasks with an earlier clock run, and
//! `world.rs` does the work. Functions that only read the state ([`now_ns`], [`cpu`]) or mark it ([`keep`])
//! are no step and take no time. Outside a run, operations do nothing, and functions that return an `Option`
//! return `None`.
//!
//! The cost of a new operation must be a figure in `machine.rs`, so that the file of each machine states its
//! value.

use crate::atomic::{AtomicU32, Ordering};
use crate::run::{give_way, look, step};
use crate::world::{Next, World};
use std::ptr;

/// Returns the number of the calling task, counted from 0, or `None` if the caller is not a task of a run.
pub fn current() -> Option<usize> {
    look(|world| world.task())
}

/// Returns the number of runs that this thread has begun. Each run has its own clock.
pub fn runs() -> u64 {
    crate::run::runs()
}

/// Returns the processor that the task runs on.
pub fn cpu() -> Option<usize> {
    look(|world| world.cpu())
}

/// Returns the socket of the processor that the task runs on.
pub fn socket() -> Option<usize> {
    look(|world| world.machine().socket_of(world.cpu()))
}

/// Returns the minimum duration of a grace period, in nanoseconds.
pub fn grace_ns() -> u64 {
    look(|world| world.machine().cost.grace.ps() / 1000).unwrap_or(0)
}

/// Spends the time to take `count` frames off the socket's free list. The caller holds the lock of that list.
pub fn frames(count: usize) {
    step(|world| world.spend(world.machine().memory.frame.ps() * count as u64));
}

/// Returns the virtual time, in nanoseconds since the run began.
pub fn now_ns() -> Option<u64> {
    look(|world| world.clock() / 1000)
}

/// If the word has this value, sleeps until a wake-up for the word's address.
#[track_caller]
pub fn sleep(word: &AtomicU32, expected: u32) {
    // One step: no other task runs between the read and the sleep.
    if word.load(Ordering::SeqCst) == expected && look(|world| world.sleep_at(address(word))).is_some() {
        give_way(Next::Asleep);
    }
}

/// Sleeps until time `ns`, in nanoseconds since the run began.
pub fn sleep_until(ns: u64) {
    if step(|world| world.sleep_until(ns.saturating_mul(1000))).is_some() {
        give_way(Next::Asleep);
    }
}

/// Wakes up to `most` tasks that sleep at this address, in the order in which they went to sleep.
pub fn wake(word: &AtomicU32, most: usize) {
    wake_at(address(word), most);
}

/// Wakes tasks like [`wake`], by the address of the word.
pub fn wake_at(address: usize, most: usize) {
    step(|world| world.wake(address, most));
}

/// Performs one iteration of a loop that waits for another processor.
pub fn relax() {
    if let Some(Some(next)) = step(World::relax) {
        give_way(next);
    }
}

/// Keeps the task on its processor until [`release`] has been called as often as this function. Until then no
/// other task runs there, and the task must not sleep.
pub fn keep() {
    look(World::keep);
}

/// Ends the effect of one call of [`keep`].
pub fn release() {
    look(World::release);
}

/// Spends `ns` nanoseconds of instructions.
pub fn work(ns: u64) {
    step(|world| world.spend(ns * 1000));
}

/// Spends the time of entering the kernel for a page fault and returning, and of the kernel's work that does
/// not concern the address space.
pub fn trap() {
    step(World::trap);
}

/// Spends the time of zeroing `bytes` bytes of memory.
pub fn zeroes(bytes: u64) {
    step(|world| world.moves(bytes, false));
}

/// Spends the time of copying `bytes` bytes of memory.
pub fn copies(bytes: u64) {
    step(|world| world.moves(bytes, true));
}

/// Interrupts other processors and waits until all have answered.
pub fn interrupt(others: impl Iterator<Item = usize>) {
    step(|world| world.interrupt(others));
}

/// Returns the address by which a task sleeps on a word.
fn address(word: &AtomicU32) -> usize {
    ptr::from_ref(word).addr()
}
