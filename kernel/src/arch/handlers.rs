//! The table of functions by which traps and waiting locks call the kernel above. Boot installs it.

use super::frame::{Frame, UserAddr};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use freehold::fault::{Access, FaultError};

/// Functions of the kernel above.
pub struct Handlers {
    /// Answers the flushes that other processors wait for.
    pub answer_flushes: fn(),
    /// Serves a page fault of a program, or of the kernel in a program's memory.
    pub page_fault: fn(u64, Access, bool) -> Result<(), FaultError>,
    /// The same where an option watches it.
    pub watched_page_fault: fn(u64, Access, bool) -> Result<(), FaultError>,
    /// A page fault of a program was refused.
    pub refused: fn(&Frame, u64, FaultError),
    /// An exception of a program other than a page fault.
    pub exception: fn(&Frame),
    /// Does what a thread has to do before it goes back to its program; returns the next instruction's address.
    pub before_user: fn(&mut Frame) -> UserAddr,
    /// The timer has gone off.
    pub tick: fn(),
    /// The thread has had its time, or another has come.
    pub preempt: fn(),
    /// Lets others run that wait for this processor.
    pub give_way: fn(),
    /// A nonmaskable interrupt: reports what every processor is at, and ends the machine.
    pub nonmaskable: fn(&Frame) -> !,
    /// Returns whether an address lies below a kernel stack, where nothing is mapped.
    pub is_stack_guard: fn(u64) -> bool,
}

/// Until boot installs its table only one processor runs, with interrupts off. Only `answer_flushes` and
/// `is_stack_guard` are called.
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

/// Installs the table. Called once, before there are other processors.
pub fn install(handlers: &'static Handlers) {
    // Relaxed: the table is a constant.
    INSTALLED.store(ptr::from_ref(handlers).cast_mut(), Relaxed);
}

#[inline(always)]
pub fn handlers() -> &'static Handlers {
    // SAFETY: from a reference that lives for ever, to a constant.
    unsafe { &*INSTALLED.load(Relaxed) }
}
