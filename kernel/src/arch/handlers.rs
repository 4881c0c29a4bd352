//! The table of functions by which traps, waiting locks and preemption points call the kernel's upper layers.
//!
//! `arch` may not use the upper layers directly. `start.rs` has the table with the functions, and installs it
//! before the other CPUs start; the table never changes afterwards. All functions run with interrupts off.
//! `answer_flushes`, `tick` and `nonmaskable` may run in an interrupt or while a spin lock is held, so they
//! never sleep.
//!
//! To add a handler, add a field to [`Handlers`], a function to `EARLY`, and the function of the upper layer
//! to `HANDLERS` in `start.rs`.

use super::frame::{Frame, UserAddr};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use freehold::fault::{Access, FaultError};

/// Functions of the kernel's upper layers.
pub struct Handlers {
    /// Answers the flushes that other CPUs wait for.
    pub answer_flushes: fn(),
    /// Serves a page fault of a program, or of the kernel in a program's memory. Arguments: the address, the
    /// kind of access, and true if the program itself faulted.
    pub page_fault: fn(u64, Access, bool) -> Result<(), FaultError>,
    /// Serves a page fault like `page_fault` while an option watches faults.
    pub watched_page_fault: fn(u64, Access, bool) -> Result<(), FaultError>,
    /// Handles a page fault of a program that `page_fault` refused. The second argument is the address of the
    /// fault.
    pub refused: fn(&Frame, u64, FaultError),
    /// Handles an exception that a program caused, except a page fault.
    pub exception: fn(&Frame),
    /// Does the pending work of a thread that returns to its program. Returns the address of the next
    /// instruction.
    pub before_user: fn(&mut Frame) -> UserAddr,
    /// Handles the timer interrupt.
    pub tick: fn(),
    /// Handles the end of a time slice and the wake-up of a thread: runs another thread if that thread has
    /// run less than the current thread.
    pub preempt: fn(),
    /// Runs another thread that waits for this CPU, even if that thread has run more than the current thread.
    pub give_way: fn(),
    /// Handles a nonmaskable interrupt: reports the state of every CPU and ends the machine.
    pub nonmaskable: fn(&Frame) -> !,
    /// Returns true if an address is in the unmapped guard below a kernel stack.
    pub is_stack_guard: fn(u64) -> bool,
}

/// The table until `start.rs` installs another. Until then only one CPU runs, with interrupts off, and calls
/// only `answer_flushes` and `is_stack_guard`.
static EARLY: Handlers = Handlers {
    answer_flushes: || {},
    page_fault: |_, _, _| Err(FaultError::Killed),
    watched_page_fault: |_, _, _| Err(FaultError::Killed),
    refused: |_, _, _| {},
    exception: |_| {},
    before_user: |_| UserAddr::ZERO,
    tick: || {},
    preempt: || {},
    give_way: || {},
    nonmaskable: |_| loop {
        core::hint::spin_loop();
    },
    is_stack_guard: |_| false,
};

/// The installed table.
static INSTALLED: AtomicPtr<Handlers> = AtomicPtr::new(ptr::from_ref(&EARLY).cast_mut());

/// Installs the table. Called once, before the other CPUs start.
pub fn install(handlers: &'static Handlers) {
    // Relaxed: the table is a constant.
    INSTALLED.store(ptr::from_ref(handlers).cast_mut(), Relaxed);
}

/// Returns the installed table.
#[inline(always)]
pub fn handlers() -> &'static Handlers {
    // SAFETY: the pointer comes from a `'static` reference to a constant.
    unsafe { &*INSTALLED.load(Relaxed) }
}
