//! The kernel in C as a [`Host`]: waiting, CPU numbers, spin sections and grace periods.
#![expect(unsafe_code, reason = "implements the engine's unsafe trait with functions of the kernel")]

use crate::{
    grace::{self, Reading},
    setup::{call, call_if_present, machine},
};
use core::ptr::NonNull;
use freehold::platform::atomic::AtomicU32;
use freehold::platform::{Host, Killed, LockContext, Rank, RcuHead};
use freehold_kit::MAX_CPUS;
use freehold_sync::Interrupted;

/// The kernel in C, whose functions [`fh_init`](crate::call::boot::fh_init) has received.
#[derive(Debug)]
pub struct Kernel;

impl Drop for Kernel {
    /// Ends an engine's or a memory's use of the kernel. Deferred functions may use the kernel's memory.
    fn drop(&mut self) {
        Self::rcu_barrier();
    }
}

// SAFETY: the caller of `fh_init` promises that the kernel's functions keep their contracts, which are those
// of the trait. `grace.rs` explains why a deferred function waits for all read sections.
unsafe impl Host for Kernel {
    const MAX_CPUS: usize = MAX_CPUS;
    type RcuGuard = Reading;

    fn cpus() -> usize {
        machine().cpus as usize
    }

    fn wait(word: &AtomicU32, expected: u32) {
        call!(wait(word.as_ptr(), expected));
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        match call_if_present!(wait_killable(word.as_ptr(), expected)) {
            Some(true) => Err(Killed),
            Some(false) => Ok(()),
            // A call that only asks for signals passes a word that differs, so this returns at once.
            None => {
                Self::wait(word, expected);
                Ok(())
            }
        }
    }

    fn wait_interruptible(word: &AtomicU32, expected: u32) -> Result<(), Interrupted> {
        match call_if_present!(wait_interruptible(word.as_ptr(), expected)) {
            Some(true) => Err(Interrupted),
            Some(false) => Ok(()),
            None => Self::wait_killable(word, expected).map_err(|Killed| Interrupted),
        }
    }

    fn wake_one(word: &AtomicU32) {
        call!(wake(word.as_ptr(), false));
    }

    fn wake_all(word: &AtomicU32) {
        call!(wake(word.as_ptr(), true));
    }

    #[inline]
    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        let cpu = call!(cpu_enter());
        let result = f(cpu as usize);
        call!(cpu_exit());
        result
    }

    #[inline]
    fn spin_enter(_: Rank) {
        if call_if_present!(spin_enter()).is_none() {
            call!(cpu_enter());
        }
    }

    #[inline]
    fn spin_exit(_: Rank) {
        if call_if_present!(spin_exit()).is_none() {
            call!(cpu_exit());
        }
    }

    fn now_ns() -> u64 {
        call_if_present!(now_ns()).unwrap_or(0)
    }

    fn relax() {
        if call_if_present!(relax()).is_none() {
            core::hint::spin_loop();
        }
    }

    fn cond_resched() {
        call_if_present!(cond_resched());
    }

    fn lock_context<R>(_: impl FnOnce(&LockContext) -> R) -> Option<R> {
        // The table has no record of a task, so the order of locks is not checked.
        None
    }

    #[inline]
    fn rcu_read() -> Reading {
        grace::read()
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller keeps the contract of `rcu_defer`.
        unsafe { grace::defer(head, f) };
    }

    fn rcu_barrier() {
        grace::barrier();
    }
}
