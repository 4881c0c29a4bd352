//! The table of functions by which traps and waiting locks call the kernel's upper layers. Installed at boot.

use super::frame::{Frame, UserAddr};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use freehold::fault::{Access, FaultError};

/// Functions of the kernel's upper layers.
pub struct Handlers {
    /// Answers the flushes that other CPUs wait for.
    pub answer_flushes: fn(),
    /// Serves a page fault of a program, or of the kernel in a program's memory. The last argument is true
    /// for a program's.
    pub page_fault: fn(u64, Access, bool) -> Result<(), FaultError>,
    /// Serves a page fault like `page_fault` while an option watches faults.
    pub watched_page_fault: fn(u64, Access, bool) -> Result<(), FaultError>,
    /// Handles a page fault of a program that `page_fault` refused.
    pub refused: fn(&Frame, u64, FaultError),
    /// Handles an exception of a program other than a page fault.
    pub exception: fn(&Frame),
    /// Does the pending work of a thread that returns to its program. Returns the address of the next
    /// instruction.
    pub before_user: fn(&mut Frame) -> UserAddr,
    /// Handles the timer interrupt.
    pub tick: fn(),
    /// Switches to another thread if the running one has used up its time slice, or another was woken.
    pub preempt: fn(),
    /// Runs other threads that wait for this CPU.
    pub give_way: fn(),
    /// Handles a nonmaskable interrupt: reports the state of every CPU and ends the machine.
    pub nonmaskable: fn(&Frame) -> !,
    /// Returns true if an address is in the unmapped guard below a kernel stack.
    pub is_stack_guard: fn(u64) -> bool,
}

/// The table until boot installs its own. Until then only one CPU runs, with interrupts off, and calls only
/// `answer_flushes` and `is_stack_guard`.
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

static INSTALLED: AtomicPtr<Handlers> = AtomicPtr::new(ptr::from_ref(&EARLY).cast_mut());

/// Installs the table. Called once, before the other CPUs start.
pub fn install(handlers: &'static Handlers) {
    // Relaxed: the table is a constant.
    INSTALLED.store(ptr::from_ref(handlers).cast_mut(), Relaxed);
}

#[inline(always)]
pub fn handlers() -> &'static Handlers {
    // SAFETY: the pointer comes from a `'static` reference to a constant.
    unsafe { &*INSTALLED.load(Relaxed) }
}
